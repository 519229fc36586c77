"""The schedule `nightly`, which retrains every agent that has new sessions.

New are sessions, verdicts, settings and code.
"""

from collections.abc import Iterator
from datetime import UTC, timedelta
from statistics import mean
from typing import Any

import dagster as dg

from agent_pipeline._compat.dagster import is_valid_cron_schedule
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.config.sections import NightSettings
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.defs.jobs import retrain
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import run_config
from agent_pipeline.defs.runs import (
    AGENT_TAG,
    NIGHT_ENDS_TAG,
    NIGHT_TAG,
    WAITING_TAG,
    LastRuns,
    version_tags,
)
from agent_pipeline.errors import PipelineError, SettingsError
from agent_pipeline.keys import parse_key
from agent_pipeline.notifications import Notification, send_notifications

TICK_SECONDS = 40.0
"""Seconds that a tick may read the store, because Dagster ends a tick after 60 seconds."""


def cron_problems(settings: Settings) -> list[str]:
    """Return a sentence if the setting `night.cron` is not a valid cron expression."""
    if is_valid_cron_schedule(settings.night.cron):
        return []
    return [
        f"The setting night.cron is {settings.night.cron!r}: set it to a cron expression, such as "
        "0 2 * * *."
    ]


def _clock() -> dict[str, Any]:
    """Return the times at which the schedule ticks.

    If the settings cannot be read, the code location reports the error when it loads.
    """
    try:
        night = load_settings().night
    except SettingsError:
        night = NightSettings()
    if not is_valid_cron_schedule(night.cron):
        night = NightSettings(timezone=night.timezone)
    return {"cron_schedule": night.cron, "execution_timezone": night.timezone}


@dg.schedule(
    job=retrain,
    **_clock(),
    description="Retrains each agent whose sessions, verdicts, settings or code changed. The tick "
    "lists "
    "the agents that are skipped, with the reasons.",
)
def nightly(
    context: dg.ScheduleEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> Iterator[dg.RunRequest | dg.SkipReason]:
    """Request one run per agent that has new sessions, and give a reason for each skipped agent.

    An agent whose sessions could not be read in time gets a run too. That run finds out what is
    new, and trains nothing twice. Agents that do not fit into the night's limits wait. Those that
    have waited longest come first.
    """
    names = sorted(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    reasons = (
        []
        if names
        else [
            "no agent is known yet: open the store with the discover_agents sensor or the command "
            "discover"
        ]
    )
    began = context.scheduled_execution_time.astimezone(UTC)
    last = LastRuns(context.instance, names, began)
    settings = None
    try:
        settings = workspace.settings()
        source = workspace.open_store()
        versions = workspace.versions(source, TICK_SECONDS)
    except PipelineError as error:
        problem = (
            send_notifications(
                settings.notify.urls,
                [Notification("no run this night", "", str(error))],
                settings.redaction_options,
            )
            if settings
            else ""
        )
        yield dg.SkipReason(f"{error} {problem}".rstrip())
        return
    night = {NIGHT_TAG: began.isoformat()}
    if settings.night.minutes:
        night[NIGHT_ENDS_TAG] = (began + timedelta(minutes=settings.night.minutes)).isoformat()
    requests: list[dg.RunRequest] = []
    unsent: list[Notification] = []
    for name in names:
        try:
            key = parse_key(name)
            store = versions.find_version_in_time(key)
            tags = (
                version_tags(store.version, fingerprint(settings, key), source.reader_versions())
                if store
                else {}
            )
            config = run_config(settings, key)
        except PipelineError as error:
            reasons.append(f"{name}: {error}")
            unsent.append(Notification("no run this night", name, str(error)))
            continue
        needed = settings.new_sessions(key)
        if store and last.has(name, tags, needed):
            reason = (
                f"nothing new in its {store.sessions} sessions or its settings since its last "
                f"successful run"
            )
            if waiting := last.tags(name).get(WAITING_TAG):
                reason += (
                    f", which trained nothing: it waits for {needed} new sessions and has {waiting}"
                )
            reasons.append(f"{name}: {reason}")
            days = last.days(name, began)
            if days and days % settings.notify.idle_days == 0:
                unsent.append(
                    Notification(
                        f"nothing trained for {days} days",
                        name,
                        "Nothing is new in its sessions or settings.",
                    )
                )
        elif name in last.unfinished:
            reasons.append(f"{name}: its last run has not ended")
        else:
            requests.append(
                dg.RunRequest(
                    f"{began.isoformat()}:{name}",
                    partition_key=name,
                    run_config=config,
                    tags=tags | night | {AGENT_TAG: name},
                )
            )
    versions.save()
    requests.sort(key=lambda request: last.waiting(str(request.partition_key)))
    fit = _fit(requests, last, settings.night)
    reasons += [
        f"{request.partition_key}: it waits for the next night as number {number}: {fit} runs fit "
        f"into night.runs and night.minutes"
        for number, request in enumerate(requests[fit:], 1)
    ]
    problem = send_notifications(settings.notify.urls, unsent, settings.redaction_options)
    reasons += filter(None, [problem])
    for reason in reasons:
        context.log.info(reason)
    yield from requests[:fit]
    if not requests:
        yield dg.SkipReason("; ".join(reasons))


def _fit(requests: list[dg.RunRequest], last: LastRuns, night: NightSettings) -> int:
    """Return how many of the ordered runs fit into the night, which is at least one run.

    A run is expected to take as long as the agent's last run, or as long as the other agents' runs.
    """
    known = {
        str(request.partition_key): last.minutes(str(request.partition_key)) for request in requests
    }
    usual = mean([tokens for tokens in known.values() if tokens is not None] or [0.0])
    fit, minutes = 0, 0.0
    for tokens in known.values():
        minutes += usual if tokens is None else tokens
        if fit and (
            (night.runs and fit >= night.runs) or (night.minutes and minutes > night.minutes)
        ):
            break
        fit += 1
    return fit
