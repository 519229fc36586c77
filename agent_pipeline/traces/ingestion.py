"""A partition of a store as the table `sessions`: one pass, one batch in memory, and what did not change since the last table is copied.

Beside the table lies `sessions_seen`: of each session a hash of what the store held, and what the run must know of a session that it does
not read again. A table that is made by copying has the bytes of one that is made anew; a change of code, settings or table makes all anew.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.lake import Lake, StagedTable, sha256_file
from agent_pipeline.traces.partitions import PartitionKey
from agent_pipeline.traces.reading import Preparation, ReadingOptions
from agent_pipeline.traces.redaction.detectors import LIBRARIES
from agent_pipeline.traces.session import Session, Tool, content_sha256, json_bytes, sha256_of
from agent_pipeline.traces.sources.base import TraceSource
from agent_pipeline.traces.tables import CHARACTERS_PER_BATCH, ROWS_PER_BATCH, SESSIONS, column, encoded_batch, encoded_row, to_rows
from agent_pipeline.traces.tools import CallShape, ToolSchemas, call_shapes

SEEN = "sessions_seen"
_SEEN_SCHEMA = pa.schema(
    [
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("digest", pa.binary(), nullable=False),
        pa.field("calls", pa.string(), nullable=False),
        pa.field("redacted", pa.string(), nullable=False),
        pa.field("private_id", pa.bool_(), nullable=False),
    ]
)
_MADE_BY, _TABLE, _TOOLS = b"made_by", b"table_sha256", b"tools"
_LIBRARIES = ("pyarrow", "msgspec", *LIBRARIES)
_SHAPES = msgspec.json.Decoder(list[CallShape])


class Stored(NamedTuple):
    """A session as its store holds it: `digest` changes whenever anything that the reader takes does; `build` reads it."""

    session_id: str
    digest: bytes
    build: Callable[[], Session]


class _Seen(NamedTuple):
    """What the next run must know of a session: a row of `sessions_seen`."""

    session_id: str
    digest: bytes
    calls: str
    redacted: str
    private_id: bool


class Ingested(NamedTuple):
    """The table, not yet in its place, and what is worth telling: counts by name (`damage`, `skipped`, `judgment`, `tools`), what was
    redacted by kind, the first sessions, and how many were copied from the last table."""

    table: StagedTable
    counts: dict[str, Counter[str]]
    redacted: Counter[str]
    first: list[dict[str, Any]]
    copied: int


def ingest(source: TraceSource, key: PartitionKey, options: ReadingOptions, lake: Lake) -> Ingested:
    """Read a partition and write its table.

    What the next run needs is kept at once: it names the table that it belongs to, and counts for nothing beside another.
    Raises what `TraceSource.sessions`, `Preparation` and `Lake.stage` raise.
    """
    last = _last(lake, key, options)
    run = _Run(Preparation(options), last)
    table = lake.stage("sessions", key, run.batches(stored_sessions(source, key)), SESSIONS)
    tools = run.inferred()
    if run.tools is not None and tools != run.tools:  # the last sessions taught what the first ones did not know
        table = lake.stage("sessions", key, _with_tools(table, tools), SESSIONS)
    source.notes.extend(run.preparation.notes(key))
    metadata = {_MADE_BY: made_by(options).encode(), _TABLE: table.sha256.encode(), _TOOLS: json_bytes(tools)}
    schema = _SEEN_SCHEMA.with_metadata(metadata)
    lake.stage(SEEN, key, _seen_batches(run.seen, schema), schema).commit()
    return Ingested(table, _counts(table), run.preparation.redacted, _first(table), run.copied)


def _seen_batches(seen: list[_Seen], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    for start in range(0, len(seen), ROWS_PER_BATCH):
        columns = zip(*seen[start : start + ROWS_PER_BATCH], strict=True)
        yield pa.RecordBatch.from_arrays([column(list(values), each) for values, each in zip(columns, schema, strict=True)], schema=schema)


def stored_sessions(source: TraceSource, key: PartitionKey) -> Iterator[Stored]:
    """A partition's sessions with their digests: of the store's own rows where the source offers that (`stored`), else of what it reads."""
    if (quick := getattr(source, "stored", None)) is not None:
        for session_id, digest, build in quick(key):
            yield Stored(session_id, digest, build)
        return
    for session in source.sessions(key):
        digest = hashlib.sha256(json_bytes(session)).digest()
        yield Stored(session.session_id, digest, lambda read=session: read)  # type: ignore[misc]


def made_by(options: ReadingOptions) -> str:
    """What a table follows from beside its store: the code and the settings."""
    return sha256_of([_code(), repr(options)])


@cache
def _code() -> str:
    """The text of the code that makes the table, and the libraries that decide on its bytes."""
    folder = Path(__file__).parent
    files = [folder.parent / "lake.py", *sorted(folder.rglob("*.py"))]
    return sha256_of([[[path.name, sha256_file(path)] for path in files], [version(name) for name in _LIBRARIES]])


class _Last(NamedTuple):
    """The last table, where it can be copied from: its file, what is known of each row, and where each session's is."""

    file: pq.ParquetFile
    seen: list[_Seen]
    places: dict[str, int]
    tools: list[Tool]


