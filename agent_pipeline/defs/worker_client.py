"""Requests of assets to the worker process, and the materialization of the resulting artifacts."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import dagster as dg

from agent_pipeline.compute.launchers.launcher import launch
from agent_pipeline.compute.launchers.places import launcher
from agent_pipeline.compute.launchers.subprocess import Subprocess
from agent_pipeline.compute.params import common_values
from agent_pipeline.compute.registry import BuiltResult
from agent_pipeline.defs.metadata import page_link
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import version
from agent_pipeline.errors import DataError, name_asset_to_select
from agent_pipeline.storage.filesystem import sha256_file
from agent_pipeline.storage.lake import Artifact

FRESH_TAG = "agent_pipeline/fresh"
"""Tag of a run (`true`) that builds models again even if they already exist."""


def run_worker(
    context: dg.AssetExecutionContext,
    pipes: dg.PipesSubprocessClient,
    workspace: Workspace,
    task: str,
    params: dict[str, Any],
    group: str = "",
    tables: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Run a task of `agent_pipeline.compute.tasks` on the run's partition, and return its result.

    Args:
        context: The run of the asset.
        pipes: The client that starts processes of this machine.
        workspace: The settings and the lake.
        task: The name of the task.
        params: The parameters of the task, without those that every task has.
        group: The group of options that chooses where the task runs; by default the asset's name.
        tables: The tables that the task reads; by default those that the asset depends on.

    Raises:
        WorkerError: the task ended with a sentence for the user, or its process died.
    """
    settings, key = workspace.settings(), agent_key(context)
    chosen = launcher(settings, group or context.asset_key.path[-1], key, pipes)
    extras = {
        **common_values(settings, key),
        # A step or a run that is tried again goes on with what its first try made.
        "fresh": (context.run.root_run_id or context.run.run_id)
        if context.run.tags.get(FRESH_TAG) == "true"
        else "",
        "tables": _versions(context, workspace, tables),
        "at_once": _at_once(context)
        if isinstance(chosen, Subprocess)
        else 0,  # clusters have queues of their own
    }
    return launch(context, chosen, task, extras | params)


def run_builder(
    context: dg.AssetExecutionContext,
    pipes: dg.PipesSubprocessClient,
    workspace: Workspace,
    task: str,
    params: dict[str, Any],
    tables: Sequence[str] | None = None,
) -> BuiltResult:
    """Run a task that builds an artifact. The arguments and errors are those of `run_worker`."""
    result = run_worker(context, pipes, workspace, task, params, tables=tables)
    return cast(BuiltResult, result)


def built(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    result: BuiltResult,
    metadata: dict[str, Any],
    checks: Sequence[dg.AssetCheckResult],
    pages: Mapping[str, str] | None = None,
) -> dg.MaterializeResult:
    """Return the materialization of an artifact that the worker process built.

    Args:
        context: The run of the asset.
        workspace: The lake.
        result: The result of the worker.
        metadata: Further metadata.
        checks: The results of the asset's own checks.
        pages: Files of the artifact to look at, by what they show.

    Raises:
        DataError: the artifact is gone.
    """
    artifact = find_built(context, workspace, context.asset_key.path[-1], result["identity"])
    shown: dict[str, dg.MetadataValue] = {
        what: dg.MetadataValue.path(str(artifact.path / file))
        for what, file in (pages or {}).items()
    }
    asset = context.asset_key.path[-1]
    if asset in ("evaluation", "episodes"):  # the assets that have a page of an agent
        shown |= page_link(workspace.settings().pages_url, context.partition_key, asset)
    return dg.MaterializeResult(
        value=artifact,
        data_version=version(result["identity"]),
        metadata={**metadata, **shown, "reused": result["reused"]},
        check_results=list(checks),
    )


def _at_once(context: dg.AssetExecutionContext) -> int:
    """Return how many tasks of the asset's pool may run at the same time.

    That is the pool's limit in the UI, or the default of dagster.yaml, or 1.
    """
    storage = context.instance.event_log_storage
    limits = (
        {pool.name: pool.limit for pool in storage.get_pool_limits()}
        if storage.supports_global_concurrency_limits
        else {}
    )
    result: int = max(
        1, limits.get(context.op_def.pool or "", storage.get_pool_config().default_pool_limit or 1)
    )
    return result


def find_built(
    context: dg.AssetExecutionContext, workspace: Workspace, asset: str, identity: str
) -> Artifact:
    """Return the artifact that the worker process built.

    Raises:
        DataError: the artifact is gone.
    """
    artifact = workspace.open_lake().find(asset, agent_key(context), identity)
    if artifact is None:
        raise DataError(
            f"The {asset} of {context.partition_key} was deleted after it was built: materialize "
            f"`{name_asset_to_select(asset)}` again."
        )
    return artifact


def _versions(
    context: dg.AssetExecutionContext, workspace: Workspace, tables: Sequence[str] | None
) -> dict[str, str]:
    """Return the data version (sha256) of each table that a task reads.

    The run holds the partition, so these are the versions that the task loads.
    """
    lake, key = workspace.open_lake(), agent_key(context)
    if tables is None:
        tables = [asset.path[-1] for asset in context.assets_def.asset_deps[context.asset_key]]
    names = sorted(tables)
    return {name: sha256_file(lake.table(name, key)) for name in names if lake.has(name, key)}
