"""The heavy tasks: losses, embeddings, training, evaluation, export, episodes. Each runs in the worker process.

A task reads its rows from the lake, a batch at a time. Its parameters and its result are JSON, so that they can cross a process boundary.
"""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent_pipeline.compute.artifact_cache import (
    MODELS,
    asked_base,
    asked_lake,
    asked_rows,
    build,
    build_further,
    find_artifact,
    seen_by_models,
)
from agent_pipeline.compute.coresets import embed, losses
from agent_pipeline.compute.registry import TASKS, Params, Result, task
from agent_pipeline.datasets.verdicts import count_row_verdicts, describe_unverified
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.progress import Progress, silent
from agent_pipeline.redaction.surrogates import spoken, surrogates_made_from, system_of
from agent_pipeline.selection.tables import dataset_rows
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import sha256_file
from agent_pipeline.training.chain import trained_adapters
from agent_pipeline.training.config import FURTHER
from agent_pipeline.training.identity import adapter_origin, rows_made_from

if TYPE_CHECKING:
    from agent_pipeline.evaluation.evaluate import BasePasses

__all__ = [
    "TASKS",
    "VERSIONS",
    "canaries",
    "compare",
    "embed",
    "episodes",
    "evaluate",
    "export",
    "losses",
    "on_policy",
    "prefer",
    "train",
]


@task(version=11, libraries=(*MODELS, "trl"))
def train(params: Params, progress: Progress = silent) -> Result:
    """A LoRA adapter from the rows of the `train` split that `sft_coreset` chose, or the artifact `coreset` of a comparison, and from rows
    of earlier nights (`replay`), beside answers of the base itself (`rehearsal`)."""
    from agent_pipeline.datasets.splits import SplitSizes
    from agent_pipeline.models.chat_renderer import load_renderer
    from agent_pipeline.selection.leaks import refuse_leaks
    from agent_pipeline.selection.replay import night_rows
    from agent_pipeline.selection.tables import check_chosen_calls, picked_rows
    from agent_pipeline.training.config import (
        TrainingConfig,
        describe_size_defaults,
        resolve_size_defaults,
    )
    from agent_pipeline.training.sft import train_adapter

    lake, key = asked_lake(params)
    if params.get("leaks", "refuse") == "refuse":
        refuse_leaks(lake, key)
    chosen = (
        picked_rows(asked_rows(params), find_artifact(params, params["coreset"]).path)
        if "coreset" in params
        else None
    )
    rows, replay = night_rows(
        lake, key, params["replay_ratio"], SplitSizes(**params["split"]), chosen
    )
    stored, rows, replayed = rows, seen_by_models(params, rows), seen_by_models(params, replay.rows)
    base = asked_base(params)
    config = TrainingConfig(**resolve_size_defaults(params["config"], "sft", base))
    check_chosen_calls(lake, key, rows)
    renderer = load_renderer(base.path, base.trust_remote_code)
    rehearsal = params["rehearsal"]
    verdicts = count_row_verdicts([*rows, *replayed])
    origin = adapter_origin(
        rows, base, renderer.template.jinja, config, replayed, params["replay_ratio"], rehearsal
    ) | describe_unverified(verdicts)

    def make(folder: Path) -> dict[str, Any]:
        replaying = (
            {"replayed": replayed, "replay_ratio": params["replay_ratio"]} if replayed else {}
        )
        report = train_adapter(
            rows,
            base,
            config,
            folder,
            progress=progress,
            rehearsal=rehearsal,
            renderer=renderer,
            **replaying,
        )
        return report | {"verdicts": verdicts}

    result = build(train, params, "sft_adapter", origin, make)
    made_up = sum(seen is not row for seen, row in zip(rows, stored, strict=True))
    by_size = describe_size_defaults(params["config"], config.model_dump(), base)
    figures = {"rows": len(rows), "rows_with_surrogates": made_up, "by_size": by_size}
    return result | figures | {"replay": replay.report(), "replayed": replay.sentence()}


@task(version=11, libraries=(*MODELS, "trl"))
def prefer(params: Params, progress: Progress = silent) -> Result:
    """An adapter trained on by `method` from the judged rows of the `train` split, watched on the SFT rows of `select`.

    Where nothing can be trained, the artifact holds no adapter, and its report the reason (`skipped`).
    """
    from agent_pipeline.training.config import resolve_size_defaults
    from agent_pipeline.training.further_steps import origin_of
    from agent_pipeline.training.preference_steps import train_preferences

    (lake, key), method = asked_lake(params), params["method"]
    reference = find_artifact(params, params["reference"])
    base = _base_of(params, reference)
    config = FURTHER[method](**resolve_size_defaults(params["config"], method, base))
    judged = seen_by_models(
        params, dataset_rows(lake, key, ("train", "select", "test"), params["dataset"])
    )
    rows, heldout = (
        [row for row in judged if (row["split"] == "train") is wanted] for wanted in (True, False)
    )
    select = seen_by_models(params, dataset_rows(lake, key, ("select",)))

    def make(folder: Path) -> dict[str, Any]:
        return train_preferences(
            method,
            rows,
            base,
            reference.path,
            config,
            folder,
            select,
            heldout,
            progress,
            reference.identity,
        )

    made_from = origin_of(method, rows, select, base, reference.identity, config)
    return build_further(prefer, params, reference, made_from, make, count_row_verdicts(rows))


