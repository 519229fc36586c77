"""The path of a session from its source to its dataset rows, explained in about ten lines.

Where the session went after its rows does not belong here (`agent_pipeline.governance.lineage`).
"""

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.governance.lineage import OF_THE_SESSION, rows_naming
from agent_pipeline.json_types import JsonObject
from agent_pipeline.judging.turn_facts import list_true_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import CURATED, JUDGED, SESSIONS, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

_STAGES = {"sessions": SESSIONS, "judged_sessions": JUDGED, "curated_sessions": CURATED}
"""The tables that contain every session."""

_ROW_TABLES = ("_dataset", "_coreset", "_buffer")
"""Suffixes of the names of tables that contain dataset rows."""
_UNREAD = "unread:"
"""Prefix of the names of session parts that no reader understood."""


class SessionStory(msgspec.Struct, frozen=True):
    """The lines that explain how a session was processed.

    Attributes:
        session_id: The session's id.
        lines: The lines, each of which begins with a name such as `verdict`.
    """

    session_id: str
    lines: list[str]


def explain(lake: Lake, session_id: str, key: PartitionKey | None = None) -> list[str]:
    """Return lines that explain how a session was processed, and why.

    The lines show its source, damage, task, verdict, measures, use and rows.

    Args:
        lake: the lake.
        session_id: the session.
        key: the partition; without one, every partition is searched.

    Raises:
        DataError: no partition has the session, or a table is of an older version.
        DamageError: a table is damaged.
    """
    keys = [key] if key else lake.partitions("tables", "sessions")
    lines = [line for partition in keys for line in _explain_in(lake, partition, session_id)]
    if not lines:
        raise DataError(
            f"No table of the lake {lake.root} has the session {session_id!r}: materialize "
            "`sessions`, or check the id."
        )
    return lines


def _explain_in(lake: Lake, key: PartitionKey, session_id: str) -> Iterator[str]:
    """Yield the lines about a session in one partition, if the partition contains the session."""
    session = _find_row(lake, "sessions", key, session_id)
    if session is None:
        return
    yield from _explain_reading(session, session_id, key)
    judged = _find_row(lake, "judged_sessions", key, session_id)
    if judged is not None:
        yield from _explain_verdict(judged)
    curated = _find_row(lake, "curated_sessions", key, session_id)
    if curated is not None:
        yield from _explain_use(curated)
    yield f"rows       {_list_counts(_count_rows(lake, key, session_id))}"


def _explain_reading(session: JsonObject, session_id: str, key: PartitionKey) -> Iterator[str]:
    """Yield lines about how a session was read."""
    created = session["created_at"] or "at an unknown time"
    yield f"session    {session_id} of {key}, read by {session['source']}, created {created}"
    messages, tools = session["messages"], session["tools"]
    calls = sum(len(message.get("tool_calls") or ()) for message in messages)
    yield (
        f"content    {len(messages)} messages, {calls} calls, {len(tools)} tools "
        f"({session['tools_origin']})"
    )
    dropped = f"; dropped for {session['broken']}" if session["broken"] else ""
    yield f"damage     {_list_counts(session['damage'])}{dropped}"
    unread: dict[str, int] = {}
    left_out: dict[str, int] = {}
    for name, count in session["skipped"].items():
        if name.startswith(_UNREAD):
            unread[name.removeprefix(_UNREAD)] = count
        else:
            left_out[name] = count
    if unread:
        yield f"unread     {_list_counts(unread)}"
    if left_out:
        yield f"left out   {_list_counts(left_out)}"
    yield f"task       {session['task_key']}"


def _explain_verdict(judged: JsonObject) -> Iterator[str]:
    """Yield lines about the verdict on a session, the opinions, and the facts of its turns."""
    line = f"verdict    {judged['verdict'] or 'none'}"
    if judged["verdict_by"]:
        name = f" ({judged['verdict_name']})" if judged["verdict_name"] else ""
        line += f" by {judged['verdict_by']}{name}"
    reasons = (judged["verdict_reasons"] or "").removeprefix(f"{judged['verdict_by']}: ")
    if reasons and reasons != judged["verdict"]:
        line += f": {reasons}"
    yield line
    opinions = [
        f"{name}: {opinion['verdict'] or opinion['reason']}"
        for name, opinion in judged["opinions"].items()
    ]
    yield f"opinions   {', '.join(opinions) or 'none'}"
    facts = Counter(fact for turn in judged["turns"] for fact in list_true_facts(turn))
    yield f"turns      {len(judged['turns'])}: {_list_counts(facts)}"


def _explain_use(curated: JsonObject) -> Iterator[str]:
    """Yield lines about how a session is used, and which measures it did not pass."""
    detail = curated["drop_detail"] and f"({curated['drop_detail']})"
    reason = " ".join(part for part in (curated["drop_reason"], detail) if part)
    other_session = curated["duplicate_of"] or curated["continued_by"]
    line = f"use        {curated['use']}"
    if reason:
        line += f": {reason}"
    if other_session:
        line += f", {other_session}"
    yield line
    yield f"measures   missed: {', '.join(curated['missed_measures']) or 'none'}"


def _count_rows(lake: Lake, key: PartitionKey, session_id: str) -> Counter[str]:
    """Count the rows made from a session in each dataset table of a partition."""
    counts: Counter[str] = Counter()
    for file in lake.files():
        if file.kind == "tables" and file.key == key and file.asset.endswith(_ROW_TABLES):
            for row in rows_naming(lake, file, session_id):
                if row.role in OF_THE_SESSION:
                    counts[row.asset] += 1
    return counts


def _find_row(lake: Lake, asset: str, key: PartitionKey, session_id: str) -> JsonObject | None:
    """Return the row of the session in a table, or `None` if there is no such row or table."""
    if not lake.has(asset, key):
        return None
    matching = (
        batch.filter(pc.equal(batch["session_id"], session_id))
        for batch in read_batches(lake.open(asset, key, _STAGES[asset]))
    )
    return next(to_rows(matching), None)


def _list_counts(counts: Mapping[str, int]) -> str:
    """Return the nonzero counts as text."""
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"
