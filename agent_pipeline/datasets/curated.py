"""Reading of a partition's curated sessions for datasets: good and bad trials of tasks.

Making rows of a dataset from sessions belongs to `sft`, `preferences` and `kto`.

Memory holds one batch of sessions, and only ids and tasks of the other sessions. Sessions that are
needed in a different order than the table's are stored in a temporary file next to the table until
they are read.
"""

import pickle
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from tempfile import TemporaryFile
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.ledger import Ledger, record_tasks
from agent_pipeline.datasets.preferences import TaskTrials
from agent_pipeline.datasets.sketches import group_similar_texts
from agent_pipeline.datasets.splits import (
    MIN_REQUEST_SIMILARITY,
    SplitSizes,
    find_first_request,
    find_root_tasks,
    is_unnamed_task,
    join_request,
)
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session, add_thoughts, drop_error_marks, encode_json
from agent_pipeline.sessions.tables import (
    CURATED,
    is_sorted,
    make_column,
    read_batches,
    restore_session,
    to_rows,
)
from agent_pipeline.storage.lake import Lake

CURATED_TABLE = "curated_sessions"

StoredRow = dict[str, Any]
"""A row of `curated_sessions` with some of its columns. Its JSON columns are `msgspec.Raw`."""

ReadRow = Callable[[int], StoredRow]
"""Function that reads a stored row by its index."""

SelectRows = Callable[[pa.RecordBatch], pa.BooleanArray]
"""Function that returns the indices of the wanted rows in a batch."""

_Row = TypeVar("_Row", bound=Mapping[str, Any])

_ERROR_MARK = b'"is_error":true'
_ZSTD = pa.Codec("zstd", compression_level=1)

_USE_COLUMNS = ["session_id", "task_key", "kept", "use"]
_READ_COLUMNS = [
    *_USE_COLUMNS,
    "content_sha256",
    "project",
    "agent",
    "source",
    "created_at",
    "messages",
    "tools",
    "score",
    "verdict_score",
    "attack_succeeded",
    "error",
    "verdict_by",
    "served_model",
    "turns",
    "reasoning",
]


