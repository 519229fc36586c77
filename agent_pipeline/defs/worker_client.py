"""What an asset hands to the worker process: its rows, the settings in force, the versions of its tables."""

from collections.abc import Iterable
from typing import Any

import dagster as dg

from agent_pipeline.compute.launchers.subprocess import launch
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.filesystem import sha256_file

FRESH_TAG = "agent_pipeline/fresh"
"""A run with this tag (`true`) makes its models anew, also those that are there already."""


def run_worker(
    context: dg.AssetExecutionContext,
    pipes: dg.PipesSubprocessClient,
    workspace: Workspace,
    task: str,
    rows: Iterable[dict[str, Any]],
    params: dict[str, Any],
) -> dict[str, Any]:
    """The result of a task of `agent_pipeline.compute.tasks` on SFT rows.

    Raises:
        WorkerError: the task ended with a sentence for the user, or its process died.
    """
    settings = workspace.settings()
    given = {
        "partition": context.partition_key,
        "lake": settings.lake_url,
        "lake_options": settings.lake_options,
        "cache": str(settings.cache_path),
        "trust_remote_code": settings.trust_remote_code,
        "llama_cpp": settings.llama_cpp_path,
        "fresh": context.run.tags.get(FRESH_TAG) == "true",
        "tables": _versions(context, workspace),
    }
    return launch(context, pipes, task, to_table(rows, SFT), given | params)


def _versions(context: dg.AssetExecutionContext, workspace: Workspace) -> dict[str, str]:
    """The data versions (sha256) of the tables that an asset is made from; the run holds the partition, so they are those it loaded."""
    lake, key = workspace.open_lake(), agent_key(context)
    names = sorted(each.path[-1] for each in context.assets_def.asset_deps[context.asset_key])
    return {name: sha256_file(lake.table(name, key)) for name in names if lake.has(name, key)}
