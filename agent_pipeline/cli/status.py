"""The command status, which shows every agent of the store on a narrow screen."""

import textwrap
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console

from agent_pipeline.cli.report import printable
from agent_pipeline.cli.words import AS_JSON, with_noun

if TYPE_CHECKING:
    from agent_pipeline.governance.agent_status import AgentStatus, NightStatus, Status

console = Console()

LABEL_WIDTH = 12
WIDEST = 100
"""Maximum number of characters of a line, because longer lines are hard to read."""
MAX_UNREAD = 5
"""Largest number of agents that are named although the lake has no session of them."""


def status(as_json: Annotated[bool, AS_JSON] = False) -> str | None:
    """Show the sessions, the last training, the decision and the champion of every agent.

    The command also shows what waits for a person, and when the next night begins.
    """
    from agent_pipeline.cli.labels import read_checks
    from agent_pipeline.cli.night import read_night_status
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.errors import without_credentials
    from agent_pipeline.governance.agent_status import Status, read_agent_status

    settings = load_settings()
    keys, lake = settings.open_store().partitions(), settings.open_lake()
    agents = [read_agent_status(settings, key) for key in keys]
    night = read_night_status(settings)
    shown = Status(without_credentials(str(lake.root)), agents, night)
    if as_json:
        typer.echo(msgspec.json.encode(shown))
        return None
    for line in describe_status(shown, min(console.width, WIDEST), datetime.now(UTC)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    for key in keys:
        for check in read_checks(settings, lake, key):
            line = f"{key}: the judge {check.describe()}."
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    return choose_next_step(shown)


def describe_status(shown: "Status", width: int, today: datetime) -> Iterator[str]:
    """Yield the lines about all agents, none of which is wider than the screen.

    Args:
        shown: The status of the agents.
        width: The number of characters of a line.
        today: The time from which ages are counted.
    """
    yield from _wrap("lake", shown.lake, width)
    if not shown.agents:
        yield from _wrap("agents", "none: no reader recognizes sessions in the store", width)
    elif not any(agent.was_read for agent in shown.agents):
        yield from _wrap("", "The lake is empty: no sessions were read into it yet.", width)
    unread = [agent.partition for agent in shown.agents if not agent.was_read]
    for agent in shown.agents:
        if agent.was_read:
            yield ""
            yield from textwrap.wrap(agent.partition, width)
            yield from _describe_agent(agent, width, today)
    yield ""
    if unread:
        names = ", ".join(unread[:MAX_UNREAD])
        more = len(unread) - MAX_UNREAD
        others = f" and {with_noun(more, 'other agent')}" if more > 0 else ""
        yield from _wrap("not read", f"{names}{others}", width)
    yield from _wrap("next night", _describe_night(shown.next_night, today), width)


def choose_next_step(shown: "Status") -> str:
    """Return the next sensible command of the agent that is nearest to a model.

    An agent whose model waits for a person comes first, and then an agent without a model.

    Args:
        shown: The status of the agents.
    """
    if not shown.agents:
        return "discover"
    waiting = [agent for agent in shown.agents if agent.model and agent.model.waits]
    without_model = [agent for agent in shown.agents if agent.was_read and agent.model is None]
    return (waiting or without_model or shown.agents)[0].next_step


def _describe_agent(agent: "AgentStatus", width: int, today: datetime) -> Iterator[str]:
    """Yield the lines about one agent."""
    dropped = f"; dropped: {_list_counts(agent.dropped)}" if agent.dropped else ""
    yield from _wrap("sessions", f"{agent.sessions:,}, {agent.kept:,} of them kept{dropped}", width)
    yield from _wrap("verdicts", _list_counts(agent.verdicts) or "not judged yet", width)
    pairs = f"; {agent.pairs:,} preference pairs" if agent.pairs else ""
    yield from _wrap("rows", f"{_list_counts(agent.rows) or 'no dataset yet'}{pairs}", width)
    training = f"{_describe_age(agent.trained_at, today)}; {agent.training}"
    yield from _wrap("training", training if agent.trained_at else "never", width)
    model = agent.model
    if model is None:
        yield from _wrap("model", "nothing was exported yet", width)
    else:
        reason = f": {model.reason}" if model.reason else ""
        yield from _wrap("decision", f"{model.decision}{reason}", width)
        champion = "none, so no model is served"
        if model.champion:
            champion = f"{model.champion[:16]}, since {_describe_age(model.champion_since, today)}"
        yield from _wrap("champion", champion, width)
        if model.latest != model.champion and model.latest:
            yield from _wrap("candidate", model.latest[:16], width)
    if agent.traffic:
        yield from _wrap("traffic", agent.traffic, width)
    for sentence in agent.changed_requests:
        yield from _wrap("requests", sentence, width)
    for sentence in agent.waits:
        yield from _wrap("for you", sentence, width)


def _describe_night(night: "NightStatus", today: datetime) -> str:
    if night.begins is None:
        return night.note
    begins = datetime.fromisoformat(night.begins)
    hours = max(0, round((begins - today).total_seconds() / 3600))
    when = f"{begins:%Y-%m-%d %H:%M %Z} (in {with_noun(hours, 'hour')})"
    return f"{when}; {night.note}" if night.note else when


def _describe_age(when: str | None, today: datetime) -> str:
    """Return a time and its age.

    Example:
        >>> _describe_age("2026-11-20T02:00:00+00:00", datetime(2026, 11, 27, 9, tzinfo=UTC))
        '2026-11-20 02:00 (7 days ago)'
    """
    if not when:
        return "an unknown time"
    moment = datetime.fromisoformat(when)
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    seconds = max(0.0, (today - moment).total_seconds())
    for noun, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        if seconds >= size:
            return f"{moment:%Y-%m-%d %H:%M} ({with_noun(int(seconds // size), noun)} ago)"
    return f"{moment:%Y-%m-%d %H:%M} (just now)"


def _list_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in counts.items())


def _wrap(label: str, text: str, width: int) -> list[str]:
    """Return a label and its text, in lines that fit the screen."""
    indent = " " * (LABEL_WIDTH + 2)
    head = f"  {label:<{LABEL_WIDTH}}" if label else "  "
    return textwrap.wrap(printable(text), width, initial_indent=head, subsequent_indent=indent)
