"""The worker as a process of this machine, through Dagster Pipes."""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
from dagster._core.errors import DagsterPipesExecutionError
from filelock import FileLock, Timeout

from agent_pipeline.errors import WorkerError

COMMAND = [sys.executable, "-m", "agent_pipeline.compute.worker"]
_ROWS = "agent-pipeline-rows-"
_IN_USE = "in-use.lock"
"""Held by the run whose rows a folder holds: a worker reads them only when it is its turn."""
_STALE_SECONDS = 24 * 3600


def launch(
    context: dg.AssetExecutionContext, pipes: dg.PipesSubprocessClient, task: str, rows: pa.Table, params: dict[str, Any]
) -> dict[str, Any]:
    """The result of a task of `agent_pipeline.compute.tasks` on rows, which it reads from a temporary file.

    Raises:
        WorkerError: the task ended with a sentence for the user, or its process died.
    """
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_ROWS) as folder, FileLock(Path(folder) / _IN_USE):
        staged = Path(folder) / "rows.parquet"
        pq.write_table(rows, staged)
        context.log.info(f"starting a process to {task} with {rows.num_rows:,} rows")
        extras = {"task": task, "params": params | {"rows": str(staged)}}
        try:
            invocation = pipes.run(context=context, command=COMMAND, extras=extras)
        except DagsterPipesExecutionError as error:
            raise WorkerError(
                f"The {task} process died ({error}): if the machine ran out of memory, lower batch_size or max_length; "
                "a training that was killed goes on from its last checkpoint when it is materialized again."
            ) from error
    result: dict[str, Any] = list(invocation.get_custom_messages())[-1]
    if "error" in result:
        raise WorkerError(result["error"])
    return result


def _sweep(folder: Path) -> None:
    """Remove the rows that killed runs left in the temporary folder: they hold conversations. Those of a run that goes on for days stay."""
    for left in folder.glob(f"{_ROWS}*"):
        try:
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                with FileLock(left / _IN_USE, timeout=0):
                    shutil.rmtree(left)
        except (OSError, Timeout):  # another user's, gone already, or in use
            continue
