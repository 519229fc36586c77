"""The heavy steps, from rows in a file to a complete artifact: what the worker process runs.

Each builds something whose identity is the hash of all that it is made from. The same identity is there already: it is reused, not
made again. Parameters and results are JSON, so that they can cross a process boundary; a notebook may call these as well.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from filelock import FileLock, Timeout

from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.keys import parse_key
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.sessions.tables import stored_batches, to_rows
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake

Params = dict[str, Any]
Made = dict[str, Any]

TASKS: dict[str, Callable[[Params, Progress], Made]] = {}


def task(function: Callable[[Params, Progress], Made]) -> Callable[[Params, Progress], Made]:
    """Register a step under its name."""
    TASKS[function.__name__] = function
    return function


def read_rows(path: str) -> list[dict[str, Any]]:
    """The rows that the parent process staged for this one."""
    return list(to_rows(stored_batches(pq.ParquetFile(path))))


def rows_made_from(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a manifest says about rows: their number, a hash, and every session's id."""
    names = sorted((row["row_id"], row["content_sha256"]) for row in rows)
    return {"rows": len(rows), "rows_sha256": sha256_of(names), "sessions": sorted({row["session_id"] for row in rows})}


def build(
    lake: Lake, params: Params, asset: str, made_from: dict[str, Any], make: Callable[[Path], dict[str, Any]]
) -> tuple[Artifact, bool]:
    """The artifact with this origin: found, or made by `make(folder)`, whose report joins the manifest; and whether it was found.

    Raises:
        DataError: another process is building the same artifact now.
    """
    key, identity = parse_key(params["partition"]), sha256_of(made_from)
    if found := lake.find(asset, key, identity):
        return found, True
    building = lake.building(asset, key, identity)
    # Until the manifest is whole: of what a half-made artifact is made must be known to whoever forgets a session of it.
    begun = {"identity": identity, "partition": params["partition"], "made_from": made_from}
    (building / MANIFEST).write_text(json.dumps(begun), encoding="utf-8")
    lock = FileLock(building.with_name(f"{building.name}.lock"), timeout=0)
    try:
        with lock:
            artifact = lake.finish(asset, key, identity, building, made_from, make(building), params.get("tables"))
            Path(lock.lock_file).unlink(missing_ok=True)
            return artifact, False
    except Timeout as error:
        raise DataError(f"Another process is building the same {asset} of {key}: wait for its run to end, or cancel it.") from error


@task
def losses(params: Params, progress: Progress = silent) -> Made:
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


@task
def embed(params: Params, progress: Progress = silent) -> Made:
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
    kept = KeptEmbeddings(_lake(params), parse_key(params["partition"]), encoder=model)
    kept([conversation_text(row["messages"]) for row in read_rows(params["rows"])])
    return {"origin": model.origin, "computed": kept.counts["computed"], "kept": kept.counts["kept"]}


@task
def train(params: Params, progress: Progress = silent) -> Made:
    """A LoRA adapter from rows of the `train` split; the last `replayed` of them are of earlier nights, and `replay_ratio` of what is
    trained."""
    from agent_pipeline.training.adapter import train_adapter
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.config import TrainingConfig
    from agent_pipeline.training.templates import load_tokenizer

    base = resolve_base_model(params["base_model"], Path(params["cache"]), params["trust_remote_code"])
    rows = read_rows(params["rows"])
    tonight = len(rows) - params.get("replayed", 0)
    ours, replayed = rows[:tonight], rows[tonight:]
    replay = {"replayed": replayed, "replay_ratio": params["replay_ratio"]} if replayed else {}
    config = TrainingConfig(**params["config"])
    _, template = load_tokenizer(base.path, base.trust_remote_code)
    made_from = {
        "base_model": base.name,
        "base_revision": base.revision,
        "template_sha256": sha256_of(template.jinja),
        "config": config.identity(),
        **rows_made_from(rows),
        **({"replay": rows_made_from(replayed) | {"ratio": params["replay_ratio"]}} if replayed else {}),
    }
    artifact, reused = build(
        _lake(params),
        params,
        "sft_adapter",
        made_from,
        lambda folder: train_adapter(ours, base, config, folder, progress=progress, **replay),
    )
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}


@task
def evaluate(params: Params, progress: Progress = silent) -> Made:
    """Base against adapter on the held-out rows."""
    from agent_pipeline.evaluation.evaluate import evaluate as evaluate_adapter

    rows, adapter = read_rows(params["rows"]), _adapter(params)
    base = _base(params, adapter)
    made_from = {"adapter": adapter.identity, "config": params["config"], **rows_made_from(rows)}

    def make(folder: Path) -> dict[str, Any]:
        report = evaluate_adapter(rows, base, adapter.path, **params["config"], progress=progress)
        samples = report.pop("samples")
        (folder / "samples.json").write_text(json.dumps(samples, indent=1, ensure_ascii=False), encoding="utf-8")
        return report

    artifact, reused = build(_lake(params), params, "evaluation", made_from, make)
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}


@task
def export(params: Params, progress: Progress = silent) -> Made:
    """The adapter merged into its base, as GGUF files that a real llama.cpp has loaded and answered from."""
    from agent_pipeline.export.gguf_export import export as export_gguf

    rows, adapter = read_rows(params["rows"]), _adapter(params)
    base = _base(params, adapter)
    config = params["config"]
    # Which conversations are compared is a choice by hash, so that it does not move with the order of sessions.
    compared = sorted(rows, key=lambda row: sha256_of(row["row_id"]))[: config["max_conversations"]]
    made_from = {
        "adapter": adapter.identity,
        "adapter_made_from": adapter.manifest["made_from"],
        "evaluation": params["evaluation"],
        "config": config,
        "compared": rows_made_from(compared),
    }

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
            llama_cpp_path=params["llama_cpp"] or None,
        )

    artifact, reused = build(_lake(params), params, "gguf_export", made_from, make)
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}


@task
def episodes(params: Params, progress: Progress = silent) -> Made:
    """The held-out tasks, played in the agent's world by the exported model (or the adapter in memory) and by its base model."""
    from agent_pipeline.compute.playing import gguf_player, memory_player, play_all, tasks_to_play, world_source
    from agent_pipeline.evaluation.episode_report import write

    rows, adapter, config, world = read_rows(params["rows"]), _adapter(params), params["config"], params["world"]
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

    artifact, reused = build(_lake(params), params, "episodes", made_from, make)
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}


def _lake(params: Params) -> Lake:
    return Lake(params["lake"], Path(params["cache"]))


def _adapter(params: Params) -> Artifact:
    adapter = _lake(params).find("sft_adapter", parse_key(params["partition"]), params["adapter"])
    if adapter is None:
        raise DataError(f"The adapter {params['adapter'][:16]} of {params['partition']} is gone: materialize sft_adapter again.")
    return adapter


def _base(params: Params, adapter: Artifact) -> Any:
    """The base model that the adapter was trained on, at the same revision."""
    from agent_pipeline.training.base_model import resolve_base_model

    trained_on = adapter.manifest["made_from"]
    base = resolve_base_model(trained_on["base_model"], Path(params["cache"]), params["trust_remote_code"])
    if base.revision != trained_on["base_revision"]:
        raise ModelError(
            f"The base model {base.name} is now at {base.revision}, but the adapter was trained on {trained_on['base_revision']}: "
            "materialize sft_adapter again."
        )
    return base
