"""A partition of a store as the table `sessions`: one pass, one batch in memory, and what did not change since the last table is copied.

Beside the table lies `sessions_seen`: of each session a hash of what the store held, and what the run must know of a session that it does
not read again. A table that is made by copying has the bytes of one that is made anew; a change of code, settings or table makes all anew.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.drift import Drift, drift
from agent_pipeline.ingestion.forgotten import BlockList
from agent_pipeline.ingestion.maker import made_by
from agent_pipeline.ingestion.reading import Preparation, ReadingOptions
from agent_pipeline.ingestion.volume import check_volume
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Tool, content_sha256, json_bytes
from agent_pipeline.sessions.tables import (
    CHARACTERS_PER_BATCH,
    MESSAGES,
    ROWS_PER_BATCH,
    SESSIONS,
    column,
    encoded_batch,
    encoded_row,
    to_batches,
    to_rows,
)
from agent_pipeline.sessions.tools import CallShape, ToolSchemas
from agent_pipeline.sources.base import Stored, TraceSource
from agent_pipeline.storage.lake import Lake, StagedTable, sha256_file

SEEN = "sessions_seen"
_SEEN_SCHEMA = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("digest", pa.binary(), nullable=False),
        pa.field("calls", pa.string(), nullable=False),
        pa.field("redacted", pa.string(), nullable=False),
        pa.field("private_id", pa.bool_(), nullable=False),
        pa.field("clean", pa.bool_(), nullable=False),
    ]
)
_MADE_BY, TABLE_SHA256, _TOOLS = b"made_by", b"table_sha256", b"tools"
_SHAPES = msgspec.json.Decoder(list[CallShape])


class _Seen(NamedTuple):
    """What the next run must know of a session: a row of `sessions_seen`. `clean`: a search of the written row found nothing private."""

    session_id: str
    digest: bytes
    calls: str
    redacted: str
    private_id: bool
    clean: bool = False


class Ingested(NamedTuple):
    """The table, not yet in its place, and what is worth telling: counts by name (`damage`, `skipped`, `judgment`, `tools`), what was
    redacted by kind, the first sessions, how many were copied from the last table, how many of the store's were kept out as forgotten, and
    how the new sessions' tools differ from the last table's."""

    table: StagedTable
    counts: dict[str, Counter[str]]
    redacted: Counter[str]
    first: list[dict[str, Any]]
    copied: int
    forgotten: int
    drift: Drift


def ingest(source: TraceSource, key: PartitionKey, options: ReadingOptions, lake: Lake, smallest_share: float = 0.0) -> Ingested:
    """Read a partition and write its table, unless the store has less than `smallest_share` of the last table's sessions or verdicts.

    `sessions_seen` is written at once. It names the table that it describes, and is ignored beside any other.
    Raises what `TraceSource.sessions`, `Preparation`, `Lake.stage` and `check_volume` raise.
    """
    maker = made_by(options, source)
    run = _Run(key, Preparation(options), BlockList.read(lake), _last(lake, key, maker))
    table = lake.stage("sessions", key, run.batches(source.stored(key)), SESSIONS)
    tools = run.inferred()
    if run.tools is not None and tools != run.tools:  # the last sessions taught what the first ones did not know
        table = lake.stage("sessions", key, _with_tools(table, tools), SESSIONS)
    check_volume(lake, key, table, smallest_share, source.notes)
    tool_drift = drift(lake, "sessions", key, table)
    source.notes.extend(run.preparation.notes(key))
    metadata = {_MADE_BY: maker.encode(), TABLE_SHA256: table.sha256.encode(), _TOOLS: json_bytes(tools)}
    schema = _SEEN_SCHEMA.with_metadata(metadata)
    lake.stage(SEEN, key, to_batches((each._asdict() for each in run.seen), schema), schema).commit()
    return Ingested(table, _counts(table), run.preparation.redacted, _first(table), run.copied, run.forgotten, tool_drift)


class _Last(NamedTuple):
    """The last table, where it can be copied from: its file, what is known of each row, and where each session's is."""

    file: pq.ParquetFile
    seen: list[_Seen]
    places: dict[str, int]
    tools: list[Tool]


