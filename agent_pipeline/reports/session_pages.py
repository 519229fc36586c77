"""The list of an agent's sessions, and one session, as pages show them.

The rows come from the newest of the tables `curated_sessions`, `judged_sessions` and `sessions`.
The templates belong to `templates`, and addresses to `rendering`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.json_types import JsonObject
from agent_pipeline.keys import PartitionKey
from agent_pipeline.reports.chat import MESSAGES_PER_PART, ShownTurn, make_turns
from agent_pipeline.sessions.session import Message, dump_canonical_json
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.sessions.transcript import list_texts
from agent_pipeline.storage.lake import Lake

SESSION_TABLES = ("curated_sessions", "judged_sessions", "sessions")
"""The tables with a row for every session, from the one that knows most."""

SESSIONS_PER_PAGE = 50
MAX_TITLE = 140

_LINE_COLUMNS = (
    "session_id",
    "created_at",
    "source",
    "messages",
    "damage",
    "broken",
    "archived",
    "error",
    "verdict",
    "verdict_by",
    "use",
    "drop_reason",
)


class SessionLine(msgspec.Struct, frozen=True):
    """A session in the list.

    Attributes:
        session_id: The session's id.
        title: The beginning of the user's first message.
        created: The day and the minute on which the session began, or an empty text.
        source: The reader that read the session.
        messages: The number of messages.
        calls: The number of calls.
        damage: The kinds of damage.
        verdict: `acceptable`, `unacceptable` or `none`.
        verdict_by: The judge that gave the verdict.
        use: The use of the session: `positive`, `negative`, `neither`, or empty if not curated.
        reason: The reason why the session is not a training example.
    """

    session_id: str
    title: str
    created: str
    source: str
    messages: int
    calls: int
    damage: tuple[str, ...]
    verdict: str
    verdict_by: str
    use: str
    reason: str


class SessionFilter(msgspec.Struct, frozen=True):
    """The sessions that the list shows. An empty text means all sessions.

    Attributes:
        verdict: A verdict.
        use: A use, or a reason why a session is not used.
        damage: A kind of damage, or `any`.
        text: Words in the session's messages or in its id.
        page: The page of the list, from 1.
    """

    verdict: str = ""
    use: str = ""
    damage: str = ""
    text: str = ""
    page: int = 1


class SessionList(msgspec.Struct, frozen=True):
    """A page of the list of sessions.

    Attributes:
        lines: The sessions of this page.
        matching: The number of sessions that match the filter.
        total: The number of all sessions.
        pages: The number of pages.
        choices: The values of each filter, with the number of sessions.
        table: The table from which the sessions come.
    """

    lines: Sequence[SessionLine]
    matching: int
    total: int
    pages: int
    choices: Mapping[str, Mapping[str, int]]
    table: str


class SessionPage(msgspec.Struct, frozen=True):
    """One session as a page shows it.

    Attributes:
        session_id: The session's id.
        title: The beginning of the user's first message.
        verdict: The verdict, or `none`.
        verdict_by: The judge that gave the verdict, and its name.
        verdict_reasons: The reasons of the verdict.
        opinions: A sentence for the opinion of each judge.
        facts: Facts about the session, by name.
        damage: The number of damaged places, by kind.
        broken: The kind of damage for which the session is dropped.
        use: The use of the session with its reason.
        turns: The turns of the shown part.
        part: The shown part of a long session, from 1.
        parts: The number of parts.
        messages: The number of messages in the whole session.
    """

    session_id: str
    title: str
    verdict: str
    verdict_by: str
    verdict_reasons: str
    opinions: Sequence[str]
    facts: Mapping[str, str]
    damage: Mapping[str, int]
    broken: str
    use: str
    turns: Sequence[ShownTurn]
    part: int
    parts: int
    messages: int


def find_table(lake: Lake, key: PartitionKey) -> str:
    """Return the newest table with the agent's sessions, or an empty text without a table.

    If tables were written in the same second, the table of the latest stage is returned.
    """
    tables = [asset for asset in SESSION_TABLES if lake.has(asset, key)]
    return max(tables, key=lambda asset: _written(lake, asset, key), default="")


def list_sessions(lake: Lake, key: PartitionKey, wanted: SessionFilter) -> SessionList:
    """Return one page of the list of an agent's sessions, newest first.

    Raises:
        DataError: The lake has no sessions of the agent.
        DamageError: The table is damaged.
    """
    asset = require_table(lake, key)
    all_lines = _read_lines(lake, asset, key)
    matching = [line for line in all_lines if _fits(line, wanted)]
    if wanted.text:
        ids = _search(lake, asset, key, wanted.text)
        matching = [line for line in matching if line.session_id in ids]
    pages = max(1, -(-len(matching) // SESSIONS_PER_PAGE))
    first = (min(max(wanted.page, 1), pages) - 1) * SESSIONS_PER_PAGE
    choices = {
        "verdict": Counter(line.verdict for line in all_lines),
        "use": Counter(name for line in all_lines for name in {line.use, line.reason} if name),
        "damage": Counter(kind for line in all_lines for kind in line.damage),
    }
    damaged = sum(bool(line.damage) for line in all_lines)
    if damaged:
        choices["damage"]["any"] = damaged
    return SessionList(
        lines=matching[first : first + SESSIONS_PER_PAGE],
        matching=len(matching),
        total=len(all_lines),
        pages=pages,
        choices={name: dict(counts.most_common()) for name, counts in choices.items()},
        table=asset,
    )


def read_session(lake: Lake, key: PartitionKey, session_id: str) -> JsonObject:
    """Return the row of a session from the newest table.

    Raises:
        DataError: The lake has no such session.
        DamageError: The table is damaged.
    """
    asset = require_table(lake, key)
    row = read_row(lake, asset, key, session_id)
    if row is not None:
        return row
    raise DataError(f"The {asset} of {key} has no session {session_id!r}: check the id.")


def read_row(lake: Lake, asset: str, key: PartitionKey, session_id: str) -> JsonObject | None:
    """Return the row of a session from a table, or None if the table has no such row."""
    with lake.open(asset, key) as table:
        for group in range(table.num_row_groups):
            ids = table.read_row_group(group, columns=["session_id"])["session_id"]
            matches = pc.equal(ids, session_id)
            if pc.any(matches, min_count=0).as_py():
                rows = table.read_row_group(group).filter(matches)
                return next(to_rows(rows), None)
    return None


def make_session_page(
    row: Mapping[str, Any],
    message: int | None = None,
    part: int | None = None,
    whole: bool = False,
) -> SessionPage:
    """Return the page of a session, given its row.

    A long session is shown in parts. The default is the part with the end, because the end shows
    whether the agent did its work.

    Args:
        row: The row of a table with every session.
        message: A message (from 1) that the page must show.
        part: The part (from 1) to show.
        whole: Whether to show a long session in one part.
    """
    messages = row["messages"]
    size = len(messages) if whole else MESSAGES_PER_PART
    parts = max(1, -(-len(messages) // size)) if messages else 1
    if part is None:
        part = parts if message is None else -(-message // size)
    part = min(max(part, 1), parts)
    turns = make_turns(
        messages,
        row.get("turns") or (),
        row.get("reasoning") or (),
        f"the table of the session {row['session_id']}",
    )
    first, last = (part - 1) * size, part * size
    detail = row.get("drop_detail")
    reason = row.get("drop_reason")
    return SessionPage(
        session_id=row["session_id"],
        title=make_title(messages) or "(no text)",
        verdict=row.get("verdict") or "none",
        verdict_by=" ".join(filter(None, (row.get("verdict_by"), row.get("verdict_name")))),
        verdict_reasons=row.get("verdict_reasons") or "",
        opinions=describe_opinions(row),
        facts=_list_facts(row),
        damage=row.get("damage") or {},
        broken=row.get("broken") or "",
        use=" ".join(filter(None, (row.get("use"), reason, f"({detail})" if detail else ""))),
        turns=[turn for turn in turns if first < turn.message <= last],
        part=part,
        parts=parts,
        messages=len(messages),
    )


def describe_opinions(row: Mapping[str, Any]) -> list[str]:
    """Return a sentence about the opinion of each judge."""
    return [
        f"{judge}: {opinion.get('verdict') or 'no verdict'}"
        + (f" ({opinion['reason']})" if opinion.get("reason") else "")
        for judge, opinion in (row.get("opinions") or {}).items()
    ]


def make_title(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return the beginning of the first message that is not a system message."""
    for message in messages:
        if message["role"] != "system" and message.get("content"):
            line = " ".join(message["content"][: 4 * MAX_TITLE].split())
            return line if len(line) <= MAX_TITLE else f"{line[: MAX_TITLE - 1]}…"
    return ""


