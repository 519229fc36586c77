"""The cache of complete artifacts in the lake: find an artifact by its identity, or build it.

How the lake stores an artifact stands in `storage.artifacts`, and what an artifact contains in the
task that builds it.
"""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from filelock import FileLock, Timeout
from upath import UPath

from agent_pipeline.compute.params import FurtherStepParams, TaskParams
from agent_pipeline.compute.registry import BuiltResult, Task
from agent_pipeline.datasets.verdicts import VerdictCounts, count_verdicts, describe_unverified
from agent_pipeline.errors import DataError
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import ArtifactDetails
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake, read_manifest
from agent_pipeline.training.chain import name_adapter_asset
from agent_pipeline.training.report import SkippedReport, TrainingReport, read_training_report

MODELS = ("torch", "transformers", "peft")
"""Libraries that determine which text a model generates."""

ROW_NAMES = ("row_id", "session_id", "content_sha256")
"""Columns that `name_rows` reads."""

MadeFrom = dict[str, Any]
"""The inputs that an artifact is made from. Their hash is the artifact's identity."""

WriteArtifact = Callable[[Path], dict[str, Any]]
"""A function that writes an artifact's files into a folder. It returns the report for the manifest.
"""


@dataclass(frozen=True)
class Recipe:
    """The recipe of an artifact: its asset, its inputs, and the function that writes its files.

    Attributes:
        asset: The asset that the artifact belongs to.
        made_from: Everything that decides the artifact's content, but for the task's own code.
        write: Writes the files.
        parents: The artifacts that the new one was made from.
    """

    asset: str
    made_from: MadeFrom
    write: WriteArtifact
    parents: Sequence[Artifact] = ()


def build(task: Task[Any], params: TaskParams, recipe: Recipe) -> BuiltResult:
    """Return the artifact of a recipe, either from the lake or newly built.

    The identity is the hash of `recipe.made_from`, the task's version and its libraries. An
    existing artifact is reused, unless the run asks for a fresh one and did not write it itself. If
    the report's `ok` is false, the artifact failed its check and is never reused.

    Raises:
        DataError: another process is building the same artifact now.
    """
    lake, key = params.open_lake(), params.key
    made_from = recipe.made_from | {"by": task.origin()}
    identity = hash_json(made_from)
    if artifact := _find_reusable(lake, params, recipe.asset, identity):
        return _describe(artifact, reused=True)
    folder = lake.building(recipe.asset, key, identity)
    lock = FileLock(folder.with_name(f"{folder.name}.lock"), timeout=0)
    try:
        with lock:
            # Another process may have finished it before the lock was free.
            if artifact := _find_reusable(lake, params, recipe.asset, identity):
                return _describe(artifact, reused=True)
            _begin(folder, params, identity, made_from)
            report = recipe.write(folder)
            artifact = lake.finish(
                recipe.asset,
                key,
                identity,
                folder,
                made_from,
                report,
                ArtifactDetails(
                    tables=params.tables,
                    parents=[parent.identity for parent in recipe.parents],
                    passed=report.get("ok", True),
                    fresh=params.fresh,
                ),
            )
            Path(lock.lock_file).unlink(missing_ok=True)
            return _describe(artifact, reused=False)
    except Timeout as error:
        raise DataError(
            f"Another process is building the same {recipe.asset} of {key}: wait until that run "
            "ends, or cancel it."
        ) from error


def build_further_step(
    task: Task[Any],
    params: FurtherStepParams,
    previous: Artifact,
    made_from: MadeFrom,
    write: Callable[[Path], TrainingReport],
    verdicts: VerdictCounts,
) -> BuiltResult:
    """Build the adapter of a training step after supervised fine-tuning, or find it in the lake.

    If nothing can be trained, the artifact contains no weights, and its report gives the reason.
    The report counts the verdicts of all steps of the chain, because an adapter keeps what it
    learned from unverified sessions.

    Args:
        task: The task that trains.
        params: The parameters of the task.
        previous: The adapter that the step continues from.
        made_from: Everything that decides the adapter, but for the verdicts.
        write: Trains, and writes the adapter.
        verdicts: The verdicts of this step's rows.
    """
    from agent_pipeline.training.further_steps import NothingTrained

    previous_report = read_training_report(previous)
    if previous_report.verdicts:
        verdicts = count_verdicts(verdicts["by"], previous_report.verdicts)

    def write_or_skip(folder: Path) -> dict[str, object]:
        try:
            report = write(folder)
        except NothingTrained as reason:
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            skipped = SkippedReport(skipped=str(reason), rows=reason.counts)
            return dict(msgspec.to_builtins(skipped))
        # An export's context must hold the rows of every step.
        longest = max(report.longest_row_tokens, previous_report.longest_row_tokens)
        whole = msgspec.structs.replace(report, longest_row_tokens=longest, verdicts=verdicts)
        return whole.to_json()

    recipe = Recipe(
        name_adapter_asset(params.method),
        made_from | describe_unverified(verdicts),
        write_or_skip,
        [previous],
    )
    return build(task, params, recipe)


def _find_reusable(lake: Lake, params: TaskParams, asset: str, identity: str) -> Artifact | None:
    """Return the artifact if it exists, is undamaged, and is recent enough for the run."""
    artifact = lake.find(asset, params.key, identity)
    if artifact is None:
        return None
    if params.fresh and artifact.manifest.get("fresh") != params.fresh:
        return None
    return None if lake.damaged_files(artifact) else artifact


def _begin(folder: Path, params: TaskParams, identity: str, made_from: MadeFrom) -> None:
    """Prepare the folder of a new artifact, and record its sessions there for `forget`.

    A folder that an earlier try of the same run left is kept, so that a training run can resume.
    """
    fresh = params.fresh or None
    manifest = read_manifest(UPath(folder / MANIFEST))
    if fresh and (manifest is None or manifest.get("fresh") != fresh):
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)
    begun = {
        "identity": identity,
        "partition": params.partition,
        "made_from": made_from,
        "fresh": fresh,
    }
    (folder / MANIFEST).write_text(json.dumps(begun), encoding="utf-8")


def _describe(artifact: Artifact, reused: bool) -> BuiltResult:
    """Describe an artifact as the result of a task."""
    return {"identity": artifact.identity, "reused": reused, "report": artifact.manifest["report"]}
