"""The code location, which contains everything that the modules of `defs` define.

That includes an asset that `dg scaffold defs` adds. Dagster loads `defs`. Tests and notebooks call
`build_defs` to use other resources.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg

import agent_pipeline.defs
from agent_pipeline._compat.dagster import is_code_location_starting
from agent_pipeline._compat.dagster_prefix import Renaming
from agent_pipeline.compute.launchers.subprocess import WholeMessages
from agent_pipeline.config.checks import problems
from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.asset_keys import OWN_TAG, add_prefix, key_prefix
from agent_pipeline.defs.automation.nightly import cron_problems
from agent_pipeline.defs.columns import with_columns
from agent_pipeline.defs.console import console
from agent_pipeline.defs.io_managers.artifacts import ArtifactIOManager
from agent_pipeline.defs.io_managers.parquet import ParquetIOManager
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import ARTIFACTS, TABLES
from agent_pipeline.errors import SettingsError


def build_defs(
    resource_overrides: Mapping[str, object] | None = None, *, standalone: bool = True
) -> dg.Definitions:
    """Return all Dagster objects of the package `defs`.

    With the setting `key_prefix`, the keys of the assets and the names of all ops, jobs,
    schedules, sensors and resources begin with the prefix, so that they do not clash with those of
    a user's own project.

    Args:
        resource_overrides: Resources to use instead of the usual ones, by resource key without the
            prefix.
        standalone: Whether the definitions are a separate code location, with an executor and a
            logger. Pass False to merge them with definitions that have an executor or loggers.
    """
    resources = {
        "workspace": Workspace(),
        "pipes": dg.PipesSubprocessClient(message_reader=WholeMessages()),
        TABLES: ParquetIOManager(),
        ARTIFACTS: ArtifactIOManager(),
    } | dict(resource_overrides or {})
    prefix = key_prefix() or None
    assets = dg.load_assets_from_package_module(
        agent_pipeline.defs, key_prefix=prefix, source_key_prefix=prefix
    )
    asset_checks = dg.load_asset_checks_from_package_module(
        agent_pipeline.defs, asset_key_prefix=prefix
    )
    objects = dg.load_definitions_from_package_module(agent_pipeline.defs)
    definitions = dg.Definitions(
        assets=[_adapt_asset(asset) for asset in assets],
        asset_checks=asset_checks,
        jobs=objects.jobs,
        schedules=objects.schedules,
        sensors=objects.sensors,
        resources=resources,
        # Cheap assets share one process; training and its like run in one of their own
        # (agent_pipeline.worker).
        executor=dg.in_process_executor if standalone else None,
        loggers={"console": console} if standalone else None,
    )
    return Renaming(add_prefix, resources).rename(definitions) if prefix else definitions


def _adapt_asset(asset: Any) -> Any:
    """Return an asset with the tag of the pipeline's own assets, and with its columns."""
    if isinstance(asset, dg.AssetsDefinition):
        return asset.map_asset_specs(_mark_as_own).map_asset_specs(with_columns)
    return asset


def _mark_as_own(spec: dg.AssetSpec) -> dg.AssetSpec:
    """Return the spec with the tag by which jobs select the pipeline's own assets."""
    return spec.merge_attributes(tags={OWN_TAG: ""})


def check_settings() -> None:
    """Refuse to load a code location if its settings cannot work, so that the UI shows why.

    The process of a run loads the code location anyway. There, the same sentence ends the first
    step.

    Raises:
        SettingsError: a setting is wrong.
    """
    if not is_code_location_starting():
        return
    settings = load_settings()
    if sentences := [*problems(settings), *cron_problems(settings)]:
        raise SettingsError("\n".join(sentences))


check_settings()
defs = build_defs()
