"""Run a heavy task in a process of its own and bring back its result, its progress and its mistakes."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dagster as dg
import pyarrow.parquet as pq

from agent_pipeline.datasets.sft import SFT
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import sha256_file


def run_worker(
    context: dg.AssetExecutionContext,
    pipes: dg.PipesSubprocessClient,
    workspace: Workspace,
    task: str,
    rows: list[dict[str, Any]],
    params: dict[str, Any],
) -> dict[str, Any]:
    """The result of a task of `agent_pipeline.compute.tasks` on SFT rows.

    Raises:
        dg.Failure: the task ended with a sentence for the user, or its process died.
    """
    settings = workspace.settings()
    with TemporaryDirectory(prefix="agent-pipeline-") as folder:
        staged = Path(folder) / "rows.parquet"
        pq.write_table(to_table(rows, SFT), staged)
        given = {
            "rows": str(staged),
            "partition": context.partition_key,
            "lake": settings.lake_url,
            "cache": str(settings.cache_path),
            "trust_remote_code": settings.trust_remote_code,
            "llama_cpp": settings.llama_cpp,
            "tables": _versions(context, workspace),
        }
        context.log.info(f"starting a process to {task} with {len(rows):,} rows")
        command = [sys.executable, "-m", "agent_pipeline.compute.worker"]
        try:
            invocation = pipes.run(context=context, command=command, extras={"task": task, "params": given | params})
        except dg.DagsterExecutionInterruptedError:
            raise
        except dg.DagsterError as error:
            raise dg.Failure(
                f"The {task} process died ({error}): if the machine ran out of memory, lower batch_size or max_length; "
                "a training that was killed goes on from its last checkpoint when it is materialized again."
            ) from error
    result: dict[str, Any] = list(invocation.get_custom_messages())[-1]
    if "error" in result:
        raise dg.Failure(result["error"], allow_retries=False)
    return result


def _versions(context: dg.AssetExecutionContext, workspace: Workspace) -> dict[str, str]:
    """The data versions (sha256) of the tables that an asset is made from."""
    lake, key = workspace.open_lake(), agent_key(context)
    names = sorted(each.path[-1] for each in context.assets_def.asset_deps[context.asset_key])
    return {name: sha256_file(lake.table(name, key)) for name in names if lake.has(name, key)}
