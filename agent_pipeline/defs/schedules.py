"""The nightly retraining: every known agent whose sessions, verdicts, settings or code changed since its last successful run."""

from collections.abc import Iterator

import dagster as dg

from agent_pipeline.config.notices import Notice, tell
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.defs.jobs import retrain
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import run_config
from agent_pipeline.defs.runs import LastRuns, version_tags
from agent_pipeline.errors import PipelineError
from agent_pipeline.keys import parse_key

TICK_SECONDS = 40.0
"""How long a tick may read the store: Dagster ends a tick after 60 seconds."""


@dg.schedule(job=retrain, cron_schedule="0 2 * * *", execution_timezone="UTC")
def nightly(context: dg.ScheduleEvaluationContext, workspace: dg.ResourceParam[Workspace]) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """At 2:00 UTC: a run for each agent with something new, with that agent's settings, and a reason for each agent without a run.

    An agent whose sessions could not be read in time gets a run too. The run finds out what is new and trains nothing twice.
    """
    names = sorted(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    reasons = [] if names else ["no agent is known yet: open the store with the discover_agents sensor or the command discover"]
    night = context.scheduled_execution_time.strftime("%Y-%m-%d")
    requested = 0
    last = LastRuns(context.instance, names)
    settings = None
    try:
        settings = workspace.settings()
        source = workspace.open_store()
        versions = workspace.versions(source, TICK_SECONDS)
    except PipelineError as error:
        problem = tell(settings, [Notice("no run tonight", "", str(error))]) if settings else ""
        yield dg.SkipReason(f"{error} {problem}".rstrip())
        return
    unsent: list[Notice] = []
    for name in names:
        try:
            key = parse_key(name)
            store = versions.in_time(key)
            tags = version_tags(store.version, fingerprint(settings, key), source.reader_versions()) if store else {}
            config = run_config(settings, key)
        except PipelineError as error:
            reasons.append(f"{name}: {error}")
            unsent.append(Notice("no run tonight", name, str(error)))
            continue
        if store and last.has(name, tags):
            reasons.append(f"{name}: nothing new in its {store.sessions} sessions or its settings since its last successful run")
            days = last.days(name, context.scheduled_execution_time)
            if days and days % settings.notify.idle_days == 0:
                unsent.append(Notice(f"nothing trained for {days} days", name, "Nothing is new in its sessions or settings."))
            continue
        requested += 1
        yield dg.RunRequest(run_key=f"{night}:{name}", partition_key=name, run_config=config, tags=tags)
    versions.save()
    reasons += filter(None, [tell(settings, unsent)])
    for reason in reasons:
        context.log.info(reason)
    if not requested:
        yield dg.SkipReason("; ".join(reasons))
