"""The sensor `discover_agents`, which adds a partition for each new agent in the store.

The sensor starts no run. It never deletes a partition, because an unreadable store looks the same
as a store whose agents are gone.
"""

import functools
import operator

import dagster as dg

from agent_pipeline.defs.asset_keys import OWN_ASSETS, asset_key
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import TABLE_STAGES
from agent_pipeline.errors import PipelineError

DATA_VERSION_TAG = "dagster/data_version"

TICK_SECONDS = 40.0
"""Seconds that a tick may read the store, because Dagster ends a tick after 60 seconds. The next
tick reads the rest.
"""


@dg.sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description=(
        "Adds a partition for each new agent in the store, and records which agents have new "
        "sessions or labels. It does not start runs."
    ),
)
def discover_agents(
    context: dg.SensorEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> dg.SensorResult | dg.SkipReason:
    """Add new agents in the store as partitions, and report which agents have changed.

    For each agent whose sessions or labels changed, Dagster gets a new data version. The cursor is
    the number of the last reading of the store whose changes Dagster has recorded.
    """
    recorded = int(context.cursor) if context.cursor and context.cursor.isdecimal() else 0
    failures, unread = [], 0
    try:
        source = workspace.open_store()
        versions = workspace.versions(source, TICK_SECONDS, after=recorded)
        signature = workspace.store_signature(source)
        keys = [] if versions.is_unchanged(signature) else source.partitions()
        for key in keys:
            try:
                unread += versions.find_version_in_time(key) is None
            except (
                PipelineError
            ) as error:  # costs this agent only: the others are read, and this one is tried again
                failures.append(f"{key}: {error}")
        if keys:
            versions.save("" if failures or unread else signature)
    except PipelineError as error:
        return dg.SkipReason(str(error))
    changed = versions.list_changed_since(recorded)
    known = set(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    new = sorted({*map(str, keys), *changed} - known)
    notes = [*failures, *([f"{unread} agents are left for the next tick"] if unread else [])]
    if not changed and not new:
        return dg.SkipReason("; ".join(notes) or "No agent's sessions or labels have changed.")
    return dg.SensorResult(
        skip_reason="; ".join(
            [f"{len(changed)} agents have changed, and {len(new)} agents are new", *notes]
        ),  # else the UI says that nothing came of it
        dynamic_partitions_requests=[AGENTS.build_add_request(new)] if new else [],
        asset_events=[
            dg.AssetObservation(
                asset_key("session_store"), partition=name, tags={DATA_VERSION_TAG: value.version}
            )
            for name, value in changed.items()
        ],
        cursor=str(max([recorded, *(change.changed_in for change in changed.values())])),
    )


fresh_tables = dg.AutomationConditionSensorDefinition(
    "fresh_tables",
    # By the tag, because a component may give the groups a prefix.
    target=OWN_ASSETS
    & functools.reduce(
        operator.or_, (dg.AssetSelection.tag("stage", stage) for stage in TABLE_STAGES)
    ),
    default_status=dg.DefaultSensorStatus.STOPPED,
    minimum_interval_seconds=300,
    description=(
        "Materializes an agent's tables, up to its datasets, as soon as the store changes. It "
        "does not train models."
    ),
)
