"""The replay buffer in the lake's tables: the rows that a night replays and stores.

Choosing rows belongs to `buffer`.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import pyarrow.compute as pc

from agent_pipeline.datasets.ledger import read_ledger
from agent_pipeline.datasets.sft import SFT, list_excluded_messages
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.judging.curation import find_authority
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.judging.repetitions import hash_beginnings
from agent_pipeline.judging.verdict_policy import advise_on_judging
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.buffer import (
    BufferChange,
    IsHeldOut,
    ReplayDraw,
    Row,
    draw_replay,
    hash_spoken,
    update_buffer,
)
from agent_pipeline.selection.tables import (
    BUFFER,
    ChosenRows,
    MissingRowsError,
    read_buffer,
    read_chosen_rows,
    read_coreset,
    read_dataset_rows,
)
from agent_pipeline.sessions.session import Message, Session, is_trained
from agent_pipeline.sessions.tables import make_column, read_batches, to_batches, to_rows
from agent_pipeline.storage.lake import Lake, StagedTable


@dataclass(frozen=True)
class Buffer:
    """The replay buffer after a night's training, staged for the lake.

    Attributes:
        table: The staged table.
        before: The number of rows before the night.
        forgotten: The number of rows of forgotten sessions.
        trained: The number of rows that the night trains.
        counts: The number of rows by outcome.
        redacted: The number of private values that were replaced, by kind.
    """

    table: StagedTable
    before: int
    forgotten: int
    trained: int
    counts: Counter[str]
    redacted: Counter[str]


@dataclass(frozen=True)
class NightRows:
    """The rows on which a night trains the agent.

    Attributes:
        rows: The night's own rows.
        replay: Rows of earlier nights.
    """

    rows: list[Row]
    replay: ReplayDraw


def read_night_rows(
    lake: Lake,
    key: PartitionKey,
    ratio: float,
    sizes: SplitSizes,
    chosen: ChosenRows | None,
) -> NightRows:
    """Return the rows on which a night trains the agent.

    They are the chosen rows, and rows of earlier nights up to the share `ratio` of the whole.

    Args:
        lake: The lake.
        key: The agent.
        ratio: The share of rows of earlier nights.
        sizes: The sizes of the splits.
        chosen: The chosen rows. None means the rows of `sft_coreset`.

    Raises:
        DataError: there is no row to train, or a table is damaged or out of date.
    """
    chosen = chosen or read_chosen_rows(lake, key)
    if not chosen.rows:
        raise DataError(
            f"{key} has no training rows: see the drop reasons of `curated_sessions`. If the "
            f"sessions have no verdict, {advise_on_judging(key)}."
        )
    is_held_out = make_held_out_test(lake, key, sizes)
    buffer = read_buffer(lake, key)
    replay = draw_replay(buffer, chosen.rows, ratio, is_held_out, chosen.duplicated)
    return NightRows(chosen.rows, replay)


def build_buffer(
    lake: Lake, key: PartitionKey, size: int, sizes: SplitSizes, redactor: Redactor
) -> Buffer:
    """Build `replay_buffer` from the last buffer and the rows that this night trains.

    Memory holds the last buffer and the new rows that may enter it.

    Args:
        lake: The lake.
        key: The agent.
        size: Maximum number of rows.
        sizes: The sizes of the splits.
        redactor: Replaces private values in rows whose sessions are no longer in the store.

    Raises:
        DataError: a table is damaged or out of date.
    """
    forgotten = BlockList.read(lake)
    stored = read_buffer(lake, key)
    before = [row for row in stored if not forgotten.has(row["session_id"], key)]
    forgotten_count = len(stored) - len(before)
    ids = lake.open("curated_sessions", key).read(["session_id"])["session_id"]
    earlier = make_column([row["session_id"] for row in before], SFT.field("session_id"))
    in_store = set(ids.filter(pc.is_in(ids, earlier)).to_pylist())
    redacted: Counter[str] = Counter()
    before = [
        row if row["session_id"] in in_store else _redact(row, redactor, key, redacted)
        for row in before
    ]
    judged_bad = _find_judged_bad(lake, key, before, in_store)
    before = [row for row in before if row["session_id"] not in judged_bad]
    coreset = read_coreset(lake, key, ["session_id", "chosen"])
    chosen = coreset.filter(coreset["chosen"])["session_id"].to_pylist()
    wanted = {*chosen, *(row["session_id"] for row in before)}
    current = {
        row["session_id"]: row
        for row in read_dataset_rows(lake, key)
        if row["session_id"] in wanted
    }
    missing = set(chosen) - set(current)
    if missing:
        raise MissingRowsError(key, len(missing))
    is_held_out = make_held_out_test(lake, key, sizes)
    updated = update_buffer(before, current, chosen, in_store, is_held_out, size)
    updated.counts[BufferChange.JUDGED_BAD] += len(judged_bad)
    return Buffer(
        table=lake.stage(BUFFER, key, to_batches(updated.rows, SFT), SFT),
        before=len(stored),
        forgotten=forgotten_count,
        trained=len(chosen),
        counts=+updated.counts,
        redacted=redacted,
    )


def _find_judged_bad(
    lake: Lake, key: PartitionKey, before: Iterable[Row], in_store: Collection[str]
) -> set[str]:
    """Return the remembered sessions that the store has under another id, and that are bad now.

    A store may lose a session and get it again under another id. A verdict on the new session is
    also a verdict on the remembered row. As in curation, a verdict counts only if its authority is
    at least the authority of the row's verdict: a person, then a verifier, then nobody.

    Args:
        lake: The lake.
        key: The agent.
        before: The rows of the last buffer.
        in_store: The sessions of the last buffer that are still in the store.
    """
    lost_rows: defaultdict[int, list[Row]] = defaultdict(list)
    for row in before:
        if row["session_id"] not in in_store:
            lost_rows[hash_beginnings(row["messages"], with_weights=False)[-1]].append(row)
    if not lost_rows:
        return set()
    judged_bad: set[str] = set()
    table = lake.open("curated_sessions", key)
    for session in to_rows(read_batches(table, ["use", "verdict_by", "messages"])):
        if session["use"] != SessionUse.NEGATIVE.value:
            continue
        hashes = hash_beginnings(session["messages"], with_weights=False)
        judged_bad.update(
            row["session_id"]
            for beginning in hashes
            for row in lost_rows.get(beginning, ())
            if find_authority(session["verdict_by"]) >= find_authority(row.get("verdict_by"))
            and _is_whole(row, session["messages"])
        )
    return judged_bad


def _is_whole(row: Row, messages: Sequence[Message]) -> bool:
    """Return whether a row is cut where the session that begins with it would be cut.

    This is the case if the rest of the session has no turn to train, apart from the turns that were
    excluded when the row was made.

    Args:
        row: The row.
        messages: The session's messages, which begin with the row's messages.
    """
    excluded = list_excluded_messages(row["row_id"], row["session_id"])
    return not any(
        message["role"] == "assistant" and is_trained(message) and index not in excluded
        for index, message in enumerate(messages)
        if index >= len(row["messages"])
    )


def make_held_out_test(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> IsHeldOut:
    """Return a function that tests whether a row is held out and must never be trained.

    This is the case if the ledger holds out the row's task, or if a held-out row has the same
    conversation.
    """
    ledger = read_ledger(lake, key, sizes)
    texts = {hash_spoken(row) for row in read_dataset_rows(lake, key, ("select", "test"))}
    return lambda row: ledger.find_split(row["task_key"]) != "train" or hash_spoken(row) in texts


def list_held_out_sessions(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> list[str]:
    """Return the held-out sessions in the replay buffer.

    The buffer must not contain held-out sessions.
    """
    is_held_out = make_held_out_test(lake, key, sizes)
    return [row["session_id"] for row in read_buffer(lake, key) if is_held_out(row)]


def _redact(row: Row, redactor: Redactor, key: PartitionKey, counts: Counter[str]) -> Row:
    """Redact the row of a session that is no longer in the store, by the current settings.

    Args:
        row: The row.
        redactor: Replaces private values.
        key: The agent.
        counts: Receives the number of replaced values, by kind.

    Returns:
        The redacted row, or the same object if it contains no private data.
    """
    session = Session(
        session_id=row["session_id"],
        project=key.project,
        agent=key.agent,
        source=BUFFER,
        messages=row["messages"],
        tools=row["tools"],
        task_key=row["task_key"],
    )
    kinds = redactor.redact(session)
    if not kinds and session.task_key == row["task_key"]:
        return row
    counts.update(kinds)
    return row | {
        "messages": session.messages,
        "tools": session.tools,
        "task_key": session.task_key,
        "content_sha256": session.hash_content(),
    }
