"""The nightly retraining: every known agent whose sessions or verdicts changed since its last successful run."""

from collections.abc import Iterator

import dagster as dg

from agent_pipeline.defs.jobs import retrain
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import store_version_tags, trained_on
from agent_pipeline.errors import PipelineError
from agent_pipeline.keys import parse_key


@dg.schedule(job=retrain, cron_schedule="0 2 * * *", execution_timezone="UTC")
def nightly(context: dg.ScheduleEvaluationContext, workspace: dg.ResourceParam[Workspace]) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """At two in the night: a run for each agent with something new, and a reason for each other."""
    known = sorted(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    reasons = [] if known else ["no agent is known yet: open the store with the discover_agents sensor or the command discover"]
    requested = 0
    for key in known:
        try:
            version, sessions = workspace.fingerprint(workspace.open_store(), parse_key(key))
        except PipelineError as error:
            reasons.append(f"{key}: {error}")
            continue
        if trained_on(context.instance, key, version):
            reasons.append(f"{key}: nothing new in its {sessions} sessions since its last successful run")
            continue
        requested += 1
        night = context.scheduled_execution_time.strftime("%Y-%m-%d")
        yield dg.RunRequest(run_key=f"{night}:{key}", partition_key=key, tags=store_version_tags(version))
    for reason in reasons:
        context.log.info(reason)
    if not requested:
        yield dg.SkipReason("; ".join(reasons))