def seen_sessions(lake: Lake, key: PartitionKey) -> pa.Table | None:
    """What was noted of the sessions of the table that is in its place; `None` where nothing was, or it was noted of another table."""
    if not (lake.is_local and lake.has("sessions", key) and lake.has(SEEN, key)):
        return None
    try:
        table = lake.open(SEEN, key, _SEEN_SCHEMA).read()
        noted = (table.schema.metadata or {}).get(TABLE_SHA256)
        return table if noted == sha256_file(Path(lake.table("sessions", key).path)).encode() else None
    except (DataError, pa.ArrowException, OSError):
        return None


def _last(lake: Lake, key: PartitionKey, maker: str) -> _Last | None:
    table = seen_sessions(lake, key)
    if table is None or table.schema.metadata.get(_MADE_BY) != maker.encode():
        return None
    try:
        seen = [_Seen(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        tools = msgspec.json.decode(table.schema.metadata[_TOOLS])
        return _Last(lake.open("sessions", key), seen, {each.session_id: at for at, each in enumerate(seen)}, tools)
    except (DataError, KeyError, TypeError, ValueError):  # made anew, it is whole again
        return None


class _Run:
    """One pass over a store; `tools` are those that the batches were given, which the end of the pass may prove wrong."""

    def __init__(self, key: PartitionKey, preparation: Preparation, blocked: BlockList, last: _Last | None) -> None:
        self.preparation = preparation
        self.tools: list[Tool] | None = last.tools if last else None
        self.seen: list[_Seen] = []
        self.copied = self.forgotten = 0
        self._key, self._blocked, self._last = key, blocked, last
        self._calls: set[str] = set()

    def inferred(self) -> list[Tool]:
        """The tools that all calls so far tell of."""
        schemas = ToolSchemas()
        for text in self._calls:
            schemas.add(_SHAPES.decode(text))
        return schemas.tools()

    def batches(self, stored: Iterator[Stored]) -> Iterator[pa.RecordBatch]:
        """The table's batches: a thousand rows each, or fewer where they are long; an unchanged session's row is copied."""
        old = _Rows(self._last.file) if self._last else None
        rows: list[list[Any]] = []
        places: list[tuple[bool, int]] = []  # of each row: whether it is copied, and its place in the last table or in `rows`
        size, newest = 0, -1
        for each in stored:
            if self._blocked.has(each.session_id, self._key):
                self.forgotten += 1
                continue
            at = self._last.places.get(each.session_id, -1) if self._last else -1
            if self._last and old and at > newest and self._last.seen[at].digest == each.digest:
                newest = at
                places.append((True, at))
                size += old.size(at)
                known = self._last.seen[at]
                self.copied += 1
            else:
                row, known = self._prepared_row(each)
                places.append((False, len(rows)))
                rows.append(row)
                size += len(row[MESSAGES])
            self._calls.add(known.calls)
            self.seen.append(known)
            self.preparation.note(known.session_id, _redacted(known.redacted), known.private_id)
            if len(places) == ROWS_PER_BATCH or size >= CHARACTERS_PER_BATCH:
                yield self._batch(rows, places, old)
                rows, places, size = [], [], 0
        if places:
            yield self._batch(rows, places, old)

    def _prepared_row(self, stored: Stored) -> tuple[list[Any], _Seen]:
        session = self._blocked.without_names(stored.build(), self._key)
        redacted, calls, private_id = self.preparation.prepare(session)
        counted = json_bytes(redacted).decode() if redacted else "{}"
        return encoded_row(session), _Seen(stored.session_id, stored.digest, _text_of(calls), sys.intern(counted), private_id)

    def _batch(self, rows: list[list[Any]], places: list[tuple[bool, int]], old: "_Rows | None") -> pa.RecordBatch:
        if self.tools is None:
            self.tools = self.inferred()  # of the first batch: mostly they are all
        batch = encoded_batch(rows, json_bytes(self.tools))
        if old is not None:
            groups, first = old.up_to(max((at for copied, at in places if copied), default=-1))
            order = column([batch.num_rows + at - first if copied else at for copied, at in places], pa.field("at", pa.int64()))
            batch = _single_batch(pa.concat_tables([pa.Table.from_batches([batch]), *groups]).take(order))
        return batch


class _Rows:
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
        return self._file.read_row_group(number, use_threads=False) if number < self._file.num_row_groups else None

    def _read(self) -> None:
        if (group := self._ahead.result()) is None:
            raise IndexError("the last table has no such row")
        self._next += 1
        self._ahead = self._thread.submit(self._group, self._next)
        self._end += group.num_rows
        self._groups.append(group)
        for chunk in group["messages"].chunks:
            self._sizes += pc.binary_length(chunk.storage).to_pylist()


def _filled(table: pa.Table, tools: list[Tool]) -> pa.Table:
    """A table whose rows without tools have the inferred ones; the content's hash says so."""
    origins = table["tools_origin"].to_pylist()
    if not any(origin in ("none", "inferred") for origin in origins):
        return table
    text, origin = json_bytes(tools), "inferred" if tools else "none"
    own = table["tools"].to_pylist()
    hashes, messages = table["content_sha256"].to_pylist(), table["messages"]
    for at, each in enumerate(origins):
        if each in ("none", "inferred"):
            origins[at], own[at] = origin, text.decode()
            hashes[at] = content_sha256(messages[at].as_py().encode(), text)
    columns = {"tools": own, "tools_origin": origins, "content_sha256": hashes}
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(place), column(values, table.schema.field(place)))
    return table


def _with_tools(staged: StagedTable, tools: list[Tool]) -> Iterator[pa.RecordBatch]:
    """The batches of a table with other tools inferred."""
    file = pq.ParquetFile(staged.file)
    for group in range(file.num_row_groups):
        yield _single_batch(_filled(file.read_row_group(group, use_threads=False), tools))
    staged.file.unlink()


def _single_batch(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _counts(staged: StagedTable) -> dict[str, Counter[str]]:
    """Damage and what was skipped, by kind; sessions by the source's judgment and by the origin of their tools."""
    table = pq.ParquetFile(staged.file).read(["damage", "skipped", "judgment", "tools_origin"])
    counts: dict[str, Counter[str]] = {name: Counter() for name in ("damage", "skipped")}
    for name, by_kind in counts.items():
        for text, times in _value_counts(table[name].cast(pa.string())):
            by_kind.update({kind: number * times for kind, number in msgspec.json.decode(text).items()})
    for name, place in (("judgment", "judgment"), ("tools", "tools_origin")):
        counts[name] = Counter({value or "none": times for value, times in _value_counts(table[place])})
    return counts


def _value_counts(values: pa.ChunkedArray) -> list[tuple[Any, int]]:
    return [(each["values"], each["counts"]) for each in pc.value_counts(values).to_pylist()]


def _first(staged: StagedTable, number: int = 5) -> list[dict[str, Any]]:
    batches = pq.ParquetFile(staged.file).iter_batches(batch_size=number, columns=["session_id", "messages"])
    return list(to_rows(batch for batch, _ in zip(batches, range(1), strict=False)))


@lru_cache(maxsize=4096)  # many sessions have the same: one text of each is held
def _text_of(shapes: frozenset[CallShape]) -> str:
    return json_bytes(sorted(shapes)).decode()


@lru_cache(maxsize=1024)
def _redacted(text: str) -> dict[str, int]:
    return msgspec.json.decode(text, type=dict[str, int])