@task(version=6, libraries=(*MODELS, "trl"))
def on_policy(params: Params, progress: Progress = silent) -> Result:
    """An adapter trained on by `method` from what it writes itself about the rows of the `train` split of `sft_dataset`, watched on those
    of `select`; `skipped` as in `prefer`."""
    from agent_pipeline.evaluation.rollouts import practice
    from agent_pipeline.training.config import resolve_size_defaults
    from agent_pipeline.training.further_steps import origin_of
    from agent_pipeline.training.on_policy_steps import train_on_policy

    (lake, key), method = asked_lake(params), params["method"]
    reference = find_artifact(params, params["reference"])
    base = _base_of(params, reference)
    config = FURTHER[method](**resolve_size_defaults(params["config"], method, base))
    select, teacher = seen_by_models(params, dataset_rows(lake, key, ("select",))), None
    whole = seen_by_models(params, dataset_rows(lake, key))
    rows, play, origin = practice(whole, config, params["world"])
    if named := getattr(config, "teacher_model", ""):
        teacher = asked_base(
            params | {"base_model": named, "base_revision": getattr(config, "teacher_revision", "")}
        )
        origin["taught_by"] = [teacher.name, teacher.revision]

    def make(folder: Path) -> dict[str, Any]:
        return train_on_policy(
            method,
            rows,
            base,
            reference.path,
            config,
            folder,
            select,
            play,
            teacher,
            progress,
            reference.identity,
            **origin,
        )

    made_from = origin_of(method, rows, select, base, reference.identity, config, **origin)
    return build_further(on_policy, params, reference, made_from, make, count_row_verdicts(whole))


REMOVED_EVALUATION_OPTIONS: dict[str, Any] = {"own_template": False, "sessions_in_prompt": 0}
"""Options that were removed, with the values that they have now in every identity of an evaluation.

An evaluation of an earlier version, which has these values, is therefore reused.
"""


@task(version=15, libraries=MODELS)
def evaluate(
    params: Params, progress: Progress = silent, base_passes: "BasePasses | None" = None
) -> Result:
    """Base against adapter on the held-out rows, those of the split `test` unless the configuration names another. Evaluations that are
    given one `base_passes` ask a base once for the same turns."""
    from agent_pipeline.evaluation.evaluate import ROW_LOSSES, SAMPLES
    from agent_pipeline.evaluation.evaluate import evaluate as evaluate_adapter
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.models.device import fast_device
    from agent_pipeline.reports.inspect_log import write_log
    from agent_pipeline.reports.page import PAGE, Split, evaluation_page

    config = {
        name: value
        for name, value in params["config"].items()
        if name not in REMOVED_EVALUATION_OPTIONS
    }
    split = config.get("split", "test")
    stored, adapter = (
        heldout_rows(*asked_lake(params), split),
        find_artifact(params, params["adapter"]),
    )
    rows, base = seen_by_models(params, stored), _base_of(params, adapter)
    made_from = {
        "adapter": adapter.identity,
        "config": config | REMOVED_EVALUATION_OPTIONS,
        "device": str(fast_device()),  # what is asked in two types does not compare
        **rows_made_from(stored),
        **surrogates_made_from(stored, rows),
    }

    def make(folder: Path) -> dict[str, Any]:
        report = evaluate_adapter(
            rows,
            base,
            adapter.path,
            **config,
            progress=progress,
            base_passes=base_passes,
        )
        seen = Split(split, report, report.pop("samples"), f"{SAMPLES} beside this page")
        for name, entries in ((SAMPLES, seen.samples), (ROW_LOSSES, report.pop("row_losses"))):
            (folder / name).write_text(
                json.dumps(entries, indent=1, ensure_ascii=False), encoding="utf-8"
            )
        adapters = trained_adapters(*asked_lake(params), adapter.identity)
        by_id = {row["row_id"]: row for row in rows}
        (folder / PAGE).write_text(
            evaluation_page(
                params["partition"], seen, by_id, adapters, "surrogates_sha256" in made_from
            ),
            encoding="utf-8",
        )
        for player, model in (
            ("base", base.name),
            ("adapter", f"{base.name}+{adapter.identity[:16]}"),
        ):
            write_log(
                folder, player, f"{params['partition']} {split}", model, report, seen.samples, by_id
            )
        return report

    return build(evaluate, params, "evaluation", made_from, make, [adapter])


