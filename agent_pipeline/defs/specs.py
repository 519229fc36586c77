"""What all assets say of themselves in the same way: group, owner, kinds, tags, code version, partitions, storage, checks."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.run_config import config_fields
from agent_pipeline.options import Options

OWNER = "team:agent-pipeline"
CODE_VERSION = "7"
"""Raise it when the meaning of a stored table or artifact changes: assets of an older version then show as stale."""

TABLES, ARTIFACTS = "tables", "artifacts"

GPU, CPU_HEAVY = "gpu", "cpu-heavy"
"""Pools of what trains or generates, and of what converts and compresses models."""

TABLE_STAGES = ("traces", "datasets")
"""Stages whose assets cost seconds: the sensor `fresh_tables` may make them as soon as a store changes."""

_DATA = dg.FreshnessPolicy.time_window(fail_window=timedelta(days=7), warn_window=timedelta(days=2))
_MODELS = dg.FreshnessPolicy.time_window(
    fail_window=timedelta(days=30), warn_window=timedelta(days=8)
)
FRESHNESS = {
    "traces": _DATA,
    "datasets": _DATA,
    "coresets": _MODELS,
    "models": _MODELS,
    "exports": _MODELS,
}
"""How old the newest partition of an asset may be: Dagster judges an asset, not each of its partitions."""


def asset_options(
    stage: str,
    kinds: set[str],
    io_manager: str = TABLES,
    options: type[Options] | None = None,
    partitions: dg.PartitionsDefinition | None = AGENTS,
    checks: Sequence[dg.AssetCheckSpec] = (),
    pool: str | None = None,
) -> dict[str, Any]:
    """The options of an asset of a stage; `checks` are those that it makes itself, `pool` is GPU or CPU_HEAVY for a heavy one."""
    return {
        "partitions_def": partitions,
        "group_name": stage,
        "owners": [OWNER],
        "kinds": kinds,
        "tags": {"stage": stage},
        "code_version": CODE_VERSION,
        "pool": pool,
        "freshness_policy": FRESHNESS[stage],
        "automation_condition": dg.AutomationCondition.eager()
        if stage in TABLE_STAGES and partitions
        else None,
        "io_manager_key": io_manager,
        "config_schema": config_fields(options) if options else None,
        # Dagster takes an asset with a check, and without a type, for one that gives nothing.
        **({"check_specs": checks, "dagster_type": dg.Any} if checks else {}),
    }


def own_check(
    asset: str,
    name: str,
    description: str,
    blocking: bool = False,
    partitions: dg.PartitionsDefinition | None = AGENTS,
) -> dg.AssetCheckSpec:
    """A check that an asset makes itself. Without the asset's partitions, one agent's failure would block all agents."""
    return dg.AssetCheckSpec(
        name, asset=asset, partitions_def=partitions, blocking=blocking, description=description
    )


def check_result(
    passed: bool,
    why: str | None,
    metadata: Mapping[str, Any] | None = None,
    check: str | None = None,
    blocks: bool = True,
) -> dg.AssetCheckResult:
    """Return the result of a check. Every check makes its result here, so that none fails without a reason.

    Args:
        why: the reason, which the shell, the UI and notifications show. If it is empty and the check fails, the figures of the metadata
            are the reason.
        check: the name of a check that an asset makes itself.
        blocks: whether a failure is an error; otherwise it is a warning.
    """
    if not passed and not why:
        figures = {
            name: value
            for name, value in (metadata or {}).items()
            if isinstance(value, str | int | float)
        }
        why = (
            ", ".join(f"{name.replace('_', ' ')}: {value}" for name, value in figures.items())
            or "see the check in the UI"
        )
    severity = dg.AssetCheckSeverity.ERROR if blocks else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(
        passed=passed, check_name=check, severity=severity, description=why, metadata=metadata or {}
    )


def warning(
    check: str, passed: bool, why: str | None, metadata: Mapping[str, Any] | None = None
) -> dg.AssetCheckResult:
    """Return the result of a check that an asset makes itself, and that stops nothing."""
    return check_result(passed, why, metadata, check, blocks=False)


def version(sha256: str) -> dg.DataVersion:
    """The data version of what has this sha256: two materializations with the same bytes are the same data."""
    return dg.DataVersion(sha256[:16])