def require_table(lake: Lake, key: PartitionKey) -> str:
    """Return the newest table with the agent's sessions.

    Raises:
        DataError: The lake has no sessions of the agent.
    """
    asset = find_table(lake, key)
    if not asset:
        raise DataError(
            f"The lake {lake.root} has no sessions of {key}: run `agent-pipeline materialize {key} "
            "--select +judged_sessions` first."
        )
    return asset


def _list_facts(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts about a session that are known, by name."""
    created: datetime | None = row.get("created_at")
    facts = {
        "read by": row.get("source"),
        "began": _format_time(created),
        "task": row.get("task_id") or row.get("task_key"),
        "trial": row.get("trial"),
        "model": row.get("model_id"),
        "score": None if row.get("score") is None else f"{row['score']:g}",
        "cost": None if row.get("cost_usd") is None else f"${row['cost_usd']:.4f}",
        "failure": row.get("error"),
        "begun by": row.get("parent_session_id"),
        "same as": row.get("duplicate_of"),
        "continued by": row.get("continued_by"),
        "left out": ", ".join(f"{name} {n}" for name, n in (row.get("skipped") or {}).items()),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _format_time(time: datetime | None) -> str:
    return "" if time is None else f"{time:%Y-%m-%d %H:%M}"


def _written(lake: Lake, asset: str, key: PartitionKey) -> float:
    return float(lake.table(asset, key).stat().st_mtime)


def _read_lines(lake: Lake, asset: str, key: PartitionKey) -> tuple[SessionLine, ...]:
    """Return the lines of all sessions, newest first, read once per version of a table."""
    state = lake.table(asset, key).stat()
    return _read_lines_of_version(lake, asset, key, f"{state.st_mtime}:{state.st_size}")


@lru_cache(maxsize=8)
def _read_lines_of_version(
    lake: Lake, asset: str, key: PartitionKey, version: str
) -> tuple[SessionLine, ...]:
    with lake.open(asset, key) as table:
        columns = [name for name in _LINE_COLUMNS if name in table.schema_arrow.names]
        lines = [_make_line(row) for row in to_rows(read_batches(table, columns))]
    lines.sort(key=lambda line: line.session_id)
    lines.sort(key=lambda line: line.created, reverse=True)
    return tuple(lines)


def _make_line(row: Mapping[str, Any]) -> SessionLine:
    messages = row["messages"]
    reason = row.get("drop_reason") or ""
    if not reason and row["archived"]:
        reason = "archived"
    return SessionLine(
        session_id=row["session_id"],
        title=make_title(messages) or "(no text)",
        created=_format_time(row["created_at"]),
        source=row["source"],
        messages=len(messages),
        calls=sum(len(message.get("tool_calls") or ()) for message in messages),
        damage=tuple(row["damage"]),
        verdict=row.get("verdict") or "none",
        verdict_by=row.get("verdict_by") or "",
        use=row.get("use") or "",
        reason=reason,
    )


def _fits(line: SessionLine, wanted: SessionFilter) -> bool:
    """Return whether a session passes all filters except the search for words."""
    if wanted.verdict and line.verdict != wanted.verdict:
        return False
    if wanted.use and wanted.use not in (line.use, line.reason):
        return False
    if wanted.damage == "any":
        return bool(line.damage)
    return not wanted.damage or wanted.damage in line.damage


def _search(lake: Lake, asset: str, key: PartitionKey, text: str) -> set[str]:
    """Return the ids of the sessions with a text in their messages, or in their id."""
    words = text.strip()
    # The column holds JSON, so the words are searched for as JSON writes them.
    as_json = dump_canonical_json(words)[1:-1]
    folded = words.casefold()
    ids: set[str] = set()
    with lake.open(asset, key) as table:
        for batch in read_batches(table, ["session_id", "messages"]):
            messages = batch["messages"]
            storage = messages.storage if isinstance(messages, pa.ExtensionArray) else messages
            matches = pc.or_(
                pc.match_substring(storage, as_json, ignore_case=True),
                pc.match_substring(batch["session_id"], words, ignore_case=True),
            )
            for row in to_rows([batch.filter(matches)]):
                if folded in row["session_id"].casefold() or _has_words(row["messages"], folded):
                    ids.add(row["session_id"])
    return ids


def _has_words(messages: Sequence[Message], folded: str) -> bool:
    """Return whether a message other than the instructions has a text, given in folded case."""
    return any(
        folded in text.casefold()
        for message in messages
        if message["role"] != "system"
        for text in list_texts(message, names=True)
    )
