"""The code location: puts the parts of `defs/` together, and does nothing else.

`build_defs` lets tests and notebooks swap resources; `defs` is what Dagster loads.
"""

from collections.abc import Mapping
from typing import Any

import dagster as dg
from dagster._core.definitions.definitions_load_context import DefinitionsLoadContext, DefinitionsLoadType

from agent_pipeline.config.checks import problems
from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs import coresets, datasets, episodes, exports, models, multi_task, replay, traces
from agent_pipeline.defs.columns import with_columns
from agent_pipeline.defs.console import console
from agent_pipeline.defs.io_managers.artifacts import ArtifactIOManager
from agent_pipeline.defs.io_managers.parquet import ParquetIOManager
from agent_pipeline.defs.jobs import mix, retrain
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.schedules import nightly
from agent_pipeline.defs.sensors import discover_agents
from agent_pipeline.defs.specs import ARTIFACTS, TABLES
from agent_pipeline.errors import SettingsError

STAGES = [traces, datasets, multi_task, coresets, replay, models, exports, episodes]


def build_defs(resource_overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """All definitions; `resource_overrides` replaces resources by key."""
    resources = {
        "workspace": Workspace(),
        "pipes": dg.PipesSubprocessClient(),
        TABLES: ParquetIOManager(),
        ARTIFACTS: ArtifactIOManager(),
    }
    return dg.Definitions(
        assets=[
            asset.map_asset_specs(with_columns) if isinstance(asset, dg.AssetsDefinition) else asset
            for asset in dg.load_assets_from_modules(STAGES)
        ],
        asset_checks=dg.load_asset_checks_from_modules(STAGES),
        jobs=[retrain, mix],
        schedules=[nightly],
        sensors=[discover_agents],
        resources=resources | dict(resource_overrides or {}),
        # Cheap assets share one process; training and its like run in one of their own (agent_pipeline.compute.worker).
        executor=dg.in_process_executor,
        loggers={"console": console},
    )


def check_settings() -> None:
    """Refuse to load a code location whose settings cannot work, so that the UI shows the reason before anything runs.

    The process of a run loads it all the same: there, the same sentence ends the first step.

    Raises:
        SettingsError: a setting is wrong.
    """
    if DefinitionsLoadContext.get().load_type is DefinitionsLoadType.INITIALIZATION and (found := problems(load_settings())):
        raise SettingsError("\n".join(found))


check_settings()
defs = build_defs()
