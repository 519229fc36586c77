"""Discovery: agents that appear in the store become partitions. It starts no run and deletes no key.

It never deletes, because an unreadable or emptied store looks the same as one whose agents are gone.
"""

import dagster as dg

from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.errors import PipelineError

DATA_VERSION_TAG = "dagster/data_version"


@dg.sensor(default_status=dg.DefaultSensorStatus.RUNNING, minimum_interval_seconds=30)
def discover_agents(context: dg.SensorEvaluationContext, workspace: dg.ResourceParam[Workspace]) -> dg.SensorResult | dg.SkipReason:
    """Add the store's new agents as partitions and note each one's data version; the store's files are looked at before they are read."""
    try:
        source = workspace.open_store()
        signature = workspace.signature(source)
        if signature == context.cursor:
            return dg.SkipReason("The store's files and the labels have not changed.")
        keys = source.partitions()
    except PipelineError as error:
        return dg.SkipReason(str(error))
    observations, failures = [], []
    for key in keys:  # an agent that cannot be read must not keep the others from being known
        try:
            version = workspace.fingerprint(source, key)[0]
            observations.append(dg.AssetObservation("session_store", partition=str(key), tags={DATA_VERSION_TAG: version}))
        except PipelineError as error:
            failures.append(f"{key}: {error}")
    known = set(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    new = [str(key) for key in keys if str(key) not in known]
    return dg.SensorResult(
        skip_reason="; ".join(failures) or None,
        dynamic_partitions_requests=[AGENTS.build_add_request(new)] if new else [],
        asset_events=observations,
        cursor=None if failures else signature,  # what failed is tried again
    )
