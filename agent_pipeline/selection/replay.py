"""What a night replays, and what it remembers: the replay buffer between the lake's tables."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow.compute as pc

from agent_pipeline.datasets.ledger import read_ledger
from agent_pipeline.datasets.sft import SFT
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.judging.policy import how_to_judge
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import Redactor
from agent_pipeline.selection.buffer import Draw, Row, conversation_sha256, draw, remember
from agent_pipeline.selection.tables import (
    BUFFER,
    chosen_rows,
    dataset_rows,
    read_buffer,
    read_coreset,
)
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import make_column, to_batches
from agent_pipeline.storage.lake import Lake, StagedTable


@dataclass(frozen=True)
class Buffer:
    """The replay buffer after a night, on its way into the lake.

    `counts` says what became of each row; `redacted` counts what was found private, by kind.
    """

    table: StagedTable
    before: int
    forgotten: int
    trained: int
    counts: Counter[str]
    redacted: Counter[str]


def night_rows(
    lake: Lake,
    key: PartitionKey,
    ratio: float,
    sizes: SplitSizes,
    chosen: tuple[list[Row], set[str]] | None,
) -> tuple[list[Row], Draw]:
    """The chosen rows, and rows of earlier nights until they are `ratio` of the whole; `chosen` instead of those of `sft_coreset`.

    Raises:
        DataError: there is no row to train on, or a table is damaged or out of date.
    """
    rows, duplicated = chosen or chosen_rows(lake, key)
    if not rows:
        raise DataError(
            f"{key} has no training rows: see the drop reasons of curated_sessions. If the sessions have no verdict, {how_to_judge(key)}."
        )
    return rows, draw(read_buffer(lake, key), rows, ratio, held_out(lake, key, sizes), duplicated)


def build_buffer(
    lake: Lake, key: PartitionKey, size: int, sizes: SplitSizes, redactor: Redactor
) -> Buffer:
    """Build `replay_buffer` with the rows that this night trains on.

    Memory holds the old buffer and the new rows that may enter it.

    Raises:
        DataError: a table is damaged or out of date.
    """
    forgotten = BlockList.read(lake)
    stored = read_buffer(lake, key)
    before = [row for row in stored if not forgotten.has(row["session_id"], key)]
    ids = lake.open("curated_sessions", key).read(["session_id"])["session_id"]
    earlier = make_column([row["session_id"] for row in before], SFT.field("session_id"))
    in_store = set(ids.filter(pc.is_in(ids, earlier)).to_pylist())
    redacted: Counter[str] = Counter()
    before = [
        row if row["session_id"] in in_store else _redacted(row, redactor, key, redacted)
        for row in before
    ]
    coreset = read_coreset(lake, key, ["session_id", "chosen"])
    chosen = coreset.filter(coreset["chosen"])["session_id"].to_pylist()
    wanted = {*chosen, *(row["session_id"] for row in before)}
    current = {
        row["session_id"]: row for row in dataset_rows(lake, key) if row["session_id"] in wanted
    }
    if missing := set(chosen) - set(current):
        raise DataError(
            f"{len(missing)} chosen rows of {key} are no longer in sft_dataset: materialize sft_coreset again."
        )
    rows, counts = remember(before, current, chosen, in_store, held_out(lake, key, sizes), size)
    table = lake.stage(BUFFER, key, to_batches(rows, SFT), SFT)
    return Buffer(table, len(stored), len(stored) - len(before), len(chosen), counts, redacted)


def held_out(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> Callable[[Row], bool]:
    """Tells whether a row may never be trained on: the ledger holds out its task, or a held-out row says the same."""
    ledger = read_ledger(lake, key, sizes)
    texts = {conversation_sha256(row) for row in dataset_rows(lake, key, ("select", "test"))}
    return lambda row: (
        ledger.find_split(row["task_key"]) != "train" or conversation_sha256(row) in texts
    )


def held_out_sessions(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> list[str]:
    """The sessions in the buffer that must not be there."""
    is_held_out = held_out(lake, key, sizes)
    return [row["session_id"] for row in read_buffer(lake, key) if is_held_out(row)]


def _redacted(row: Row, redactor: Redactor, key: PartitionKey, counts: Counter[str]) -> Row:
    """A row of a session that the store no longer has, by the settings of this run; the same object where nothing is found."""
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
