"""A complete artifact in the lake: found by its identity, or built under a lock."""

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from upath import UPath

from agent_pipeline.compute.registry import Params, Result, Task
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.datasets.multi_task import MIXED_TABLE as MIXED
from agent_pipeline.datasets.verdicts import VerdictCounts, count_verdicts, describe_unverified
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.models.base_model import BaseModel, resolve_base_model
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.selection.tables import dataset_rows
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake, read_manifest
from agent_pipeline.training.chain import SKIPPED, adapter_of

MODELS = ("torch", "transformers", "peft")
"""The libraries that decide what a model says."""

ROW_NAMES = ("row_id", "session_id", "content_sha256")
"""The columns that `rows_made_from` reads."""


def asked_lake(params: Params) -> tuple[Lake, PartitionKey]:
    """The lake of the process that asked for the task, and the partition that it asked for."""
    return Lake(params["lake"], Path(params["cache"]), params.get("lake_options")), parse_key(
        params["partition"]
    )


def asked_base(params: Params) -> BaseModel:
    """The base model that the parameters name."""
    revision = params.get("base_revision", "")
    return resolve_base_model(
        params["base_model"], Path(params["cache"]), params["trust_remote_code"], revision
    )


def asked_of(settings: Settings, key: PartitionKey) -> Params:
    """What every task needs to know of the settings; the counterpart of `asked_lake`. It names no path but the lake's: `on_this_machine`
    knows the worker's own."""
    return {
        "partition": str(key),
        "lake": settings.lake_url,
        "lake_options": settings.lake_options,
        "trust_remote_code": settings.trust_remote_code,
        "split": settings.split.shares,
        "leaks": settings.split.leaks,
        "surrogates": settings.redaction.surrogates,
    }


def on_this_machine(params: Params) -> Params:
    """Parameters with what each machine has of its own, by its own settings: the cache, and a checkout of llama.cpp.

    Raises:
        SettingsError: a setting of this machine is wrong.
    """
    settings = load_settings()
    return {**params, "cache": str(settings.cache_path), "llama_cpp": settings.llama_cpp_path}


def asked_rows(params: Params, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of the split `train` that the task is about: the partition's own, or with `mix` those of several
    agents. `columns`: only these."""
    lake, key = asked_lake(params)
    where: dict[str, Any] = {"key": None, "dataset": MIXED} if params.get("mix") else {"key": key}
    return dataset_rows(lake, **where, columns=columns)


def seen_by_models(params: Params, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of a table as models are trained on them and asked about them: with surrogates for pseudonyms, where the settings say so."""
    return list(with_surrogates(rows) if params.get("surrogates") else rows)


def find_artifact(params: Params, reference: dict[str, str]) -> Artifact:
    """An artifact by its `asset` and `identity`.

    Raises:
        DataError: it is gone, or a file of it is damaged.
    """
    lake, key = asked_lake(params)
    artifact = lake.find(reference["asset"], key, reference["identity"])
    if artifact is None:
        raise DataError(
            f"The {reference['asset']} {reference['identity'][:16]} of {params['partition']} is gone: materialize it again."
        )
    return lake.verified(artifact)


def build(
    task: Task,
    params: Params,
    asset: str,
    made_from: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
    parents: Sequence[Artifact] = (),
) -> Result:
    """The artifact with this origin: found, or made by `make(folder)`, whose report joins the manifest.

    The identity is the hash of `made_from` and of the task's version and libraries. An artifact that is there already is reused, unless
    the run asks for a fresh one (`fresh` is its name) and has not made it. A report whose `ok` is false is of an artifact that failed its
    check: it is never reused.

    Raises:
        DataError: another process is building the same artifact now.
    """
    lake, key = asked_lake(params)
    made_from = made_from | {"by": task.origin()}
    identity, fresh = hash_json(made_from), params.get("fresh")

    def found() -> Artifact | None:
        artifact = lake.find(asset, key, identity)
        if artifact is None or (fresh and artifact.manifest.get("fresh") != fresh):
            return None
        return None if lake.damaged_files(artifact) else artifact  # what is damaged is made again

    if artifact := found():
        return _result(artifact, reused=True)
    building = lake.building(asset, key, identity)
    lock = FileLock(building.with_name(f"{building.name}.lock"), timeout=0)
    try:
        with lock:
            if artifact := found():  # another process finished it meanwhile
                return _result(artifact, reused=True)
            if fresh and (read_manifest(UPath(building / MANIFEST)) or {}).get("fresh") != fresh:
                shutil.rmtree(building, ignore_errors=True)
            building.mkdir(exist_ok=True)
            # Until the artifact is complete, `forget` must know which sessions the half-made one holds.
            begun = {
                "identity": identity,
                "partition": params["partition"],
                "made_from": made_from,
                "fresh": fresh,
            }
            (building / MANIFEST).write_text(json.dumps(begun), encoding="utf-8")
            report = make(building)
            artifact = lake.finish(
                asset,
                key,
                identity,
                building,
                made_from,
                report,
                params.get("tables"),
                parents=[parent.identity for parent in parents],
                passed=report.get("ok", True),
                fresh=fresh or "",
            )
            Path(lock.lock_file).unlink(missing_ok=True)
            return _result(artifact, reused=False)
    except Timeout as error:
        raise DataError(
            f"Another process is building the same {asset} of {key}: wait for its run to end, or cancel it."
        ) from error


def build_further(
    task: Task,
    params: Params,
    reference: Artifact,
    made_from: dict[str, Any],
    make: Callable[[Path], dict[str, Any]],
    verdicts: VerdictCounts,
) -> Result:
    """The adapter of a step after imitation; where nothing can be trained, the artifact holds the reason alone.

    The report counts the `verdicts` of all steps of the chain: an adapter keeps what it learned from unverified sessions.
    """
    from agent_pipeline.training.further_steps import NothingTrained

    if before := reference.manifest["report"].get("verdicts"):
        verdicts = count_verdicts(verdicts["by"], before)

    def make_or_skip(folder: Path) -> dict[str, Any]:
        try:
            report = make(folder)
        except NothingTrained as reason:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            return {SKIPPED: str(reason), "rows": reason.counts}
        # An export's context must hold the rows of both trainings.
        longest = max(
            report["longest_row_tokens"], reference.manifest["report"]["longest_row_tokens"]
        )
        return report | {"longest_row_tokens": longest, "verdicts": verdicts}

    return build(
        task,
        params,
        adapter_of(params["method"]),
        made_from | describe_unverified(verdicts),
        make_or_skip,
        [reference],
    )


def _result(artifact: Artifact, reused: bool) -> Result:
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}
