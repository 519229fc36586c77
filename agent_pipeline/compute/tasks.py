"""The heavy tasks: losses, embeddings, training, evaluation, export. Each runs in the worker process.

Parameters and results are JSON, so that they can cross a process boundary. A notebook may call these as well.
"""

import json
from pathlib import Path
from typing import Any

from agent_pipeline.compute.building import build, find_artifact, open_lake, read_rows, rows_made_from
from agent_pipeline.compute.registry import TASKS, Params, Result, task
from agent_pipeline.errors import DataError
from agent_pipeline.keys import parse_key
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.filesystem import sha256_file

__all__ = ["TASKS", "embed", "episodes", "evaluate", "export", "losses", "train"]

MODELS = ("torch", "transformers", "peft")


@task(version=1, libraries=MODELS)
def losses(params: Params, progress: Progress = silent) -> Result:
    """The base model's mean loss on each row's assistant tokens (null: no such token), and how many tokens those are."""
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.losses import row_losses

    base = resolve_base_model(params["base_model"], Path(params["cache"]), params["trust_remote_code"])
    rows = read_rows(params["rows"])
    found = dict(zip((row["row_id"] for row in rows), row_losses(rows, base, progress=progress), strict=True))
    return {
        "losses": {row_id: each.loss for row_id, each in found.items()},
        "tokens": {row_id: each.trained_tokens for row_id, each in found.items()},
    }


@task(version=1, libraries=MODELS)
def embed(params: Params, progress: Progress = silent) -> Result:
    """The vectors of the rows' conversations, put into the lake, by a model: of which origin they are there, and how many were new."""
    from agent_pipeline.selection.embeddings import HIDDEN_STATES, conversation_text, encoder
    from agent_pipeline.selection.vectors import KeptEmbeddings
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.hidden_states import hidden_state_encoder

    trusted = params["trust_remote_code"]
    if params["embeddings"] == HIDDEN_STATES:
        model = hidden_state_encoder(resolve_base_model(params["base_model"], Path(params["cache"]), trusted), progress)
    else:
        model = encoder(params["embeddings"], trusted)
    kept = KeptEmbeddings(open_lake(params), parse_key(params["partition"]), encoder=model)
    kept([conversation_text(row["messages"]) for row in read_rows(params["rows"])])
    return {"origin": model.origin, "computed": kept.counts["computed"], "kept": kept.counts["kept"]}


@task(version=1, libraries=(*MODELS, "trl"))
def train(params: Params, progress: Progress = silent) -> Result:
    """A LoRA adapter from rows of the `train` split; the last `replayed` of them are of earlier nights, and `replay_ratio` of what is
    trained."""
    from agent_pipeline.training.adapter import train_adapter
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.config import TrainingConfig
    from agent_pipeline.training.identity import trained_from
    from agent_pipeline.training.templates import load_tokenizer

    base = resolve_base_model(params["base_model"], Path(params["cache"]), params["trust_remote_code"], params.get("base_revision", ""))
    rows = read_rows(params["rows"])
    new = len(rows) - params.get("replayed", 0)
    ours, replayed = rows[:new], rows[new:]
    replay = {"replayed": replayed, "replay_ratio": params["replay_ratio"]} if replayed else {}
    config = TrainingConfig(**params["config"])
    _, template = load_tokenizer(base.path, base.trust_remote_code)
    made_from = trained_from(ours, base, template.jinja, config, **replay) | rows_made_from(rows)
    if replayed:
        made_from["replay"] |= rows_made_from(replayed)
    return build(
        train, params, "sft_adapter", made_from, lambda folder: train_adapter(ours, base, config, folder, progress=progress, **replay)
    )


@task(version=1, libraries=MODELS)
def evaluate(params: Params, progress: Progress = silent) -> Result:
    """Base against adapter on the held-out rows."""
    from agent_pipeline.evaluation.evaluate import evaluate as evaluate_adapter

    rows, adapter = read_rows(params["rows"]), find_artifact(params, params["adapter"])
    base = _base(params, adapter)
    made_from = {"adapter": adapter.identity, "config": params["config"], **rows_made_from(rows)}

    def make(folder: Path) -> dict[str, Any]:
        report = evaluate_adapter(rows, base, adapter.path, **params["config"], progress=progress)
        samples = report.pop("samples")
        (folder / "samples.json").write_text(json.dumps(samples, indent=1, ensure_ascii=False), encoding="utf-8")
        return report

    return build(evaluate, params, "evaluation", made_from, make, [adapter])


