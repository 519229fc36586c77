"""Declarations that all assets share: group, owner, tags, version, storage, and checks."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import dagster as dg

from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.run_config import config_fields
from agent_pipeline.options import Options

OWNER = "team:agent-pipeline"
CODE_VERSION = "8"
"""Version of the code. Increase it if the meaning of a stored table or artifact changes, so that
older assets show as stale.

Version 8: the rows of the split `test` moved from `sft_dataset` to `heldout_dataset`.
"""

TABLES, ARTIFACTS = "tables", "artifacts"

GPU, CPU_HEAVY = "gpu", "cpu-heavy"
"""Dagster pools for tasks that train or generate, and for tasks that convert and compress models.
"""

TABLE_STAGES = ("traces", "datasets")
"""Stages whose assets take only seconds, so that the sensor `fresh_tables` may update them at any
time.
"""

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
"""Maximum age of an asset's newest partition. Dagster does not check each partition separately."""


def asset_options(
    stage: str,
    kinds: set[str],
    io_manager: str = TABLES,
    options: type[Options] | None = None,
    partitions: dg.PartitionsDefinition | None = AGENTS,
    checks: Sequence[dg.AssetCheckSpec] = (),
    pool: str | None = None,
) -> dict[str, Any]:
    """Return the Dagster options of an asset.

    Args:
        stage: The group of the asset.
        kinds: The kinds that the UI shows.
        io_manager: How the asset is stored.
        options: The group of options of the asset's run config.
        partitions: The partitions.
        checks: The checks that the asset makes itself.
        pool: GPU or CPU_HEAVY for a heavy asset.
    """
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


def multi_asset_options(
    name: str,
    stage: str,
    kinds: set[str],
    descriptions: Mapping[str, str],
    options: type[Options],
    checks: Sequence[dg.AssetCheckSpec],
) -> dict[str, Any]:
    """Return the Dagster options of several table assets that are always written in one pass.

    Args:
        name: The name of the pass, by which a run sets its options.
        stage: The stage of the assets.
        kinds: The kinds of the assets.
        descriptions: The description of each asset, by its name.
        options: The options of the pass.
        checks: The checks that the pass makes itself.
    """
    common = asset_options(stage, kinds, options=options)
    shared_by_outputs = (
        "group_name",
        "owners",
        "kinds",
        "tags",
        "code_version",
        "freshness_policy",
        "automation_condition",
        "io_manager_key",
    )
    output_options = {option: common[option] for option in shared_by_outputs}
    return {
        "name": name,
        "outs": {
            asset: dg.AssetOut(dagster_type=dg.Any, description=text, **output_options)
            for asset, text in descriptions.items()
        },
        "partitions_def": common["partitions_def"],
        "config_schema": common["config_schema"],
        "check_specs": checks,
        "can_subset": False,
    }


def own_check(
    asset: str,
    name: str,
    description: str,
    blocking: bool = False,
    partitions: dg.PartitionsDefinition | None = AGENTS,
) -> dg.AssetCheckSpec:
    """Return the spec of a check that an asset runs itself.

    A check without partitions would block all agents if one agent fails it.

    Args:
        asset: The asset.
        name: The name of the check.
        description: When the check passes, and what to do if it fails.
        blocking: Whether a failure stops the assets that depend on this one.
        partitions: The partitions.
    """
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
    """Return the result of a check with a description.

    Every check uses this function, so that no result is without a description.

    Args:
        passed: Whether the check passed.
        why: The reason, for the shell, the UI and notifications. If it is empty, the figures of
            the metadata are the description.
        metadata: The figures of the check.
        check: The name of a check that an asset makes itself.
        blocks: Whether a failure is an error; otherwise it is a warning.
    """
    if not why:
        figures = [
            f"{name.replace('_', ' ')}: {value}"
            for name, value in (metadata or {}).items()
            if isinstance(value, str | int | float) and value != ""
        ]
        why = ", ".join(figures) or ("no findings" if passed else "see the check in the UI")
    severity = dg.AssetCheckSeverity.ERROR if blocks else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(
        passed=passed, check_name=check, severity=severity, description=why, metadata=metadata or {}
    )


def warning(
    check: str, passed: bool, why: str | None, metadata: Mapping[str, object] | None = None
) -> dg.AssetCheckResult:
    """Return the result of a check that an asset runs itself and that does not stop the run."""
    return check_result(passed, why, metadata, check, blocks=False)


def version(sha256: str) -> dg.DataVersion:
    """Return the data version for a sha256, so that equal bytes have the same version."""
    return dg.DataVersion(sha256[:16])
