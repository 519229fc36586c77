"""A session's way from its source to its rows, in about ten lines for a person."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.governance.lineage import OF_THE_SESSION, rows_naming
from agent_pipeline.judging.turns import true_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import CURATED, JUDGED, SESSIONS, read_batches, to_rows
from agent_pipeline.storage.lake import Lake

_STAGES = {"sessions": SESSIONS, "judged_sessions": JUDGED, "curated_sessions": CURATED}
"""The tables that every session goes through."""

_OF_ROWS = ("_dataset", "_coreset", "_buffer")
"""How the names of the tables of rows end."""


def explain(lake: Lake, session_id: str, key: PartitionKey | None = None) -> list[str]:
    """What became of a session, and why: source, damage, task, verdict and by whom, measures, use, rows. Without a key every partition of
    the lake is searched.

    Raises:
        DataError: no partition has the session, or a table is damaged or an older version's.
    """
    keys = [key] if key else lake.partitions("tables", "sessions")
    lines = [line for each in keys for line in _in_partition(lake, each, session_id)]
    if not lines:
        raise DataError(
            f"No table of {lake.root} has the session {session_id!r}: materialize sessions, or check the id."
        )
    return lines


def _in_partition(lake: Lake, key: PartitionKey, session_id: str) -> Iterator[str]:
    rows = {
        asset: row
        for asset, schema in _STAGES.items()
        if (row := _row(lake, asset, key, session_id, schema))
    }
    if "sessions" not in rows:
        return
    session = rows["sessions"]
    yield f"session    {session_id} of {key}, read by {session['source']}, created {session['created_at'] or 'at an unknown time'}"
    calls = sum(len(message.get("tool_calls") or ()) for message in session["messages"])
    yield f"content    {len(session['messages'])} messages, {calls} calls, {len(session['tools'])} tools ({session['tools_origin']})"
    yield f"damage     {_counts(session['damage'])}" + (
        f"; dropped for {session['broken']}" if session["broken"] else ""
    )
    unread = {
        name.removeprefix("unread:"): count
        for name, count in session["skipped"].items()
        if name.startswith("unread:")
    }
    if unread:
        yield f"unread     {_counts(unread)}"
    if left_out := {
        name: count for name, count in session["skipped"].items() if not name.startswith("unread:")
    }:
        yield f"left out   {_counts(left_out)}"
    yield f"task       {session['task_key']}"
    if judged := rows.get("judged_sessions"):
        by = judged["verdict_by"] and judged["verdict_by"] + (
            f" ({judged['verdict_name']})" if judged["verdict_name"] else ""
        )
        why = judged["verdict_reasons"]
        yield (
            f"verdict    {judged['verdict'] or 'none'}"
            + (f" by {by}" if by else "")
            + (f": {why}" if why else "")
        )
        opinions = {
            name: opinion["verdict"] or opinion["reason"]
            for name, opinion in judged["opinions"].items()
        }
        yield f"opinions   {', '.join(f'{name}: {opinion}' for name, opinion in opinions.items()) or 'none'}"
        facts = Counter(fact for turn in judged["turns"] for fact in true_facts(turn))
        yield f"turns      {len(judged['turns'])}: {_counts(facts)}"
    if curated := rows.get("curated_sessions"):
        why = " ".join(
            filter(
                None,
                (curated["drop_reason"], curated["drop_detail"] and f"({curated['drop_detail']})"),
            )
        )
        other = curated["duplicate_of"] or curated["continued_by"]
        yield (
            f"use        {curated['use']}"
            + (f": {why}" if why else "")
            + (f", {other}" if other else "")
        )
        yield f"measures   missed: {', '.join(curated['missed_measures']) or 'none'}"
    datasets = (
        file
        for file in lake.files()
        if file.kind == "tables" and file.key == key and file.asset.endswith(_OF_ROWS)
    )
    found = Counter(
        row.asset
        for file in datasets
        for row in rows_naming(lake, file, session_id)
        if row.role in OF_THE_SESSION
    )
    yield f"rows       {_counts(found)}"


def _row(
    lake: Lake, asset: str, key: PartitionKey, session_id: str, schema: pa.Schema
) -> dict[str, Any] | None:
    """The session's row in a table; `None` where there is no table, or no such row."""
    if not lake.has(asset, key):
        return None
    matching = (
        batch.filter(pc.equal(batch["session_id"], session_id))
        for batch in read_batches(lake.open(asset, key, schema))
    )
    return next(to_rows(matching), None)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items() if count) or "none"