@task(version=10, libraries=(*MODELS, "gguf", "xllamacpp"))
def export(params: Params, progress: Progress = silent) -> Result:
    """The adapter merged into its base, as GGUF files that a real llama.cpp has loaded and answered from."""
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.export.converter import find_converter
    from agent_pipeline.export.gguf_export import export as export_gguf
    from agent_pipeline.export.quantizer import K_QUANTS, find_quantizer
    from agent_pipeline.export.serving_folder import base_folder

    adapter, evaluation = (
        find_artifact(params, params["adapter"]),
        find_artifact(params, params["evaluation"]),
    )
    if evaluation.manifest["made_from"]["adapter"] != adapter.identity:
        raise DataError(
            f"The evaluation {evaluation.identity[:16]} of {params['partition']} is of another adapter than {adapter.identity[:16]}, which "
            "is to be exported: materialize evaluation again."
        )
    rows, base, config = (
        heldout_rows(*asked_lake(params)),
        _base_of(params, adapter),
        params["config"],
    )
    # Which conversations are compared is a choice by hash, so that it does not move with the order of sessions.
    chosen = sorted(rows, key=lambda row: hash_json(row["row_id"]))[: config["max_conversations"]]
    compared = seen_by_models(params, chosen)
    made_from = {
        "adapter": adapter.identity,
        "adapter_made_from": adapter.manifest["made_from"],
        "config": config,
        "converter_sha256": sha256_file(find_converter(params["llama_cpp"] or None)),
        "compared": rows_made_from(chosen) | surrogates_made_from(chosen, compared),
    }
    first = list(islice(dataset_rows(*asked_lake(params)), config["imatrix_rows"]))
    measured = seen_by_models(params, first)
    if measured:
        made_from["measured"] = rows_made_from(first) | surrogates_made_from(first, measured)
    if set(config["outtypes"]) & set(K_QUANTS):
        made_from["quantizer_sha256"] = sha256_file(
            Path(find_quantizer(params["llama_cpp"] or None)[-1])
        )

    def make(folder: Path) -> dict[str, Any]:
        return export_gguf(
            base,
            adapter.path,
            folder,
            compared,
            config["outtypes"],
            config["max_new_tokens"],
            progress,
            longest_row=adapter.manifest["report"]["longest_row_tokens"],
            name=f"{params['partition']} {adapter.identity[:16]}",
            llama_cpp_path=params["llama_cpp"] or None,
            least_kept=config["least_kept"],
            measured=measured,
            trained=dataset_rows(*asked_lake(params)),
            bases=base_folder(asked_lake(params)[0]),
        )

    return build(export, params, "gguf_export", made_from, make, [adapter])


@task(version=10, libraries=(*MODELS, "xllamacpp"))
def episodes(params: Params, progress: Progress = silent) -> Result:
    """The held-out tasks, played in the agent's world by the exported model (in a comparison of methods: by the adapter in memory) and,
    unless it plays `alone`, by its base model."""
    from agent_pipeline.compute.playing import gguf_player, memory_player, play_all, tasks_to_play
    from agent_pipeline.evaluation.episodes import played_task
    from agent_pipeline.evaluation.heldout import heldout_rows, recorded_sessions, reply_limit
    from agent_pipeline.evaluation.worlds import world_source
    from agent_pipeline.export.serving_folder import served_form
    from agent_pipeline.reports.episode_report import write

    lake, key = asked_lake(params)
    stored = heldout_rows(lake, key, params.get("held_out", "test"))
    rows, adapter = seen_by_models(params, stored), find_artifact(params, params["adapter"])
    config, world, alone = params["config"], params["world"], params.get("alone", False)
    if (
        config["trials"] > 1 and not config["temperature"]
    ):  # the values come from several places, so no form can check the two together
        raise SettingsError(
            f"{config['trials']} greedy trials of a task are the same trial: set episodes.temperature, or one trial."
        )
    config = config | {"max_new_tokens": config["max_new_tokens"] or reply_limit(lake, key)}
    base, exported = (
        _base_of(params, adapter),
        params["gguf_export"] and find_artifact(params, params["gguf_export"]),
    )
    sessions = recorded_sessions(lake, key, {row["task_key"] for row in rows})
    recorded = {task: messages for task, (_, messages) in sessions.items()}
    if params.get("surrogates"):
        recorded = {
            task: spoken(messages, task, system_of(messages)) for task, messages in recorded.items()
        }
    judged = lake.open("judged_sessions", key).read(["task_key"])["task_key"].to_pylist()
    in_store = sorted(
        {
            task
            for task in judged
            if (played := played_task(task)) and int(played[2]) >= config["fresh_seed"]
        }
    )
    tasks = tasks_to_play(
        world,
        rows,
        config["max_tasks"],
        config["fresh_tasks"],
        config["fresh_seed"],
        in_store=in_store,
    )
    made_from = {
        "adapter": adapter.identity,
        "gguf_export": exported.identity if exported else None,
        "world": world,
        "world_sha256": world_source(world),
        "config": config,
        "recorded_sha256": hash_json(recorded),
        **({"alone": True} if alone else {}),
        **({"not_fresh": in_store} if in_store and config["fresh_tasks"] else {}),
        **rows_made_from(stored),
        **surrogates_made_from(stored, rows),
    }
    # The recorded agent plays another trial where that is the task's first: what is forgotten is found by it.
    made_from["sessions"] = sorted(
        {*made_from["sessions"], *(session_id for session_id, _ in sessions.values())}
    )
    limits = (config["max_new_tokens"], config["max_length"])
    rounds = (config["max_turns"], config["trials"])

    def make(folder: Path) -> dict[str, Any]:
        model = (
            gguf_player(served_form(lake, exported), *limits, config["temperature"])
            if exported
            else memory_player(base, adapter.path, adapter.path, *limits)
        )
        players = {"model": model} | (
            {} if alone else {"base": memory_player(base, adapter.path, None, *limits)}
        )
        report, played = play_all(world, tasks, players, recorded, *rounds, progress)
        write(folder, report, played)
        return report

    return build(episodes, params, "episodes", made_from, make, [adapter])