def _last(lake: Lake, key: PartitionKey, options: ReadingOptions) -> _Last | None:
    if not (lake.is_local and lake.has("sessions", key) and lake.has(SEEN, key)):
        return None
    try:
        table = lake.open(SEEN, key).read()
        metadata: Mapping[bytes, bytes] = table.schema.metadata or {}
        if metadata.get(_MADE_BY) != made_by(options).encode():
            return None
        if metadata.get(_TABLE) != sha256_file(Path(lake.table("sessions", key).path)).encode():
            return None
        seen = [_Seen(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
        tools = msgspec.json.decode(metadata[_TOOLS])
        return _Last(lake.open("sessions", key), seen, {each.session_id: at for at, each in enumerate(seen)}, tools)
    except (DataError, pa.ArrowException, OSError, KeyError, TypeError, ValueError):  # made anew, it is whole again
        return None


class _Run:
    """One pass over a store; `tools` are those that the batches were given, which the end of the pass may prove wrong."""

    def __init__(self, preparation: Preparation, last: _Last | None) -> None:
        self.preparation = preparation
        self.tools: list[Tool] | None = last.tools if last else None
        self.seen: list[_Seen] = []
        self.copied = 0
        self._last = last
        self._calls: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    def inferred(self) -> list[Tool]:
        """The tools that all calls so far tell of."""
        schemas = ToolSchemas()
        for text in self._calls:
            schemas.add(_SHAPES.decode(text))
        return schemas.tools()

    def batches(self, stored: Iterator[Stored]) -> Iterator[pa.RecordBatch]:
        """The table's batches: a thousand rows each, or fewer where they are long; an unchanged session's row is copied."""
        old = _Rows(self._last.file) if self._last else None
        made: list[dict[str, Any]] = []
        places: list[tuple[bool, int]] = []  # of each row: whether it is copied, and its place in the last table or in `made`
        size, newest = 0, -1
        for each in stored:
            at = self._last.places.get(each.session_id, -1) if self._last else -1
            if self._last and old and at > newest and self._last.seen[at].digest == each.digest:
                newest = at
                places.append((True, at))
                size += old.size(at)
                known = self._last.seen[at]
                self.copied += 1
            else:
                row, known = self._made(each)
                places.append((False, len(made)))
                made.append(row)
                size += len(row["messages"])
            # Many sessions have the same: one text of each is held.
            calls = self._calls.setdefault(known.calls, known.calls)
            known = known._replace(calls=calls, redacted=self._texts.setdefault(known.redacted, known.redacted))
            self.seen.append(known)
            self.preparation.note(known.session_id, _redacted(known.redacted), known.private_id)
            if len(places) == ROWS_PER_BATCH or size >= CHARACTERS_PER_BATCH:
                yield self._batch(made, places, old)
                made, places, size = [], [], 0
        if places:
            yield self._batch(made, places, old)

    def _made(self, stored: Stored) -> tuple[dict[str, Any], _Seen]:
        session = stored.build()
        redacted = self.preparation.prepare(session)
        private = self.preparation.took_private_id()
        calls = "[]" if session.tools else json_bytes(call_shapes(session.messages)).decode()
        return encoded_row(session), _Seen(
            stored.session_id, stored.digest, calls, json_bytes(redacted).decode() if redacted else "{}", private
        )

    def _batch(self, made: list[dict[str, Any]], places: list[tuple[bool, int]], old: "_Rows | None") -> pa.RecordBatch:
        if self.tools is None:
            self.tools = self.inferred()  # of the first batch: mostly they are all
        text, origin = json_bytes(self.tools), "inferred" if self.tools else "none"
        for row in made:
            if row["tools_origin"] == "none":
                row["tools"], row["tools_origin"] = text, origin
            row["content_sha256"] = content_sha256(row["messages"], row["tools"])
        batch = encoded_batch(made)
        if old is None:
            return batch
        kept, first = old.up_to(max((at for copied, at in places if copied), default=-1))
        order = [batch.num_rows + at - first if copied else at for copied, at in places]
        return _one(pa.concat_tables([pa.Table.from_batches([batch]), *kept]).take(column(order, pa.field("at", pa.int64()))))


class _Rows:
    """Rows of a table in their order, a row group at a time."""

    def __init__(self, file: pq.ParquetFile) -> None:
        self._file = file
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
        found, first = list(self._groups), self._first
        while self._groups and self._first + self._groups[0].num_rows <= at + 1:
            gone = self._groups.pop(0).num_rows
            self._first += gone
            del self._sizes[:gone]
        return found, first

    def _read(self) -> None:
        group = self._file.read_row_group(self._next, use_threads=False)
        self._next += 1
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
        yield _one(_filled(file.read_row_group(group, use_threads=False), tools))
    staged.file.unlink()


def _one(table: pa.Table) -> pa.RecordBatch:
    return table.combine_chunks().to_batches()[0]


def _counts(staged: StagedTable) -> dict[str, Counter[str]]:
    """How often there is what a person wants to know, over the whole table."""
    found: dict[str, Counter[str]] = {name: Counter() for name in ("damage", "skipped", "judgment", "tools")}
    for row in to_rows(pq.ParquetFile(staged.file).iter_batches(columns=["damage", "skipped", "judgment", "tools_origin"])):
        found["damage"].update(row["damage"])
        found["skipped"].update(row["skipped"])
        found["judgment"][row["judgment"] or "none"] += 1
        found["tools"][row["tools_origin"]] += 1
    return found


def _first(staged: StagedTable, number: int = 5) -> list[dict[str, Any]]:
    batches = pq.ParquetFile(staged.file).iter_batches(batch_size=number, columns=["session_id", "messages"])
    return list(to_rows(batch for batch, _ in zip(batches, range(1), strict=False)))


@lru_cache(maxsize=1024)
def _redacted(text: str) -> dict[str, int]:
    return msgspec.json.decode(text, type=dict[str, int])
