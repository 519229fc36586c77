"""The first page: every agent with its sessions, its last evaluation and its last decision."""

import re
from collections.abc import Sequence

import msgspec

from agent_pipeline.errors import DataError, PipelineError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import describe_outcome
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision, is_held_back, open_ledger
from agent_pipeline.reports.rendering import ServedLinks
from agent_pipeline.reports.session_pages import find_table
from agent_pipeline.storage.lake import Lake

NIGHTS = "nights"
"""The folder of the lake with the pages about whole nights."""
NIGHT_PAGE = re.compile(r"[0-9T-]{1,20}\.html")
MOST_NIGHTS = 14


class AgentLine(msgspec.Struct, frozen=True):
    """An agent on the first page.

    Attributes:
        key: The agent.
        links: The addresses of its pages.
        sessions: The number of sessions, or None if the table cannot be read.
        serving: Whether a model of the agent is served.
        decision: The outcome of the last decision, or an empty text.
        when: The time of the last decision.
    """

    key: str
    links: ServedLinks
    sessions: int | None
    serving: bool
    decision: str
    when: str


def list_agents(lake: Lake) -> Sequence[AgentLine]:
    """Return the agents that have sessions in the lake."""
    return [_make_line(lake, key) for key in lake.partitions("tables", "sessions")]


def list_nights(lake: Lake) -> Sequence[str]:
    """Return the names of the pages about whole nights, newest first."""
    names = (path.name for path in lake.fs.files(lake.root / NIGHTS))
    return sorted((name for name in names if NIGHT_PAGE.fullmatch(name)), reverse=True)[
        :MOST_NIGHTS
    ]


def read_night(lake: Lake, name: str) -> str:
    """Return the page about a whole night.

    Raises:
        DataError: There is no such page.
    """
    try:
        if NIGHT_PAGE.fullmatch(name):
            return lake.fs.read(lake.root / NIGHTS / name).decode("utf-8")
    except FileNotFoundError:
        pass
    raise DataError(
        f"The lake {lake.root} has no page of the night {name!r}: choose another night."
    )


def _make_line(lake: Lake, key: PartitionKey) -> AgentLine:
    sessions: int | None = None
    decision = when = ""
    serving = False
    try:
        with lake.open(find_table(lake, key), key) as table:
            sessions = table.metadata.num_rows
        last = open_ledger(lake, key).last()
        if last is not None:
            last = find_last_decision(lake, key, last.candidate) or last
            is_held = not last.is_hold_of_person and is_held_back(lake, key, last.candidate)
            held = ", and a person holds it back" if is_held else ""
            decision, when = f"{describe_outcome(last.decision)}{held}", last.when
        serving = bool(lake.pointers(EXPORT, key).champion)
    except PipelineError as error:
        decision = str(error)
    return AgentLine(str(key), ServedLinks(key), sessions, serving, decision, when)