@task(version=9, libraries=MODELS)
def canaries(params: Params, progress: Progress = silent) -> Result:
    """Base and adapter on questions beside the agent's job, with and without its tools, and on turns of other partitions."""
    from agent_pipeline.promotion.sanity_questions import FILE, QUESTIONS, ask, other_turns

    adapter = find_artifact(params, params["adapter"])
    row: dict[str, Any] = next(dataset_rows(*asked_lake(params), ("select", "test")), {})
    tools = row.get("tools") or []
    others = other_turns(
        *asked_lake(params), params["canary_rows"], params["canaries_beyond_project"]
    )
    max_length = params["evaluation"]["max_length"]
    made_from = {
        "adapter": adapter.identity,
        "max_length": max_length,
        "questions_sha256": hash_json(list(QUESTIONS.items())),
        "tools_sha256": hash_json(tools),
        "others_sha256": hash_json([sample.key for sample in others.values()]),
    }

    def make(folder: Path) -> dict[str, Any]:
        asked = ask(_base_of(params, adapter), adapter.path, tools, progress, others, max_length)
        (folder / FILE).write_bytes(msgspec.json.encode(asked))
        return {
            name: sum(getattr(each, name) for each in asked) for name in ("base", "candidate")
        } | {"of": len(asked)}

    return build(canaries, params, "canaries", made_from, make, [adapter])


@task(version=1)
def compare(params: Params, progress: Progress = silent) -> Result:
    """Candidate and champion on the rows of the split `select`, the champion on those of `test` and in the candidate's episodes; canaries.

    The identities of what a promotion is decided on; `None` where there is no such row, no champion or no world. What is there is reused.
    With `watch` (of a champion on probation and the one before it), those of `select` only."""
    candidate, champion, play = params["candidate"], params["champion"], params["play"]
    on_test = params["evaluation"]
    on_select = on_test | {
        "split": "select",
        "max_samples": params["select_turns"],
    }
    base_passes: BasePasses = {}
    has_select = any(True for _ in dataset_rows(*asked_lake(params), ("select",)))

    def evaluated(adapter: dict[str, str] | None, config: dict[str, Any]) -> str | None:
        return (
            evaluate.run(params | {"adapter": adapter, "config": config}, progress, base_passes)[
                "identity"
            ]
            if adapter
            else None
        )

    bases = [
        find_artifact(params, each).manifest["made_from"]["base_model"]
        for each in (candidate, champion)
        if each
    ]
    result = {
        "candidate": evaluated(candidate, on_select) if has_select else None,
        "champion": evaluated(champion, on_select) if has_select else None,
        "same_base": len(set(bases)) == 1,
    }
    if params.get("watch"):
        return result
    return result | {
        "champion_on_test": evaluated(champion, on_test),
        "champion_episodes": episodes.run(params | play | {"adapter": champion}, progress)[
            "identity"
        ]
        if play
        else None,
        "canaries": canaries.run(params | {"adapter": candidate}, progress)["identity"],
    }


def _base_of(params: Params, adapter: Artifact) -> BaseModel:
    """The base model that an adapter was trained on, at the same revision."""
    return asked_base(
        params
        | {name: adapter.manifest["made_from"][name] for name in ("base_model", "base_revision")}
    )


VERSIONS = {name: each.version for name, each in TASKS.items()}
"""Of the tasks that a night runs. Which other tasks a process knows depends on what it has imported."""
