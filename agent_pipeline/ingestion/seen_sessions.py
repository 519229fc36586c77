"""What the last run left: what is noted of each session of the table `sessions`, in a table beside it (`sessions_seen`), and its rows."""

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
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


class SeenSession(NamedTuple):
    """What the next run must know of a session: a row of `sessions_seen`. `clean`: a search of the written row found nothing private.

    All of them are held as an Arrow table: the bytes of each id and some 60 more, and one text of all sessions that have the same.
    """

    session_id: str
    digest: bytes
    calls: str
    redacted: str
    private_id: bool
    task: str
    clean: bool = False


def read_seen_sessions(lake: Lake, key: PartitionKey) -> tuple[pa.Table, pq.ParquetFile] | None:
    """What was noted of the sessions of the table that is in its place, and that table; `None` where nothing was, or it was noted of
    another table."""
    try:
        seen, file = (
            lake.open(SEEN_TABLE, key, SEEN_SCHEMA).read(),
            lake.fs.open(lake.table("sessions", key)),
        )
        written = (seen.schema.metadata or {}).get(TABLE_SHA256)
        return (
            (seen, pq.ParquetFile(file))
            if written == hashlib.file_digest(file, "sha256").hexdigest().encode()
            else None
        )
    except (DataError, pa.ArrowException, OSError):
        return None


def share_call_texts(seen: pa.Table) -> pa.Table:
    """The table as it is held: of all sessions with the same calls one text."""
    return seen.set_column(2, "calls", seen["calls"].dictionary_encode())


def make_seen_table(seen: list[SeenSession]) -> pa.Table:
    """Some sessions as such a table."""
    return share_call_texts(pa.Table.from_batches([make_batch(seen, SEEN_SCHEMA)]))


def make_id_column(names: Iterable[str]) -> pa.Array:
    """Ids or tasks as a column."""
    return make_column(list(names), SEEN_SCHEMA.field("session_id"))


class RowReader:
    """Rows of a table in their order, a row group at a time; the next one is read (which needs no interpreter lock) meanwhile."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="last-table")
        self._ahead = self._thread.submit(self._group, 0)
        self._groups: list[pa.Table] = []
        self._sizes: list[int] = []
        self._first = self._end = self._next = 0

    def size(self, at: int) -> int:
        """The length of a row's messages in bytes."""
        while at >= self._end:
            self._read()
        return self._sizes[at - self._first]

    def up_to(self, at: int) -> tuple[list[pa.Table], int]:
        """The row groups in memory and the place of their first row; those that end before the row after `at` are let go afterwards."""
        groups, first = list(self._groups), self._first
        while self._groups and self._first + self._groups[0].num_rows <= at + 1:
            gone = self._groups.pop(0).num_rows
            self._first += gone
            del self._sizes[:gone]
        return groups, first

    def _group(self, number: int) -> pa.Table | None:
        return (
            self._file.read_row_group(number, use_threads=False)
            if number < self._file.num_row_groups
            else None
        )

    def _read(self) -> None:
        if (group := self._ahead.result()) is None:
            raise IndexError("the last table has no such row")
        self._next += 1
        self._ahead = self._thread.submit(self._group, self._next)
        self._end += group.num_rows
        self._groups.append(group)
        for chunk in group["messages"].chunks:
            self._sizes += pc.binary_length(chunk.storage).to_pylist()
