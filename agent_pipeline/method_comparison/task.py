"""The task `compare_methods`, which trains and measures methods by running other tasks.

An adapter or a measurement that already exists is reused. The pointers of nightly runs do not move:
an adapter of a comparison becomes neither the latest adapter nor the champion.
"""

import gc
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from agent_pipeline.compute.artifact_cache import MODELS, Recipe, build
from agent_pipeline.compute.coresets import method_coreset
from agent_pipeline.compute.params import (
    ArtifactReference,
    EpisodesParams,
    EvaluateParams,
    FurtherStepParams,
    OptionValues,
    RowsParams,
    TaskParams,
    TrainParams,
)
from agent_pipeline.compute.registry import TASKS, Result, task
from agent_pipeline.compute.tasks import episodes, evaluate, prefer, train
from agent_pipeline.config.assets import ASSETS
from agent_pipeline.evaluation.evaluation_report import read_evaluation_report
from agent_pipeline.method_comparison.report import CHART, PAGE, chart, page
from agent_pipeline.method_comparison.results import (
    PASS_FIGURES,
    Cost,
    Measured,
    Method,
    Run,
    compared,
)
from agent_pipeline.progress import Progress, silent
from agent_pipeline.promotion.stored_scores import read_scores
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.config import PREFERENCES
from agent_pipeline.training.report import SkippedReport, read_step_report, read_training_report

__all__ = ["TASKS", "compare_methods"]


class CompareMethodsParams(TaskParams, kw_only=True, forbid_unknown_fields=True):
    """The parameters of the task `compare_methods`.

    Attributes:
        methods: The methods, each with all its settings.
        seeds: The number of seeds with which each method is trained.
        held_out: The split whose turns and tasks are measured.
        evaluation: The options of `evaluation`.
        episodes: The options of `episodes`.
        world: The agent's world, or an empty string if no episodes are played.
    """

    methods: list[Method]
    seeds: int
    held_out: Literal["select", "test"]
    evaluation: OptionValues
    episodes: OptionValues
    world: str


@dataclass
class TrainedMethod:
    """One training run of a method, with the artifacts that have been made so far.

    Attributes:
        params: The partition, and whether the method trains on the rows of several agents.
        artifacts: Every artifact of the training run, in the order in which they were made.
        adapters: The adapters of the steps that trained something.
        notes: Notes about the training run for readers of the report.
    """

    params: RowsParams
    artifacts: list[Artifact] = field(default_factory=list)
    adapters: list[Artifact] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, asset: str, result: Result) -> Artifact:
        """Add the artifact that a task's result names."""
        artifact = self.params.find_artifact(ArtifactReference(asset, result["identity"]))
        self.artifacts.append(artifact)
        return artifact


@task(7, CompareMethodsParams, MODELS)
def compare_methods(params: CompareMethodsParams, progress: Progress = silent) -> Result:
    """Train each method with several seeds, measure all methods equally, and write a report.

    If a comparison is killed, the next call resumes it at the training run that was interrupted.
    """
    runs: list[Run] = []
    artifacts: dict[str, Artifact] = {}
    trainings = [(method, seed) for seed in range(params.seeds) for method in params.methods]
    for position, (method, seed) in enumerate(trainings, start=1):
        label = f"{position}/{len(trainings)} {method.id}, seed {seed}"
        run, run_artifacts = _train_and_measure(params, method, seed, _labelled(progress, label))
        runs.append(run)
        artifacts |= {artifact.identity: artifact for artifact in run_artifacts}
        # A trainer and its model refer to each other, so only the garbage collector frees them.
        gc.collect()
    made_from = {
        "methods": [_hashed_method(method) for method in params.methods],
        "held_out": params.held_out,
        "runs": [[run.method, run.seed, *run.made_by] for run in runs],
    }

    def write(folder: Path) -> dict[str, Any]:
        measured = Measured(params.partition, params.held_out, params.world)
        report = compared(params.methods, runs, measured)
        (folder / PAGE).write_text(page(report), encoding="utf-8")
        chart(report, folder / CHART)
        values: dict[str, Any] = msgspec.to_builtins(report)
        text = json.dumps(values, indent=1, ensure_ascii=False)
        (folder / "comparison.json").write_text(text, encoding="utf-8")
        return values

    recipe = Recipe("method_comparison", made_from, write, list(artifacts.values()))
    return build(compare_methods, params, recipe)


def _labelled(progress: Progress, label: str) -> Progress:
    """Return a progress callback that puts a label before each text."""

    def report(done: int, total: int, text: str) -> None:
        progress(done, total, f"{label}: {text}")

    return report


