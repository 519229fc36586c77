"""The table `sessions_seen`, which holds notes about each row of the table `sessions`.

With these notes, a later run copies rows of the last table instead of reading unchanged sessions
again. The notes, and reading the last table's rows in order, belong here. The decision which rows
are copied belongs to `table_pass`.
"""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import make_batch, make_column
from agent_pipeline.storage.lake import Lake

SEEN_TABLE = "sessions_seen"
SEEN_SCHEMA = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("digest", pa.binary(), nullable=False),
        pa.field("calls", pa.string(), nullable=False),
        pa.field("redacted", pa.string(), nullable=False),
        pa.field("private_id", pa.bool_(), nullable=False),
        pa.field("task", pa.string(), nullable=False),
        pa.field("clean", pa.bool_(), nullable=False),
    ]
)
TABLE_SHA256 = b"table_sha256"
"""Metadata key of the sha256 of the table `sessions` that the notes describe."""


class SeenSession(NamedTuple):
    """A row of `sessions_seen`: the notes about one session.

    All rows are held as an Arrow table, which takes about 60 bytes per session besides the ids.

    Attributes:
        session_id: The session's id.
        digest: A hash of the session's data in the store.
        calls: The JSON of the shapes of the session's calls, if its source has no tools.
        redacted: The JSON of the counts of redacted values, by kind.
        private_id: Whether the id looks private.
        task: A hash of the task before redaction.
        clean: Whether a search of the written row found nothing private.
    """

    session_id: str
    digest: bytes
    calls: str
    redacted: str
    private_id: bool
    task: str
    clean: bool = False


@dataclass(frozen=True)
class SeenTable:
    """A table `sessions`, and the notes about its rows."""

    seen: pa.Table
    file: pq.ParquetFile


def read_seen_sessions(lake: Lake, key: PartitionKey) -> SeenTable | None:
    """Return the notes about the current table `sessions`.

    The result is None if there are no notes, or if they describe a different table.
    """
    try:
        seen = lake.open(SEEN_TABLE, key, SEEN_SCHEMA).read()
        file = lake.fs.open(lake.table("sessions", key))
        described_sha256 = (seen.schema.metadata or {}).get(TABLE_SHA256)
        if described_sha256 != hashlib.file_digest(file, "sha256").hexdigest().encode():
            return None
        return SeenTable(seen, pq.ParquetFile(file))
    except (DataError, pa.ArrowException, OSError):
        return None


def share_call_texts(seen: pa.Table) -> pa.Table:
    """Return the notes so that sessions with the same calls share a single text object."""
    index = seen.schema.get_field_index("calls")
    return seen.set_column(index, "calls", seen["calls"].dictionary_encode())


def make_seen_table(rows: list[SeenSession]) -> pa.Table:
    """Return the notes about some sessions as a table."""
    return share_call_texts(pa.Table.from_batches([make_batch(rows, SEEN_SCHEMA)]))


def make_id_column(ids: Iterable[str]) -> pa.Array:
    """Return session ids or task hashes as an Arrow column."""
    return make_column(list(ids), SEEN_SCHEMA.field("session_id"))


@dataclass(frozen=True)
class RowGroups:
    """Successive row groups of a table, and the index of the first row in them."""

    groups: list[pa.Table]
    first_row: int


class RowReader:
    """A reader of a table's rows in order, which holds only a few row groups in memory.

    A thread reads the next row group in the background, without the interpreter lock.
    """

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="last-table")
        self._next_group_index = 0
        self._next_group = self._thread.submit(self._read_group, 0)
        self._groups: list[pa.Table] = []
        self._sizes: list[int] = []
        """Length in bytes of each row's messages, for the row groups in memory."""
        self._first_row = 0
        self._end_row = 0

    def measure_row(self, row_index: int) -> int:
        """Return the length in bytes of a row's messages."""
        while row_index >= self._end_row:
            self._load_next_group()
        return self._sizes[row_index - self._first_row]

    def take_groups(self, last_row: int) -> RowGroups:
        """Return the row groups that are in memory.

        Row groups that end at or before `last_row` are then removed from memory.
        """
        row_groups = RowGroups(list(self._groups), self._first_row)
        while self._groups and self._first_row + self._groups[0].num_rows <= last_row + 1:
            finished_rows = self._groups.pop(0).num_rows
            self._first_row += finished_rows
            del self._sizes[:finished_rows]
        return row_groups

    def _read_group(self, group_index: int) -> pa.Table | None:
        """Return the next row group, or None after the last row group."""
        if group_index >= self._file.num_row_groups:
            return None
        return self._file.read_row_group(group_index, use_threads=False)

    def _load_next_group(self) -> None:
        """Load the next row group into memory, and start reading the row group after it."""
        group = self._next_group.result()
        if group is None:
            raise IndexError("The row is beyond the end of the last table `sessions`.")
        self._next_group_index += 1
        self._next_group = self._thread.submit(self._read_group, self._next_group_index)
        self._end_row += group.num_rows
        self._groups.append(group)
        for chunk in group["messages"].chunks:
            self._sizes += pc.binary_length(chunk.storage).to_pylist()
