"""A partition of a store as the table `sessions`: one batch in memory, and what did not change since the last table is copied.

One pass makes it, and up to two more make those sessions anew of which another trial of their task says that they hold something private.

Beside the table lies `sessions_seen`: of each session a hash of what the store held, and what the run must know of a session that it does
not read again. A table that is made by copying has the bytes of one that is made anew; a change of code, settings or table makes all anew.
"""

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.drift import Drift, check_volume, measure_drift
from agent_pipeline.ingestion.growth import check_growth
from agent_pipeline.ingestion.reading import Preparation, ReadingOptions, hash_makers
from agent_pipeline.ingestion.seen_sessions import (
    SEEN_SCHEMA,
    SEEN_TABLE,
    TABLE_SHA256,
    RowReader,
    SeenSession,
    make_id_column,
    make_seen_table,
    read_seen_sessions,
    share_call_texts,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction.trials import Known
from agent_pipeline.sessions.session import Tool, encode_json, hash_content
from agent_pipeline.sessions.tables import (
    CHARACTERS_PER_BATCH,
    MESSAGES_INDEX,
    ROWS_PER_BATCH,
    SESSIONS,
    encode_row,
    make_column,
    make_scalar,
    make_session_batch,
    read_batches,
    restore_session,
    to_rows,
)
from agent_pipeline.sessions.tool_schemas import CallShape, ToolSchemas
from agent_pipeline.sources.base import Stored, TraceSource
from agent_pipeline.storage.lake import Lake, StagedTable

_MADE_BY, _TOOLS = b"made_by", b"tools"
_Also = dict[str, dict[str, str]]
"""Of sessions, by their ids: private values with their kinds."""
_SHAPES = msgspec.json.Decoder(list[CallShape])


class IngestionResult(NamedTuple):
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


def ingest(
    source: TraceSource,
    key: PartitionKey,
    options: ReadingOptions,
    lake: Lake,
    smallest_share: float = 0.0,
    largest_growth: float = 0.0,
) -> IngestionResult:
    """Read a partition and write its table, unless the store has less than `smallest_share` of the last table's sessions or verdicts, or
    more than `largest_growth` times its sessions are new.

    `sessions_seen` is written at once. It names the table that it describes, and is ignored beside any other.
    Raises what `TraceSource.sessions`, `Preparation`, `Lake.stage`, `check_volume` and `check_growth` raise.
    """
    maker = hash_makers(options, source)
    run = _Run(key, Preparation(options), BlockList.read(lake), _last(lake, key, maker))
    table = lake.stage("sessions", key, run.batches(source.stored(key)), SESSIONS)
    tasks = run.changed_tasks()
    for anew in (_Run.copies_in, _Run.private_elsewhere):
        if also := anew(run, tasks, table):
            before, run = table, run.again(table, also)
            table = lake.stage("sessions", key, run.batches(source.stored(key)), SESSIONS)
            before.file.unlink()
            run.check_complete()
    for row in to_rows(run.seen.select(["session_id", "redacted", "private_id"])):
        run.preparation.note(row["session_id"], _redacted(row["redacted"]), row["private_id"])
    tools = run.inferred()
    if (
        run.tools is not None and tools != run.tools
    ):  # the last sessions taught what the first ones did not know
        table = lake.stage("sessions", key, _with_tools(table, tools), SESSIONS)
    check_volume(lake, key, table, smallest_share, source.notes)
    check_growth(lake, key, table, largest_growth)
    tool_drift = measure_drift(lake, "sessions", key, table)
    source.notes.extend(run.preparation.notes(key))
    metadata = {
        _MADE_BY: maker.encode(),
        TABLE_SHA256: table.sha256.encode(),
        _TOOLS: encode_json(tools),
    }
    schema = SEEN_SCHEMA.with_metadata(metadata)
    seen = run.seen.cast(schema).combine_chunks().to_batches(max_chunksize=ROWS_PER_BATCH)
    lake.stage(SEEN_TABLE, key, seen, schema).commit()
    return IngestionResult(
        table,
        _counts(table),
        run.preparation.redacted,
        _first(table),
        len(run.copies),
        run.forgotten,
        tool_drift,
    )


class _Last(NamedTuple):
    """The last table, where it can be copied from: its file, what is known of each row, their order by id, and the inferred tools."""

    file: pq.ParquetFile
    seen: pa.Table
    order: pa.Array
    tools: list[Tool]

    @classmethod
    def of(cls, file: pq.ParquetFile, seen: pa.Table, tools: list[Tool]) -> "_Last":
        return cls(file, seen.combine_chunks(), pc.sort_indices(seen["session_id"]), tools)

    def place(self, session_id: str, guess: int) -> int:
        """The row of a session; -1 where there is none. It is mostly the guess, as both are in the order of ids."""
        ids = self.seen["session_id"]
        if guess < len(ids) and ids[guess].as_py() == session_id:
            return guess
        found = bisect_left(self.order, session_id, key=lambda at: ids[at.as_py()].as_py())
        at = self.order[found].as_py() if found < len(ids) else -1
        return at if at >= 0 and ids[at].as_py() == session_id else -1

    def row(self, at: int) -> SeenSession:
        return SeenSession(*(column[at].as_py() for column in self.seen.columns))


def _last(lake: Lake, key: PartitionKey, maker: str) -> _Last | None:
    table, file = read_seen_sessions(lake, key) or (None, None)
    if table is None or table.schema.metadata.get(_MADE_BY) != maker.encode():
        return None
    try:
        return _Last.of(
            file, share_call_texts(table), msgspec.json.decode(table.schema.metadata[_TOOLS])
        )
    except (DataError, KeyError, TypeError, ValueError):  # made anew, it is whole again
        return None


class _Run:
    """One pass over a store; `tools` are those that the batches were given, which the end of the pass may prove wrong.

    So may what other trials of a task call private (`known`, by the tasks' hashes; in memory only). Then another pass copies the table of
    the one before and makes some sessions anew: those of `also`, with more that is private.
    """

    def __init__(
        self,
        key: PartitionKey,
        preparation: Preparation,
        blocked: BlockList,
        last: _Last | None,
        also: _Also | None = None,
    ) -> None:
        self.preparation = preparation
        self.tools: list[Tool] | None = last.tools if last else None
        self.seen = make_seen_table([])
        self.copies = make_id_column([])
        self.forgotten = 0
        self._key, self._blocked, self._last, self._also = key, blocked, last, also
        self._known: dict[str, Known] = {}
        self._calls: set[str] = set()

    def again(self, table: StagedTable, also: _Also) -> "_Run":
        """The next pass, over the same sessions."""
        last = _Last.of(pq.ParquetFile(table.file), self.seen, self.tools or [])
        run = _Run(self._key, self.preparation, self._blocked, last, also)
        run._known, run.copies = (
            self._known,
            self.copies.filter(pc.invert(pc.is_in(self.copies, make_id_column(also)))),
        )
        return run

    def check_complete(self) -> None:
        """Raise DataError where this pass did not meet the sessions of the one before in their order."""
        if self._last and not self.seen["session_id"].equals(self._last.seen["session_id"]):
            raise DataError(
                f"The store of {self._key} lost sessions while it was read: run again; the last table stays."
            )

    def changed_tasks(self) -> set[str]:
        """The tasks that a session came to, changed in or left, and in which anything is private."""
        both = pa.concat_tables([self._last.seen, self.seen] if self._last else [self.seen])
        tasks = both["task"]
        redacted = pc.not_equal(both["redacted"], make_scalar("{}", pa.string()))
        private = pc.unique(
            tasks.filter(pc.or_(redacted, pc.is_in(tasks, make_id_column(self._known))))
        )
        changed = pc.and_not(pc.is_in(tasks, private), pc.is_in(both["session_id"], self.copies))
        return set(pc.unique(tasks.filter(changed)).to_pylist())

    def copies_in(self, tasks: set[str], _: StagedTable) -> _Also:
        """The copied sessions of tasks: what they call private is not known before they are read, and what they copied may be outdated."""
        ids, of = self.seen["session_id"], self.seen["task"]
        return {
            each: {}
            for each in ids.filter(
                pc.and_(pc.is_in(of, make_id_column(tasks)), pc.is_in(ids, self.copies))
            ).to_pylist()
        }

    def private_elsewhere(self, tasks: set[str], table: StagedTable) -> _Also:
        """The sessions of tasks whose rows still say what another trial calls private, with that."""
        also, of = {}, self.seen["task"]
        counts = pc.value_counts(of)
        told = counts.field("values")
        told = (
            told
            if self.forgotten
            else told.filter(pc.not_equal(counts.field("counts"), make_scalar(1, pa.int64())))
        )
        told = told.filter(pc.is_in(told, make_id_column(tasks & self._known.keys())))
        trials = self.seen.select(["session_id", "task"]).filter(pc.is_in(of, told))
        known = {row["session_id"]: self._known[row["task"]] for row in to_rows(trials)}
        ids = trials["session_id"]
        for batch in read_batches(pq.ParquetFile(table.file)) if known else ():
            for row in to_rows([batch.filter(pc.is_in(batch["session_id"], ids))]):
                session = restore_session(row)
                if values := self.preparation.redactor.private_elsewhere(
                    session, known[session.session_id]
                ):
                    also[session.session_id] = values
        return also

    def inferred(self) -> list[Tool]:
        """The tools that all calls so far tell of."""
        schemas = ToolSchemas()
        for text in self._calls:
            schemas.add(_SHAPES.decode(text))
        return schemas.tools()

    def batches(self, stored: Iterator[Stored]) -> Iterator[pa.RecordBatch]:
        """The table's batches: a thousand rows each, or fewer where they are long; an unchanged session's row is copied."""
        old = RowReader(self._last.file) if self._last else None
        rows: list[list[Any]] = []
        seen: list[SeenSession] = []
        tables, copied = [self.seen], array("b")
        places: list[
            tuple[bool, int]
        ] = []  # of each row: whether it is copied, and its place in the last table or in `rows`
        size, newest = 0, -1
        for each in stored:
            if self._blocked.has(each.session_id, self._key):
                self.forgotten += 1
                if (
                    self._also is None
                ):  # what it calls private is not said by other trials because it is gone
                    self.preparation.prepare(each.build(), known=self._known)
                continue
            at = self._last.place(each.session_id, newest + 1) if self._last else -1
            same = (
                self._last is not None
                and at >= 0
                and self._last.seen["digest"][at].as_py() == each.digest
            )
            if self._also is not None and at < 0:
                continue  # it came meanwhile: the next run takes it
            if (
                self._last
                and old
                and at > newest
                and (same if self._also is None else each.session_id not in self._also)
            ):
                newest = at
                places.append((True, at))
                size += old.size(at)
                known = self._last.row(at)
            else:
                # What changed since the pass before is read again by the next run.
                row, known = self._prepared_row(
                    each if same or self._also is None else each._replace(digest=b"")
                )
                places.append((False, len(rows)))
                rows.append(row)
                size += len(row[MESSAGES_INDEX])
            self._calls.add(known.calls)
            seen.append(known)
            if len(places) == ROWS_PER_BATCH or size >= CHARACTERS_PER_BATCH:
                yield self._batch(rows, places, old)
                tables.append(make_seen_table(seen))
                copied.extend(was for was, _ in places)
                rows, seen, places, size = [], [], [], 0
        if places:
            yield self._batch(rows, places, old)
        copied.extend(was for was, _ in places)
        self.seen = pa.concat_tables([*tables, make_seen_table(seen)]).unify_dictionaries()
        if self._also is None:
            self.copies = self.seen["session_id"].filter(
                make_column(copied, pa.field("copied", pa.bool_()))
            )

    def _prepared_row(self, stored: Stored) -> tuple[list[Any], SeenSession]:
        session = self._blocked.without_names(stored.build(), self._key)
        also = self._also.get(stored.session_id) if self._also else None
        redacted, calls, private_id, task = self.preparation.prepare(
            session, also, None if also else self._known
        )
        counted = encode_json(redacted).decode() if redacted else "{}"
        return encode_row(session), SeenSession(
            stored.session_id, stored.digest, _text_of(calls), counted, private_id, task
        )

    def _batch(
        self, rows: list[list[Any]], places: list[tuple[bool, int]], old: RowReader | None
    ) -> pa.RecordBatch:
        if self.tools is None:
            self.tools = self.inferred()  # of the first batch: mostly they are all
        batch = make_session_batch(rows, encode_json(self.tools))
        if old is not None:
            groups, first = old.up_to(max((at for copied, at in places if copied), default=-1))
            order = make_column(
                [batch.num_rows + at - first if copied else at for copied, at in places],
                pa.field("at", pa.int64()),
            )
            batch = _single_batch(
                pa.concat_tables([pa.Table.from_batches([batch]), *groups]).take(order)
            )
        return batch


def _filled(table: pa.Table, tools: list[Tool]) -> pa.Table:
    """A table whose rows without tools have the inferred ones; the content's hash says so."""
    origins = table["tools_origin"].to_pylist()
    if not any(origin in ("none", "inferred") for origin in origins):
        return table
    text, origin = encode_json(tools), "inferred" if tools else "none"
    own = table["tools"].to_pylist()
    hashes, messages = table["content_sha256"].to_pylist(), table["messages"]
    for at, each in enumerate(origins):
        if each in ("none", "inferred"):
            origins[at], own[at] = origin, text.decode()
            hashes[at] = hash_content(messages[at].as_py().encode(), text)
    columns = {"tools": own, "tools_origin": origins, "content_sha256": hashes}
    for name, values in columns.items():
        place = table.schema.get_field_index(name)
        table = table.set_column(
            place, table.schema.field(place), make_column(values, table.schema.field(place))
        )
    return table


def _with_tools(staged: StagedTable, tools: list[Tool]) -> Iterator[pa.RecordBatch]:
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
            by_kind.update(
                {kind: number * times for kind, number in msgspec.json.decode(text).items()}
            )
    for name, place in (("judgment", "judgment"), ("tools", "tools_origin")):
        counts[name] = Counter(
            {value or "none": times for value, times in _value_counts(table[place])}
        )
    return counts


def _value_counts(values: pa.ChunkedArray) -> list[tuple[Any, int]]:
    return [(each["values"], each["counts"]) for each in pc.value_counts(values).to_pylist()]


def _first(staged: StagedTable, number: int = 5) -> list[dict[str, Any]]:
    batches = pq.ParquetFile(staged.file).iter_batches(
        batch_size=number, columns=["session_id", "messages"]
    )
    return list(to_rows(batch for batch, _ in zip(batches, range(1), strict=False)))


@lru_cache(maxsize=4096)  # many sessions have the same: one text of each is held
def _text_of(shapes: frozenset[CallShape]) -> str:
    return encode_json(sorted(shapes)).decode()


@lru_cache(maxsize=1024)
def _redacted(text: str) -> dict[str, int]:
    return msgspec.json.decode(text, type=dict[str, int])