@dataclass(frozen=True)
class CuratedSessions:
    """The curated sessions of a partition.

    Attributes:
        lake: The lake that has the table.
        key: The partition.
        ledger: The split of every task of the partition.
        root_tasks: The tasks of forks and side chains, by session id.
        is_sorted: Whether the table is sorted by session id, as tables that the pipeline writes
            are.
        thoughts: Whether the messages of sessions include the recorded thoughts.
    """

    lake: Lake
    key: PartitionKey
    ledger: Ledger
    root_tasks: dict[str, str]
    is_sorted: bool
    thoughts: bool = False

    @classmethod
    def open(
        cls, lake: Lake, key: PartitionKey, sizes: SplitSizes, thoughts: bool = False
    ) -> "CuratedSessions":
        """Open the curated sessions of a partition, and record their tasks in the split ledger.

        Some sessions have tasks that neither the source nor a setting names. If the requests of
        such sessions are nearly the same, the sessions count as trials of one task, and their tasks
        get the same split.

        Args:
            lake: The lake that has the table.
            key: The partition.
            sizes: The sizes of the split.
            thoughts: Whether the messages of sessions get the recorded thoughts.

        Raises:
            DataError: There is no such table, an older version wrote the table, or the table or
                the ledger is damaged.
        """
        table = _read_short_columns(lake, key, ["session_id", "parent_session_id", "task_key"])
        session_ids, parents = table["session_id"], table["parent_session_id"]
        has_relatives = pc.or_(pc.is_valid(parents), pc.is_in(session_ids, parents))
        root_tasks = find_root_tasks(table.filter(has_relatives).to_pylist())
        tasks = pc.unique(_set_root_tasks(table, root_tasks)["task_key"])
        group_tasks = partial(_group_unnamed_tasks, lake, key, root_tasks)
        ledger = record_tasks(lake, key, tasks, sizes, group_tasks)
        return cls(lake, key, ledger, root_tasks, is_sorted(session_ids), thoughts)

    def read_kept(self) -> Iterator[StoredRow]:
        """Yield the rows of good sessions, ordered by session id."""
        return self._read_by_id(lambda batch: batch["kept"])

    def read_labelled(self) -> Iterator[tuple[Session, bool]]:
        """Yield every good (True) and bad (False) example, ordered by session id."""
        for row in self._read_by_id(_is_example):
            yield _make_session(row, self.thoughts), row["kept"]

    def read_trials(self, counts: Counter[str]) -> Iterator[TaskTrials]:
        """Yield the good and bad examples of each task that has both, ordered by task.

        Args:
            counts: Receives `sessions_without_a_partner`, the number of examples of all other
                tasks, which are not read. They are also counted by reason:
                `no_negative_of_the_task` and `no_positive_of_the_task`.
        """
        uses = _read_short_columns(self.lake, self.key, _USE_COLUMNS)
        uses = _set_root_tasks(uses, self.root_tasks)
        examples = uses.filter(_is_example(uses))
        tasks = _find_tasks_with_both(examples, counts)
        examples = examples.filter(pc.is_in(examples["task_key"], tasks))
        row_index = make_column(range(len(examples)), pa.field("row_index", pa.int64()))
        examples = examples.append_column("row_index", row_index).sort_by(
            [(name, "ascending") for name in ("task_key", "session_id", "kept")]
        )
        batches = self._read_batches(
            lambda batch: pc.and_(_is_example(batch), pc.is_in(batch["task_key"], tasks))
        )
        with spill_rows(self.lake, CURATED_TABLE, self.key, batches) as read_row:
            for task_key, rows in groupby(to_rows(examples), key=lambda row: row["task_key"]):
                trials = TaskTrials(task_key)
                for row in rows:
                    trial = partial(self._read_session, read_row, row["row_index"])
                    (trials.good if row["kept"] else trials.bad).append(trial)
                yield trials

    def add_judges(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        """Yield rows, each with the judges of its session added, and who answered.

        The judge is `verdict_by`, and for the rejected session of a pair `rejected_verdict_by`.
        """
        names = ["session_id", "verdict_by", "served_model"]
        table = _read_short_columns(self.lake, self.key, names)
        session_ids, judges = table["session_id"].to_pylist(), table["verdict_by"].to_pylist()
        judges_by_id = dict(zip(session_ids, judges, strict=True))
        served = set(table.filter(table["served_model"])["session_id"].to_pylist())
        for row in rows:
            judged: Any = dict(row)
            judged["verdict_by"] = judges_by_id[row["session_id"]]
            judged["served_model"] = row["session_id"] in served
            if "rejected_session_id" in row:
                judged["rejected_verdict_by"] = judges_by_id[row["rejected_session_id"]]
            yield judged

    def _read_session(self, read_row: ReadRow, row_index: int) -> Session:
        return _make_session(_drop_error_marks(read_row(row_index)), self.thoughts)

    def _read_by_id(self, select: SelectRows) -> Iterator[StoredRow]:
        """Yield the selected rows without error marks, ordered by session id."""
        if self.is_sorted:
            for row in to_rows(self._read_batches(select), raw=True):
                yield _drop_error_marks(row)
            return
        session_ids: list[pa.Array] = []

        def note_ids() -> Iterator[pa.RecordBatch]:
            for batch in self._read_batches(select):
                session_ids.append(batch["session_id"])
                yield batch

        with spill_rows(self.lake, CURATED_TABLE, self.key, note_ids()) as read_row:
            for row_index in pc.sort_indices(pa.chunked_array(session_ids, pa.string())):
                yield _drop_error_marks(read_row(row_index.as_py()))

    def _read_batches(self, select: SelectRows) -> Iterator[pa.RecordBatch]:
        """Yield the selected rows of the table.

        Memory holds one batch at a time.
        """
        file = self.lake.open(CURATED_TABLE, self.key)
        for stored_batch in read_batches(file, _READ_COLUMNS):
            batch = _set_root_tasks(stored_batch, self.root_tasks)
            yield batch.filter(select(batch))


def _find_tasks_with_both(examples: pa.Table, counts: Counter[str]) -> pa.Array:
    """Return the tasks that have both good and bad examples.

    Examples of other tasks are counted.
    """
    positive = examples.filter(examples["kept"])["task_key"]
    negative = examples.filter(pc.invert(examples["kept"]))["task_key"]
    positive_tasks = pc.unique(positive)
    tasks = positive_tasks.filter(pc.is_in(positive_tasks, negative))
    for task_keys, missing in ((positive, "negative"), (negative, "positive")):
        has_no_partner = pc.invert(pc.is_in(task_keys, tasks))
        count = pc.sum(has_no_partner, min_count=0).as_py()
        counts[f"no_{missing}_of_the_task"] += count
        counts["sessions_without_a_partner"] += count
    return tasks


def _group_unnamed_tasks(
    lake: Lake, key: PartitionKey, root_tasks: dict[str, str]
) -> dict[str, str]:
    """Return the groups of unnamed tasks that have nearly the same requests."""
    file = lake.open(CURATED_TABLE, key)

    def read_requests() -> Iterator[tuple[str, str]]:
        for row in to_rows(read_batches(file, ["session_id", "task_key", "messages"])):
            task_key = root_tasks.get(row["session_id"], str(row["task_key"]))
            if is_unnamed_task(task_key):
                request = find_first_request(row["messages"])
                if request:
                    yield task_key, join_request(request)

    return group_similar_texts(read_requests(), MIN_REQUEST_SIMILARITY)


def _drop_error_marks(row: StoredRow) -> StoredRow:
    """Return a row without error marks, because datasets do not contain error marks."""
    if _ERROR_MARK not in bytes(row["messages"]):
        return row
    messages = drop_error_marks(msgspec.json.decode(row["messages"]))
    return row | {"messages": msgspec.Raw(encode_json(messages))}


def _make_session(row: StoredRow, thoughts: bool) -> Session:
    """Return the session that a row contains, with the score of its verdict.

    The score of the verdict is used so that no score of the source overrules a person in a pair.

    Args:
        row: A row of the table.
        thoughts: Whether the session's reasoning moves into its messages.
    """
    session = msgspec.structs.replace(restore_session(row), score=row["verdict_score"])
    if not (thoughts and session.reasoning):
        return session
    messages = add_thoughts(session.messages, session.reasoning)
    return msgspec.structs.replace(session, messages=messages, reasoning=[])


def _read_short_columns(lake: Lake, key: PartitionKey, columns: list[str]) -> pa.Table:
    """Return the columns with short values for all sessions."""
    return pa.Table.from_batches(
        read_batches(lake.open(CURATED_TABLE, key, CURATED), columns),
        pa.schema([CURATED.field(name) for name in columns]),
    )


def _set_root_tasks(table: Any, root_tasks: dict[str, str]) -> Any:
    """Give every session in a table or batch the task of its root session.

    Forks and side chains get the tasks of their root sessions.
    """
    if not root_tasks:
        return table
    column_index = table.schema.get_field_index("task_key")
    column = table.schema.field(column_index)
    session_ids, task_keys = table["session_id"].to_pylist(), table["task_key"].to_pylist()
    new_keys = [
        root_tasks.get(session_id, task_key)
        for session_id, task_key in zip(session_ids, task_keys, strict=True)
    ]
    return table.set_column(column_index, column, make_column(new_keys, column))


def _is_example(table: pa.Table | pa.RecordBatch) -> Any:
    """Return which rows of a table or batch are good or bad examples, as flags."""
    neither = make_column([SessionUse.NEITHER.value], CURATED.field("use"))
    return pc.invert(pc.is_in(table["use"], neither))


@contextmanager
def spill_rows(
    lake: Lake, asset: str, key: PartitionKey | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[ReadRow]:
    """Write rows to a temporary file, and return a function that reads a row by its index.

    The file is next to the table and has no name, so that no part of a session is left behind even
    if the process is killed.

    Args:
        lake: The lake that has the table.
        asset: The table's asset.
        key: The table's partition.
        batches: The rows to write.
    """
    offsets = array("q")
    scratch = lake.fs.make_scratch_folder(lake.table(asset, key).parent)
    with TemporaryFile(prefix=".rows-", dir=scratch) as file:
        for row in to_rows(batches, raw=True):
            offsets.append(file.tell())
            pickled = pickle.dumps(row)
            pickle.dump((len(pickled), _ZSTD.compress(pickled, asbytes=True)), file)

        def read_row(row_index: int) -> StoredRow:
            file.seek(offsets[row_index])
            size, compressed = pickle.load(file)
            row: StoredRow = pickle.loads(_ZSTD.decompress(compressed, size, asbytes=True))
            return row

        yield read_row
