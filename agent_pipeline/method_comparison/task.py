"""The task that compares methods: each is trained and measured by the tasks of a night, so what was made once is never made again.

Adapters and measurements lie beside those of the nights, under their own identities; no pointer of theirs moves.
"""

import gc
import json
from pathlib import Path
from typing import Any

import msgspec

from agent_pipeline.compute.artifact_cache import MODELS, build, find_artifact
from agent_pipeline.compute.coresets import method_coreset
from agent_pipeline.compute.registry import TASKS, Params, Result, task
from agent_pipeline.compute.tasks import episodes, evaluate, prefer, train
from agent_pipeline.config.assets import ASSETS
from agent_pipeline.evaluation.evaluate import BasePasses
from agent_pipeline.method_comparison.report import CHART, PAGE, chart, page
from agent_pipeline.method_comparison.results import PASS_FIGURES, Cost, Method, Run, compared
from agent_pipeline.progress import Progress, silent
from agent_pipeline.promotion.decide import scores
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.chain import SKIPPED
from agent_pipeline.training.config import PREFERENCES

__all__ = ["TASKS", "compare_methods"]


@task(version=7, libraries=MODELS)
def compare_methods(params: Params, progress: Progress = silent) -> Result:
    """The methods, each trained with several seeds and measured on the same held-out turns and episodes, and a report of them all.

    A comparison that was killed goes on where it stopped."""
    methods, runs = msgspec.convert(params["methods"], list[Method]), []
    made: dict[str, Artifact] = {}
    base_passes: BasePasses = {}
    places = [(method, seed) for seed in range(params["seeds"]) for method in methods]
    for number, (method, seed) in enumerate(places, 1):

        def tell(
            done: int,
            total: int,
            text: str,
            place: str = f"{number}/{len(places)} {method.id}, seed {seed}",
        ) -> None:
            progress(done, total, f"{place}: {text}")

        run, artifacts = _run(
            params | {"fresh": False, "mix": method.mix}, method, seed, tell, base_passes
        )
        runs.append(run)
        made |= {each.identity: each for each in artifacts}
        gc.collect()  # a trainer and its model hold each other
    made_from = {
        "methods": [_hashed_method(method) for method in params["methods"]],
        "held_out": params["held_out"],
        "runs": [[run.method, run.seed, *run.made_by] for run in runs],
    }

    def make(folder: Path) -> dict[str, Any]:
        report = compared(methods, runs) | {
            "partition": params["partition"],
            "split": params["held_out"],
            "world": params["world"],
        }
        (folder / PAGE).write_text(page(report), encoding="utf-8")
        chart(report, folder / CHART)
        (folder / "comparison.json").write_text(
            json.dumps(report, indent=1, ensure_ascii=False), encoding="utf-8"
        )
        return report

    return build(compare_methods, params, "method_comparison", made_from, make, list(made.values()))


def _hashed_method(method: Params) -> Params:
    """Return the parameters of a method with its settings under the names that enter hashes."""
    assets = {
        asset: ASSETS[asset].with_hashed_names(values) for asset, values in method["assets"].items()
    }
    return method | {"assets": assets}


def _run(
    params: Params, method: Method, seed: int, progress: Progress, base_passes: BasePasses
) -> tuple[Run, list[Artifact]]:
    """A training of a method, and how well its model does; the artifacts that were made for it."""
    config = {
        asset: values | {"seed": values["seed"] + seed}
        for asset, values in method.assets.items()
        if "seed" in values
    }
    made = [method_coreset(params, compare_methods, config["sft_coreset"], progress)]

    def took(asset: str, result: Result) -> Artifact:
        made.append(find_artifact(params, {"asset": asset, "identity": result["identity"]}))
        return made[-1]

    sft = config["sft_adapter"] | {
        "processes": 1
    }  # the worker of a comparison uses one GPU, and the model is the same
    own = {
        name: sft.pop(name) for name in ("base_model", "base_revision", "replay_ratio", "rehearsal")
    }
    result = train.run(params | own | {"coreset": made[0].reference, "config": sft}, progress)
    trained = [took("sft_adapter", result)]
    notes = [result["replayed"]] if own["replay_ratio"] else []
    for step in method.chain[1:]:
        asked = {
            "method": step,
            "dataset": PREFERENCES[step],
            "reference": trained[-1].reference,
            "config": config[f"{step}_adapter"],
        }
        adapter = took(f"{step}_adapter", prefer.run(params | asked, progress))
        if skipped := adapter.manifest["report"].get(SKIPPED):
            notes.append(f"{step} trained nothing: {skipped}")
        else:
            trained.append(adapter)
    adapter = trained[-1]
    params = params | {"adapter": adapter.reference}
    measured, played = (
        took(
            "evaluation",
            evaluate.run(params | {"config": params["evaluation"]}, progress, base_passes),
        ),
        None,
    )
    if params["world"]:
        played = took(
            "episodes",
            episodes.run(
                params | {"gguf_export": None, "alone": True, "config": params["episodes"]},
                progress,
            ),
        )
    model, base = scores((measured, None), (played, None), same_base=True)
    report = measured.manifest["report"]
    run = Run(
        method=method.id,
        seed=seed,
        scores=model,
        of_pass={name: report["adapter"][name] for name in PASS_FIGURES},
        base=base,
        base_of_pass={name: report["base"][name] for name in PASS_FIGURES},
        base_model=adapter.manifest["made_from"]["base_model"],
        adapter=adapter.identity,
        made_by=[each.identity for each in made],
        cost=_cost(made[0], trained),
        notes=notes,
    )
    return run, made


def _cost(coreset: Artifact, adapters: list[Artifact]) -> Cost:
    reports = [each.manifest["report"] for each in adapters]
    return Cost(
        rows=reports[0]["rows"]["trained"] + reports[0].get("replay", {}).get("trained", 0),
        tokens=sum(round(each["tokens"] * each["log_history"][-1]["epoch"]) for each in reports),
        seconds=sum(each["seconds"] for each in reports),
        selection_seconds=coreset.manifest["report"]["seconds"],
        resumed=any(each["resumed_from"] for each in reports),
    )
