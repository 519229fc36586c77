"""One pass over a store, which writes the rows of the table `sessions`.

A session that changed is built and prepared; the row of any other session is copied from the last
table. Copying gives the same bytes as building the whole table again. `ingestion` decides which
passes are needed, and checks the result.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.ingestion.reading import Preparation
from agent_pipeline.ingestion.seen_sessions import (
    RowReader,
    SeenSession,
    make_id_column,
    make_seen_table,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction.trials import Known
from agent_pipeline.sessions.session import Tool, encode_json, encode_tools
from agent_pipeline.sessions.tables import (
    CHARACTERS_PER_BATCH,
    MESSAGES_INDEX,
    ROWS_PER_BATCH,
    EncodedRow,
    encode_row,
    make_column,
    make_scalar,
    make_session_batch,
    read_batches,
    restore_session,
    to_rows,
)
from agent_pipeline.sessions.tool_schemas import CallShape, ToolSchemas
from agent_pipeline.sources.base import Stored
from agent_pipeline.storage.lake import StagedTable
from agent_pipeline.structs import json_decoder

PrivateValues = dict[str, dict[str, str]]
"""Private values and the kind of each value, by session id."""

_SHAPES_DECODER = json_decoder(list[CallShape])


@dataclass(frozen=True)
class LastTable:
    """A table from which rows can be copied.

    Attributes:
        file: The table.
        seen: The notes about the table's rows, in their order.
        order: The indices of the rows, sorted by session id.
        tools: The tools that were inferred for the table.
    """

    file: pq.ParquetFile
    seen: pa.Table
    order: pa.Array
    tools: list[Tool]

    @classmethod
    def open(cls, file: pq.ParquetFile, seen: pa.Table, tools: list[Tool]) -> "LastTable":
        """Open a table with its notes, sorted so that sessions can be searched by id."""
        return cls(file, seen.combine_chunks(), pc.sort_indices(seen["session_id"]), tools)

    def find_row(self, session_id: str, guess: int) -> int | None:
        """Return the row index of a session, or None if the table does not contain the session.

        Args:
            session_id: The session.
            guess: The index to try first. Stores and tables are usually ordered by id.
        """
        ids = self.seen["session_id"]
        if guess < len(ids) and ids[guess].as_py() == session_id:
            return guess
        position = bisect_left(
            self.order, session_id, key=lambda row_index: ids[row_index.as_py()].as_py()
        )
        if position == len(ids):
            return None
        row_index: int = self.order[position].as_py()
        return row_index if ids[row_index].as_py() == session_id else None

    def read_seen(self, row_index: int) -> SeenSession:
        """Return the notes about a row of the table."""
        return SeenSession(*(column[row_index].as_py() for column in self.seen.columns))


@dataclass(frozen=True)
class _RowPlace:
    """The place from which a row of a batch comes: the last table, or a newly built row.

    The index refers to the last table if the row is copied, and to the built rows otherwise.
    """

    copied: bool
    index: int


@dataclass
class _PendingBatch:
    """The rows that are collected for the next batch.

    Attributes:
        places: The origin of each row.
        built_rows: The rows that are not copied.
        seen: The notes about each row.
        size: The length of all messages in bytes.
    """

    places: list[_RowPlace] = field(default_factory=list)
    built_rows: list[EncodedRow] = field(default_factory=list)
    seen: list[SeenSession] = field(default_factory=list)
    size: int = 0


class TablePass:
    """One pass over the sessions of a store.

    The first pass builds every session that changed. A later pass copies the table of the previous
    pass, except for certain sessions, which are built again with more private values.

    Attributes:
        preparation: Prepares the sessions.
        tools: The tools that were written into the batches. The rest of the pass may show that they
            are incomplete.
        seen: The notes about all rows, after the pass.
        copied_ids: Ids of the sessions whose rows were copied from the last run's table.
        forgotten: Number of the store's sessions that are on the block list.
    """

    def __init__(
        self,
        key: PartitionKey,
        preparation: Preparation,
        blocked: BlockList,
        last: LastTable | None,
        rebuilt: PrivateValues | None = None,
    ) -> None:
        """Create a pass over a store.

        Args:
            key: The partition.
            preparation: Prepares the sessions.
            blocked: The forgotten sessions.
            last: The table from which rows are copied.
            rebuilt: In a later pass, the sessions to build again, each with the private values from
                other trials of its task. None in the first pass.
        """
        self.preparation = preparation
        self.tools: list[Tool] | None = last.tools if last else None
        self.seen = make_seen_table([])
        self.copied_ids = make_id_column([])
        self.forgotten = 0
        self._key = key
        self._blocked = blocked
        self._last = last
        self._rebuilt = rebuilt
        self._values_by_task: dict[str, Known] = {}
        """Private values in the trials of each task, by the hash of the task. They are kept only in
        memory.
        """
        self._call_texts: set[str] = set()

    def start_next(self, table: StagedTable, rebuilt: PrivateValues) -> "TablePass":
        """Return a new pass over the same sessions, which can copy rows from this pass's table.

        Args:
            table: The table of this pass.
            rebuilt: The sessions to build again, with the private values of other trials.
        """
        last = LastTable.open(pq.ParquetFile(table.file), self.seen, self.tools or [])
        next_pass = TablePass(self._key, self.preparation, self._blocked, last, rebuilt)
        next_pass._values_by_task = self._values_by_task
        is_rebuilt = pc.is_in(self.copied_ids, make_id_column(rebuilt))
        next_pass.copied_ids = self.copied_ids.filter(pc.invert(is_rebuilt))
        return next_pass

    def check_complete(self) -> None:
        """Check that this pass read the same sessions in the same order as the previous pass.

        Raises:
            DataError: The store lost sessions between the passes.
        """
        if self._last and not self.seen["session_id"].equals(self._last.seen["session_id"]):
            raise DataError(
                f"The store of {self._key} lost sessions while it was being read, so the last "
                "table stays: start the run again."
            )

    def find_changed_tasks(self) -> set[str]:
        """Return the tasks with private values of which a session has changed since the last table.

        A task counts if a session joined it, left it, or changed. The result contains hashes of
        tasks.
        """
        tables = [self._last.seen, self.seen] if self._last else [self.seen]
        seen = pa.concat_tables(tables)
        tasks = seen["task"]
        is_redacted = pc.not_equal(seen["redacted"], make_scalar("{}", pa.string()))
        has_values = pc.is_in(tasks, make_id_column(self._values_by_task))
        private_tasks = pc.unique(tasks.filter(pc.or_(is_redacted, has_values)))
        is_copied = pc.is_in(seen["session_id"], self.copied_ids)
        is_changed = pc.and_not(pc.is_in(tasks, private_tasks), is_copied)
        return set(pc.unique(tasks.filter(is_changed)).to_pylist())

    def find_copies(self, tasks: set[str]) -> PrivateValues:
        """Return the sessions of certain tasks whose rows were copied from the last table.

        Such a session has to be read again: its private values are not stored, and its row may
        contain pseudonyms of values that no other trial marks as private any more.
        """
        ids = self.seen["session_id"]
        is_in_task = pc.is_in(self.seen["task"], make_id_column(tasks))
        copies = ids.filter(pc.and_(is_in_task, pc.is_in(ids, self.copied_ids)))
        return {session_id: {} for session_id in copies.to_pylist()}

    def find_private_values(self, tasks: set[str], table: StagedTable) -> PrivateValues:
        """Return the values in some rows that another trial of the same task marks as private.

        Args:
            tasks: Hashes of the tasks to search.
            table: The table of this pass.
        """
        searched_tasks = self._list_tasks_with_trials(tasks & self._values_by_task.keys())
        is_searched = pc.is_in(self.seen["task"], searched_tasks)
        trials = self.seen.select(["session_id", "task"]).filter(is_searched)
        values_by_session = {
            trial["session_id"]: self._values_by_task[trial["task"]] for trial in to_rows(trials)
        }
        private_values: PrivateValues = {}
        if not values_by_session:
            return private_values
        for batch in read_batches(pq.ParquetFile(table.file)):
            is_trial = pc.is_in(batch["session_id"], trials["session_id"])
            for row in to_rows([batch.filter(is_trial)]):
                session = restore_session(row)
                task_values = values_by_session[session.session_id]
                values = self.preparation.redactor.private_elsewhere(session, task_values)
                if values:
                    private_values[session.session_id] = values
        return private_values

    def _list_tasks_with_trials(self, tasks: Iterable[str]) -> pa.Array:
        """Return the tasks in which a value of one trial may also occur in another trial.

        This requires two trials. If any session was forgotten, one trial is enough, because the
        forgotten session may have been the other trial.
        """
        counts = pc.value_counts(self.seen["task"])
        known_tasks = counts.field("values")
        if not self.forgotten:
            has_trials = pc.not_equal(counts.field("counts"), make_scalar(1, pa.int64()))
            known_tasks = known_tasks.filter(has_trials)
        return known_tasks.filter(pc.is_in(known_tasks, make_id_column(tasks)))

    def infer_tools(self) -> list[Tool]:
        """Return the tools inferred from all calls read so far."""
        schemas = ToolSchemas()
        for text in self._call_texts:
            schemas.add(_SHAPES_DECODER.decode(text))
        return schemas.tools()

    def make_batches(self, stored_sessions: Iterator[Stored]) -> Iterator[pa.RecordBatch]:
        """Yield the record batches of the table.

        A batch has a thousand rows, or fewer if the rows are long.
        """
        reader = RowReader(self._last.file) if self._last else None
        pending = _PendingBatch()
        seen_tables = [self.seen]
        copied_flags = array("b")  # one byte per row
        last_copied = -1
        for stored in stored_sessions:
            if self._blocked.has(stored.session_id, self._key):
                self._skip_forgotten(stored)
                continue
            row_index = self._find_last_row(stored, guess=last_copied + 1)
            if self._rebuilt is not None and row_index is None:
                continue  # the session is newer than the first pass, so the next run reads it
            unchanged = row_index is not None and self._has_digest(row_index, stored.digest)
            keeps_row = (
                unchanged if self._rebuilt is None else stored.session_id not in self._rebuilt
            )
            if reader and row_index is not None and row_index > last_copied and keeps_row:
                last_copied = row_index
                self._copy_row(pending, reader, row_index)
            else:
                if self._rebuilt is not None and not unchanged:
                    stored = stored._replace(digest=b"")  # the next run reads the session again
                self._build_row(pending, stored)
            if len(pending.places) == ROWS_PER_BATCH or pending.size >= CHARACTERS_PER_BATCH:
                yield self._finish_batch(pending, reader)
                seen_tables.append(make_seen_table(pending.seen))
                copied_flags.extend(place.copied for place in pending.places)
                pending = _PendingBatch()
        if pending.places:
            yield self._finish_batch(pending, reader)
        seen_tables.append(make_seen_table(pending.seen))
        copied_flags.extend(place.copied for place in pending.places)
        self.seen = pa.concat_tables(seen_tables).unify_dictionaries()
        if self._rebuilt is None:
            is_copied = make_column(copied_flags, pa.field("copied", pa.bool_()))
            self.copied_ids = self.seen["session_id"].filter(is_copied)

    def _skip_forgotten(self, stored: Stored) -> None:
        """Count a forgotten session, and record its private values.

        The values must stay redacted in other trials of its task although the session is forgotten.
        """
        self.forgotten += 1
        if self._rebuilt is None:
            self.preparation.prepare(stored.build(), known=self._values_by_task)

    def _find_last_row(self, stored: Stored, guess: int) -> int | None:
        """Return the row index of a session in the last table, or None."""
        return self._last.find_row(stored.session_id, guess) if self._last else None

    def _has_digest(self, row_index: int, digest: bytes) -> bool:
        """Return whether a session's data in the store is the same as for the last table."""
        return self._last is not None and self._last.seen["digest"][row_index].as_py() == digest

    def _copy_row(self, pending: _PendingBatch, reader: RowReader, row_index: int) -> None:
        """Add a row of the last table to the pending batch."""
        assert self._last is not None
        pending.places.append(_RowPlace(copied=True, index=row_index))
        pending.size += reader.measure_row(row_index)
        self._note_seen(pending, self._last.read_seen(row_index))

    def _build_row(self, pending: _PendingBatch, stored: Stored) -> None:
        """Read and prepare a session, and add the resulting row to the pending batch."""
        session = self._blocked.replace_names(stored.build(), self._key)
        extra_values = self._rebuilt.get(stored.session_id) if self._rebuilt else None
        prepared = self.preparation.prepare(
            session, extra_values, None if extra_values else self._values_by_task
        )
        row = encode_row(session)
        pending.places.append(_RowPlace(copied=False, index=len(pending.built_rows)))
        pending.built_rows.append(row)
        pending.size += len(row[MESSAGES_INDEX])
        seen = SeenSession(
            session_id=stored.session_id,
            digest=stored.digest,
            calls=_encode_shapes(prepared.calls),
            redacted=encode_json(prepared.redacted).decode() if prepared.redacted else "{}",
            private_id=prepared.private_id,
            task=prepared.task,
        )
        self._note_seen(pending, seen)

    def _note_seen(self, pending: _PendingBatch, seen: SeenSession) -> None:
        """Record the notes about a row, and the tool calls in it."""
        self._call_texts.add(seen.calls)
        pending.seen.append(seen)

    def _finish_batch(self, pending: _PendingBatch, reader: RowReader | None) -> pa.RecordBatch:
        """Return the pending rows as one batch, with built and copied rows in original order."""
        if self.tools is None:
            self.tools = self.infer_tools()  # the first batch usually has calls of all tools
        built = make_session_batch(pending.built_rows, encode_tools(self.tools))
        if reader is None:
            return built
        last_copied = max((place.index for place in pending.places if place.copied), default=-1)
        last_rows = reader.take_groups(last_copied)
        offset_of_copies = built.num_rows - last_rows.first_row
        order = make_column(
            [
                place.index + offset_of_copies if place.copied else place.index
                for place in pending.places
            ],
            pa.field("row_index", pa.int64()),
        )
        all_rows = pa.concat_tables([pa.Table.from_batches([built]), *last_rows.groups])
        return combine_batches(all_rows.take(order))


def combine_batches(table: pa.Table) -> pa.RecordBatch:
    """Combine the batches of a table into a single record batch."""
    return table.combine_chunks().to_batches()[0]


# many sessions have the same calls, so only one text of them is kept in memory
@lru_cache(maxsize=4096)
def _encode_shapes(shapes: frozenset[CallShape]) -> str:
    """Return call shapes as JSON."""
    return encode_json(sorted(shapes)).decode()