@task(version=1, libraries=(*MODELS, "gguf", "xllamacpp"))
def export(params: Params, progress: Progress = silent) -> Result:
    """The adapter merged into its base, as GGUF files that a real llama.cpp has loaded and answered from."""
    from agent_pipeline.export.converter import find_converter
    from agent_pipeline.export.gguf_export import export as export_gguf

    rows, adapter = read_rows(params["rows"]), find_artifact(params, params["adapter"])
    evaluation = find_artifact(params, params["evaluation"])
    if evaluation.manifest["made_from"]["adapter"] != adapter.identity:
        raise DataError(
            f"The evaluation {evaluation.identity[:16]} of {params['partition']} is of another adapter than {adapter.identity[:16]}, which "
            "is to be exported: materialize evaluation again."
        )
    base = _base(params, adapter)
    config = params["config"]
    # Which conversations are compared is a choice by hash, so that it does not move with the order of sessions.
    compared = sorted(rows, key=lambda row: sha256_of(row["row_id"]))[: config["max_conversations"]]
    made_from = {
        "adapter": adapter.identity,
        "adapter_made_from": adapter.manifest["made_from"],
        "config": config,
        "converter_sha256": sha256_file(find_converter(params["llama_cpp"] or None)),
        "compared": rows_made_from(compared),
    }

    def make(folder: Path) -> dict[str, Any]:
        report = export_gguf(
            base,
            adapter.path,
            folder,
            compared,
            config["outtypes"],
            config["max_new_tokens"],
            progress,
            longest_row=adapter.manifest["report"]["longest_row_tokens"],
            llama_cpp_path=params["llama_cpp"] or None,
        )
        return report | {"evaluation": {"identity": evaluation.identity, "differences": evaluation.manifest["report"]["differences"]}}

    return build(export, params, "gguf_export", made_from, make, [adapter, evaluation])


@task(version=1, libraries=(*MODELS, "xllamacpp"))
def episodes(params: Params, progress: Progress = silent) -> Result:
    """The held-out tasks, played in the agent's world by the exported model (or the adapter in memory) and by its base model."""
    from agent_pipeline.compute.playing import gguf_player, memory_player, play_all, tasks_to_play, world_source
    from agent_pipeline.evaluation.episode_report import write

    rows, adapter, config, world = read_rows(params["rows"]), find_artifact(params, params["adapter"]), params["config"], params["world"]
    base = _base(params, adapter)
    tasks = tasks_to_play(world, rows, config["max_tasks"], config["fresh_tasks"], config["fresh_seed"])
    made_from = {
        "adapter": adapter.identity,
        "gguf_export": params["gguf_export"],
        "world": world,
        "world_sha256": world_source(world),
        "config": config,
        "recorded_sha256": sha256_of(params["recorded"]),
        **rows_made_from(rows),
    }
    limits = (config["max_new_tokens"], config["max_length"])
    rounds = (config["max_turns"], config["trials"])

    def make(folder: Path) -> dict[str, Any]:
        others = {"base": memory_player(base, adapter.path, None, *limits)}
        if not params["gguf"]:
            players = {"model": memory_player(base, adapter.path, adapter.path, *limits), **others}
            report, played = play_all(world, tasks, players, params["recorded"], *rounds, progress=progress)
        else:
            with gguf_player(Path(params["gguf"]), *limits, config["temperature"]) as model:
                report, played = play_all(world, tasks, {"model": model, **others}, params["recorded"], *rounds, progress=progress)
        write(folder, report, played)
        return report

    return build(episodes, params, "episodes", made_from, make, [adapter])


def _base(params: Params, adapter: Artifact) -> Any:
    """The base model that the adapter was trained on, at the same revision."""
    from agent_pipeline.training.base_model import resolve_base_model

    trained_on = adapter.manifest["made_from"]
    return resolve_base_model(trained_on["base_model"], Path(params["cache"]), params["trust_remote_code"], trained_on["base_revision"])
