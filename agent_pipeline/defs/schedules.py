"""The nightly retraining: every known agent whose sessions, verdicts or settings changed since its last successful run."""

from collections.abc import Iterator

import dagster as dg

from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.defs.jobs import retrain
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import run_config
from agent_pipeline.defs.runs import trained_on, version_tags
from agent_pipeline.errors import PipelineError
from agent_pipeline.keys import parse_key


@dg.schedule(job=retrain, cron_schedule="0 2 * * *", execution_timezone="UTC")
def nightly(context: dg.ScheduleEvaluationContext, workspace: dg.ResourceParam[Workspace]) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """At two in the night: a run for each agent with something new, by the settings of that agent, and a reason for each other."""
    known = sorted(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    reasons = [] if known else ["no agent is known yet: open the store with the discover_agents sensor or the command discover"]
    requested = 0
    settings = workspace.settings()
    for name in known:
        try:
            key = parse_key(name)
            version, sessions = workspace.fingerprint(workspace.open_store(), key)
            tags = version_tags(version, fingerprint(settings, key))
            config = run_config(settings, key)
        except PipelineError as error:
            reasons.append(f"{name}: {error}")
            continue
        if trained_on(context.instance, name, tags):
            reasons.append(f"{name}: nothing new in its {sessions} sessions or its settings since its last successful run")
            continue
        requested += 1
        night = context.scheduled_execution_time.strftime("%Y-%m-%d")
        yield dg.RunRequest(run_key=f"{night}:{name}", partition_key=name, run_config=config, tags=tags)
    for reason in reasons:
        context.log.info(reason)
    if not requested:
        yield dg.SkipReason("; ".join(reasons))