def _hashed_method(method: Method) -> Mapping[str, Any]:
    """Return a method in the form that enters an identity, with the names that are hashed."""
    values: dict[str, Any] = msgspec.to_builtins(method)
    values["assets"] = {
        asset: ASSETS[asset].with_hashed_names(settings)
        for asset, settings in values["assets"].items()
    }
    return values


def _train_and_measure(
    params: CompareMethodsParams,
    method: Method,
    seed: int,
    progress: Progress,
) -> tuple[Run, list[Artifact]]:
    """Train a method with one seed, and measure its model.

    Args:
        params: The parameters of the comparison.
        method: The method with all its settings.
        seed: A number that is added to the seed of each step.
        progress: A callback that reports progress.

    Returns:
        The run for the report, and its artifacts.
    """
    trained = TrainedMethod(params.for_task(RowsParams, mix=method.mix, fresh=""))
    settings = {
        asset: values | {"seed": values["seed"] + seed}
        for asset, values in method.assets.items()
        if "seed" in values
    }
    coreset = method_coreset(trained.params, compare_methods, settings["sft_coreset"], progress)
    trained.artifacts.append(coreset)
    _train_first_step(trained, coreset, settings["sft_adapter"], progress)
    for step in method.chain[1:]:
        _train_further_step(trained, step, settings[f"{step}_adapter"], progress)
    adapter = trained.adapters[-1]
    reference = ArtifactReference(**adapter.reference)
    evaluate_params = trained.params.for_task(
        EvaluateParams, adapter=reference, config=params.evaluation
    )
    evaluated = evaluate.run(evaluate_params, progress)
    measured, played = trained.add("evaluation", evaluated), None
    if params.world:
        episode_params = trained.params.for_task(
            EpisodesParams,
            adapter=reference,
            gguf_export=None,
            world=params.world,
            config=params.episodes,
            alone=True,
            held_out=params.held_out,
        )
        played = trained.add("episodes", episodes.run(episode_params, progress))
    model, base = read_scores((measured, None), (played, None), same_base=True)
    report = read_evaluation_report(measured)
    run = Run(
        method=method.id,
        seed=seed,
        scores=model,
        of_pass={name: report.adapter.figure(name) for name in PASS_FIGURES},
        base=base,
        base_of_pass={name: report.base.figure(name) for name in PASS_FIGURES},
        base_model=adapter.manifest["made_from"]["base_model"],
        adapter=adapter.identity,
        made_by=[artifact.identity for artifact in trained.artifacts],
        cost=_cost(coreset, trained.adapters),
        notes=trained.notes,
    )
    return run, trained.artifacts


def _train_first_step(
    trained: TrainedMethod, coreset: Artifact, settings: OptionValues, progress: Progress
) -> None:
    """Train the method's first adapter on the rows of its coreset."""
    options = dict(settings)
    own_names = ("base_model", "base_revision", "replay_ratio", "rehearsal")
    own_options = {name: options.pop(name) for name in own_names}
    # The worker of a comparison uses one GPU. The number of processes does not change the model.
    if "processes" in options:
        options["processes"] = 1
    train_params = trained.params.for_task(
        TrainParams,
        mix=trained.params.mix,
        coreset=ArtifactReference(**coreset.reference),
        config=options,
        **own_options,
    )
    result = train.run(train_params, progress)
    trained.adapters.append(trained.add("sft_adapter", result))
    if own_options["replay_ratio"]:
        trained.notes.append(result["replayed"])


def _train_further_step(
    trained: TrainedMethod, step: Any, settings: OptionValues, progress: Progress
) -> None:
    """Continue training the method's last adapter by DPO or KTO."""
    step_params = trained.params.for_task(
        FurtherStepParams,
        mix=trained.params.mix,
        method=step,
        dataset=PREFERENCES[step],
        world="",
        reference=ArtifactReference(**trained.adapters[-1].reference),
        config=settings,
    )
    adapter = trained.add(f"{step}_adapter", prefer.run(step_params, progress))
    report = read_step_report(adapter)
    if isinstance(report, SkippedReport):
        trained.notes.append(f"{step} trained nothing: {report.skipped}")
    else:
        trained.adapters.append(adapter)


def _cost(coreset: Artifact, adapters: list[Artifact]) -> Cost:
    """Return the rows, tokens and seconds of a training run, from the reports of its artifacts."""
    reports = [read_training_report(adapter) for adapter in adapters]
    replayed = reports[0].replay["trained"] if reports[0].replay else 0
    return Cost(
        rows=reports[0].rows["trained"] + replayed,
        tokens=sum(
            round((report.tokens or 0) * report.log_history[-1]["epoch"]) for report in reports
        ),
        seconds=sum(report.seconds or 0.0 for report in reports),
        selection_seconds=coreset.manifest["report"]["seconds"],
        resumed=any(report.resumed_from for report in reports),
    )
