"""What data sets read of a partition's curated sessions: the positive and the negative examples, each as a trial of its task.

Memory holds a batch of sessions, and of the others only ids and tasks. Sessions that are needed in another order than the table's lie in a
temporary file beside the table until they are read.
"""

import pickle
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.ledger import Ledger, record_tasks
from agent_pipeline.datasets.preferences import Case
from agent_pipeline.datasets.sketches import groups_alike
from agent_pipeline.datasets.splits import (
    ALIKE,
    SplitSizes,
    first_request,
    is_unnamed,
    request_text,
    root_tasks,
)
from agent_pipeline.judging.curation import Use
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

ASSET = "curated_sessions"
_FAILED = b'"is_error":true'
_ZSTD = pa.Codec("zstd", compression_level=1)

Row = dict[str, Any]

_DECIDED = ["session_id", "task_key", "kept", "use"]
_READ = [
    *_DECIDED,
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
    "turns",
    "reasoning",
]


@dataclass(frozen=True)
class Curated:
    """The curated sessions of a partition.

    `roots` are the tasks of forks and side chains by session id; `ledger` knows the split of every task; `in_order` says that the table is
    sorted by session id, as the pipeline writes it; `thoughts`, that the messages of sessions have what was thought before them. JSON
    columns of rows are `msgspec.Raw`.
    """

    lake: Lake
    key: PartitionKey
    ledger: Ledger
    roots: dict[str, str]
    in_order: bool
    thoughts: bool = False

    @classmethod
    def open(
        cls, lake: Lake, key: PartitionKey, sizes: SplitSizes, thoughts: bool = False
    ) -> "Curated":
        """Read the partition's tasks and record them in the ledger.

        Sessions whose task nobody names (neither the source nor a setting) are trials of one task if their requests are nearly the same:
        such tasks get one split.

        Raises:
            DataError: there is no such table, it is an older version's, or it or the ledger is damaged.
        """
        table = _short_columns(lake, key, ["session_id", "parent_session_id", "task_key"])
        ids, parents = table["session_id"], table["parent_session_id"]
        related = pc.or_(pc.is_valid(parents), pc.is_in(ids, parents))
        roots = root_tasks(table.filter(related).to_pylist())
        tasks = pc.unique(_with_roots(table, roots)["task_key"])
        return cls(
            lake,
            key,
            record_tasks(lake, key, tasks, sizes, partial(_alike_tasks, lake, key, roots)),
            roots,
            is_sorted(ids),
            thoughts,
        )

    def kept(self) -> Iterator[Row]:
        """The rows to imitate, by session id."""
        return self._rows(lambda batch: batch["kept"])

    def labelled(self) -> Iterator[tuple[Session, bool]]:
        """The positive (true) and the negative examples, by session id."""
        return ((_session(row, self.thoughts), row["kept"]) for row in self._rows(_is_example))

    def cases(self, counts: Counter[str]) -> Iterator[Case]:
        """The positive and the negative examples of each task that has both, by task.

        The others are not read; they count as `sessions_without_a_partner`, by reason: `no_negative_of_the_task` or
        `no_positive_of_the_task`.
        """
        decided = _with_roots(_short_columns(self.lake, self.key, _DECIDED), self.roots)
        examples = decided.filter(_is_example(decided))
        positive, negative = (
            examples.filter(examples["kept"]),
            examples.filter(pc.invert(examples["kept"])),
        )
        both = pc.unique(positive["task_key"]).filter(
            pc.is_in(pc.unique(positive["task_key"]), negative["task_key"])
        )
        for examples_of_one, missing in ((positive, "negative"), (negative, "positive")):
            alone = pc.sum(
                pc.invert(pc.is_in(examples_of_one["task_key"], both)), min_count=0
            ).as_py()
            counts[f"no_{missing}_of_the_task"] += alone
            counts["sessions_without_a_partner"] += alone
        examples = examples.filter(pc.is_in(examples["task_key"], both))
        number = make_column(range(len(examples)), pa.field("number", pa.int64()))
        examples = examples.append_column("number", number).sort_by(
            [(name, "ascending") for name in ("task_key", "session_id", "kept")]
        )
        wanted = self._batches(
            lambda batch: pc.and_(_is_example(batch), pc.is_in(batch["task_key"], both))
        )
        with spilled(self.lake, ASSET, self.key, wanted) as row:
            for task, trials in groupby(to_rows(examples), key=itemgetter("task_key")):
                case = Case(task, [], [])
                for trial in trials:
                    (case.good if trial["kept"] else case.bad).append(
                        partial(self._read, row, trial["number"])
                    )
                yield case

    def with_verdicts(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Add who judged each row's session to rows that were made of sessions (`verdict_by`, `rejected_verdict_by`)."""
        table = _short_columns(self.lake, self.key, ["session_id", "verdict_by"])
        judges = dict(
            zip(table["session_id"].to_pylist(), table["verdict_by"].to_pylist(), strict=True)
        )
        for row in rows:
            judged = {"verdict_by": judges[row["session_id"]]}
            if "rejected_session_id" in row:
                judged["rejected_verdict_by"] = judges[row["rejected_session_id"]]
            yield row | judged

    def _read(self, row: Callable[[int], Row], number: int) -> Session:
        return _session(_heard(row(number)), self.thoughts)

    def _rows(self, wanted: Any) -> Iterator[Row]:
        if self.in_order:
            yield from map(_heard, to_rows(self._batches(wanted), raw=True))
            return
        ids: list[pa.Array] = []

        def noted() -> Iterator[pa.RecordBatch]:
            for batch in self._batches(wanted):
                ids.append(batch["session_id"])
                yield batch

        with spilled(self.lake, ASSET, self.key, noted()) as row:
            yield from (
                _heard(row(number.as_py()))
                for number in pc.sort_indices(pa.chunked_array(ids, pa.string()))
            )

    def _batches(self, wanted: Any) -> Iterator[pa.RecordBatch]:
        """The rows of the table that are wanted, a batch in memory at a time."""
        for batch in read_batches(self.lake.open(ASSET, self.key), _READ):
            batch = _with_roots(batch, self.roots)
            yield batch.filter(wanted(batch))


def _alike_tasks(lake: Lake, key: PartitionKey, roots: dict[str, str]) -> dict[str, str]:
    """The groups of unnamed tasks whose requests are nearly the same."""
    rows = to_rows(read_batches(lake.open(ASSET, key), ["session_id", "task_key", "messages"]))
    tasks = ((roots.get(row["session_id"], row["task_key"]), row["messages"]) for row in rows)
    requests = ((task, first_request(messages)) for task, messages in tasks if is_unnamed(task))
    return groups_alike(
        ((task, request_text(messages)) for task, messages in requests if messages), ALIKE
    )


def _heard(row: Row) -> Row:
    """A row as data sets have it: without marks of errors."""
    if _FAILED not in bytes(row["messages"]):
        return row
    return row | {
        "messages": msgspec.Raw(encode_json(drop_error_marks(msgspec.json.decode(row["messages"]))))
    }


def _session(row: Row, thoughts: bool) -> Session:
    """A row's session; its score is that of its verdict, so that no score overrules a person in a pair. With `thoughts` its reasoning is in
    its messages."""
    session = msgspec.structs.replace(restore_session(row), score=row["verdict_score"])
    if not (thoughts and session.reasoning):
        return session
    return msgspec.structs.replace(
        session, messages=add_thoughts(session.messages, session.reasoning), reasoning=[]
    )


def _short_columns(lake: Lake, key: PartitionKey, columns: list[str]) -> pa.Table:
    """Some short columns of all sessions."""
    return pa.Table.from_batches(
        read_batches(lake.open(ASSET, key, CURATED), columns),
        pa.schema(map(CURATED.field, columns)),
    )


def _with_roots(table: Any, roots: dict[str, str]) -> Any:
    """A table or batch whose forks and side chains are trials of their roots' tasks."""
    if not roots:
        return table
    tasks = zip(table["session_id"].to_pylist(), table["task_key"].to_pylist(), strict=True)
    at = table.schema.get_field_index("task_key")
    field = table.schema.field(at)
    return table.set_column(
        at, field, make_column([roots.get(name, task) for name, task in tasks], field)
    )


def _is_example(table: Any) -> Any:
    """Which rows are positive or negative examples."""
    return pc.invert(pc.is_in(table["use"], make_column([Use.NEITHER.value], CURATED.field("use"))))


@contextmanager
def spilled(
    lake: Lake, asset: str, key: PartitionKey | None, batches: Iterable[pa.RecordBatch]
) -> Iterator[Callable[[int], Row]]:
    """Rows on disk, each read by its number as often as it is needed; their file lies beside the table while it is used.

    It has no name: whatever happens to this process, nothing of the sessions is left behind.
    """
    places = array("q")
    with TemporaryFile(prefix=".rows-", dir=lake.fs.scratch(lake.table(asset, key).parent)) as file:
        for row in to_rows(batches, raw=True):
            places.append(file.tell())
            text = pickle.dumps(row)
            pickle.dump((len(text), _ZSTD.compress(text, asbytes=True)), file)

        def read(number: int) -> Row:
            file.seek(places[number])
            size, packed = pickle.load(file)
            return pickle.loads(_ZSTD.decompress(packed, size, asbytes=True))

        yield read
