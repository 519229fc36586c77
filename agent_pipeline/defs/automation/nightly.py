"""The schedule `nightly`, which retrains every agent that has new sessions.

New are sessions, verdicts, settings and code.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from statistics import mean
from typing import Any

import dagster as dg

from agent_pipeline._compat.dagster import get_next_cron_tick, is_valid_cron_schedule
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.config.sections import NightSettings
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.defs.asset_keys import add_prefix
from agent_pipeline.defs.jobs import retrain
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import run_config
from agent_pipeline.defs.runs import (
    AGENT_TAG,
    CODE_VERSION_TAG,
    NIGHT_ENDS_TAG,
    NIGHT_TAG,
    PENDING_TAG,
    SETTINGS_VERSION_TAG,
    STORE_VERSION_TAG,
    WAITING_TAG,
    LastRuns,
    version_tags,
)
from agent_pipeline.errors import PipelineError, SettingsError
from agent_pipeline.judging.store_versions import StoreVersions
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


def next_night(night: NightSettings, after: datetime) -> datetime:
    """Return the time at which the next night begins, in the time zone of the setting."""
    return get_next_cron_tick(night.cron, after, night.timezone)


def is_schedule_on(instance: dg.DagsterInstance) -> bool:
    """Return whether the schedule `nightly` is switched on."""
    return any(
        state.name == add_prefix(nightly.name) and state.status.value == "RUNNING"
        for state in instance.all_instigator_state()
    )


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
    description=(
        "Starts a run of `retrain` for each agent whose sessions, verdicts, settings or code "
        "changed. The tick lists the skipped agents with the reasons."
    ),
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
            "no agent is known yet: switch on the sensor discover_agents, or run `agent-pipeline "
            "discover`"
        ]
    )
    began = context.scheduled_execution_time.astimezone(UTC)
    settings = None
    try:
        settings = workspace.settings()
        plan = plan_night(workspace, context.instance, names, began)
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
    plan.versions.save()
    reasons += [f"{agent.partition}: {agent.reason}" for agent in plan.skipped]
    problem = send_notifications(
        settings.notify.urls, plan.notifications, settings.redaction_options
    )
    reasons += filter(None, [problem])
    for reason in reasons:
        context.log.info(reason)
    yield from plan.requests
    if not plan.requests:
        yield dg.SkipReason("; ".join(reasons))


@dataclass(frozen=True)
class NightlyAgent:
    """An agent in the plan of a night.

    Attributes:
        partition: The agent's partition.
        reason: The reason why the night runs the agent, or why it skips the agent.
    """

    partition: str
    reason: str


@dataclass(frozen=True)
class NightPlan:
    """The agents that a night runs, and those that it skips.

    Attributes:
        requests: The requests of runs, in the order of the runs.
        runs: The agents of these requests, with what is new.
        skipped: The other agents, with the reasons.
        notifications: The events that people should know about.
        versions: The versions of the store, which `save` keeps for the next reading.
    """

    requests: list[dg.RunRequest]
    runs: list[NightlyAgent]
    skipped: list[NightlyAgent]
    notifications: list[Notification]
    versions: StoreVersions


def plan_night(
    workspace: Workspace, instance: dg.DagsterInstance, names: Sequence[str], began: datetime
) -> NightPlan:
    """Plan a night. Nothing is started, saved or sent.

    Args:
        workspace: The settings, the store and the lake.
        instance: The Dagster instance, which has the last runs.
        names: The partitions of the agents.
        began: The time at which the night begins.

    Raises:
        PipelineError: The settings are wrong, or the store cannot be read.
    """
    settings, last = workspace.settings(), LastRuns(instance, names, began)
    source = workspace.open_store()
    versions = workspace.versions(source, TICK_SECONDS)
    night = {NIGHT_TAG: began.isoformat()}
    if settings.night.minutes:
        night[NIGHT_ENDS_TAG] = (began + timedelta(minutes=settings.night.minutes)).isoformat()
    requests: list[dg.RunRequest] = []
    skipped: list[NightlyAgent] = []
    unsent: list[Notification] = []
    news: dict[str, str] = {}
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
            skipped.append(NightlyAgent(name, str(error)))
            unsent.append(Notification("no run this night", name, str(error)))
            continue
        needed = settings.new_sessions(key)
        if store and last.has(name, tags, needed):
            reason = (
                f"nothing has changed in its {store.sessions} sessions or its settings since its "
                "last successful run"
            )
            if waiting := last.tags(name).get(WAITING_TAG):
                reason += (
                    f", which trained nothing because it needs {needed} new sessions and has "
                    f"{waiting}"
                )
            skipped.append(NightlyAgent(name, reason))
            days = last.days(name, began)
            if days and days % settings.notify.idle_days == 0:
                unsent.append(
                    Notification(
                        f"nothing trained for {days} days",
                        name,
                        "Nothing has changed in its sessions or settings.",
                    )
                )
        elif name in last.unfinished:
            skipped.append(NightlyAgent(name, "its last run is still in progress"))
        else:
            news[name] = describe_news(last.tags(name), tags)
            requests.append(
                dg.RunRequest(
                    f"{began.isoformat()}:{name}",
                    partition_key=name,
                    run_config=config,
                    tags=tags | night | {AGENT_TAG: name},
                )
            )
    requests.sort(key=lambda request: last.waiting(str(request.partition_key)))
    fit = _fit(requests, last, settings.night)
    skipped += [
        NightlyAgent(
            str(request.partition_key),
            f"it waits for the next night as number {number} of the waiting agents, because "
            f"night.runs and night.minutes allow only {fit} runs",
        )
        for number, request in enumerate(requests[fit:], 1)
    ]
    runs = [
        NightlyAgent(str(request.partition_key), news[str(request.partition_key)])
        for request in requests[:fit]
    ]
    return NightPlan(requests[:fit], runs, skipped, unsent, versions)


_NEWS = {
    STORE_VERSION_TAG: "new sessions or verdicts",
    SETTINGS_VERSION_TAG: "changed settings",
    CODE_VERSION_TAG: "a new version of the pipeline's code",
}


def describe_news(before: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return what is new since an agent's last successful run.

    Args:
        before: The tags of that run; empty if there was no run.
        now: The tags of the next run; empty if the sessions could not be read in time.
    """
    if STORE_VERSION_TAG not in before:
        return "no run of all its assets has succeeded yet"
    if not now:
        return "its sessions could not be read in time, so the run checks what is new"
    changes = [text for tag, text in _NEWS.items() if before.get(tag) != now.get(tag)]
    if not changes and PENDING_TAG in before:
        return "sessions wait for the judge"
    return " and ".join(changes) or "its last run did not train a model"


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
