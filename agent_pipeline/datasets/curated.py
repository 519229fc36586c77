"""What data sets read of a partition's curated sessions: the good and the bad answers, each as a trial of the task that it belongs to.

Memory holds a batch of sessions, and of the others no more than their ids and tasks. Those that are wanted in another order than the
table's are put on a shelf, a file without a name beside the table, and taken from there one by one.
"""

import struct
import tempfile
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import IO, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.ledger import Ledger, settle
from agent_pipeline.datasets.preferences import Case
from agent_pipeline.datasets.splits import SplitSizes, root_tasks
from agent_pipeline.judging.curation import is_bad_answer
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import CURATED, column, row_session, stored_batches, to_rows
from agent_pipeline.storage.lake import Lake

ASSET = "curated_sessions"

Row = dict[str, Any]

_DECIDED = ["session_id", "task_key", "kept", "drop_reason"]
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
    "verdict",
    "attack_succeeded",
    "error",
]


@dataclass(frozen=True)
class Curated:
    """The curated sessions of a partition; `roots` are the tasks of forks and side chains by session id, `ledger` knows all tasks' sides.

    `in_order` says that the table is sorted by session id, as all of ours are. Rows have their JSON columns as they lie in the table
    (`msgspec.Raw`).
    """

    lake: Lake
    key: PartitionKey
    ledger: Ledger
    roots: dict[str, str]
    in_order: bool

    @classmethod
    def open(cls, lake: Lake, key: PartitionKey, sizes: SplitSizes) -> "Curated":
        """The sessions; their tasks are written down in the ledger.

        Raises:
            DataError: there is no such table, or it or the ledger is damaged.
        """
        table = _light(lake, key, ["session_id", "parent_session_id", "task_key"])
        ids, parents = table["session_id"], table["parent_session_id"]
        related = pc.or_(pc.is_valid(parents), pc.is_in(ids, parents))
        roots = root_tasks(table.filter(related).to_pylist())
        tasks = pc.unique(_with_roots(table, roots)["task_key"]).to_pylist()
        in_order = bool(pc.all(pc.less_equal(ids[:-1], ids[1:]), min_count=0).as_py())
        return cls(lake, key, settle(lake, key, sorted(tasks), sizes), roots, in_order)

    def kept(self) -> Iterator[Row]:
        """The rows of the good answers, by session id."""
        return self._rows(lambda batch: batch["kept"])

    def labelled(self) -> Iterator[tuple[Session, bool]]:
        """The good answers (true) and the bad ones (false), by session id."""
        return ((row_session(row), row["kept"]) for row in self._rows(_is_judged))

    def cases(self, counts: Counter[str]) -> Iterator[Case]:
        """The good and the bad answers by task; those of a task that has one kind alone are not read, and counted as
        `sessions_without_a_partner`."""
        decided = _with_roots(_light(self.lake, self.key, _DECIDED), self.roots)
        judged = decided.filter(_is_judged(decided))
        good, bad = (pc.unique(judged.filter(side)["task_key"]) for side in (judged["kept"], pc.invert(judged["kept"])))
        both = good.filter(pc.is_in(good, bad))
        alone = pc.invert(pc.is_in(judged["task_key"], both))
        counts["sessions_without_a_partner"] += pc.sum(alone, min_count=0).as_py()
        with shelf(self.lake, ASSET, self.key) as kept:
            index = kept.put_all(self._batches(lambda batch: pc.and_(_is_judged(batch), pc.is_in(batch["task_key"], both))))
            members = to_rows(index.sort_by([("task_key", "ascending"), ("session_id", "ascending")]))
            for task, trials in groupby(members, key=lambda row: str(row["task_key"])):
                sides: dict[bool, list[Callable[[], Session]]] = {True: [], False: []}
                for each in trials:
                    sides[each["kept"]].append(partial(kept.session, each["place"]))
                yield Case(task, sides[True], sides[False])

    def _rows(self, wanted: Callable[[Any], Any]) -> Iterator[Row]:
        batches = self._batches(wanted)
        if self.in_order:
            yield from to_rows(batches, raw=True)
            return
        with shelf(self.lake, ASSET, self.key) as kept:
            index = kept.put_all(batches)
            for place in index.sort_by("session_id")["place"]:
                yield kept.take(place.as_py())

    def _batches(self, wanted: Callable[[Any], Any]) -> Iterator[pa.RecordBatch]:
        """The rows of the table that are wanted, a batch in memory at a time."""
        for batch in stored_batches(self.lake.open(ASSET, self.key), _READ):
            batch = _with_roots(batch, self.roots)
            yield batch.filter(wanted(batch))


def _light(lake: Lake, key: PartitionKey, columns: list[str]) -> pa.Table:
    """Some short columns of all sessions."""
    return pa.Table.from_batches(stored_batches(lake.open(ASSET, key), columns), pa.schema(map(CURATED.field, columns)))


def _with_roots(table: Any, roots: dict[str, str]) -> Any:
    """A table or batch whose forks and side chains are trials of their roots' tasks."""
    if not roots:
        return table
    found = zip(table["session_id"].to_pylist(), table["task_key"].to_pylist(), strict=True)
    at = table.schema.get_field_index("task_key")
    field = table.schema.field(at)
    return table.set_column(at, field, column([roots.get(name, task) for name, task in found], field))


def _is_judged(table: Any) -> Any:
    """Which rows are good answers, or were dropped for what the agent did."""
    reasons = [reason for reason in pc.unique(table["drop_reason"]).to_pylist() if is_bad_answer(reason)]
    return pc.or_(table["kept"], pc.is_in(table["drop_reason"], column(reasons, pa.field("drop_reason", pa.string()))))


@contextmanager
def shelf(lake: Lake, asset: str, key: PartitionKey | None) -> Iterator["Shelf"]:
    """A shelf beside the table that is made of its rows, while it is made."""
    folder = Path(lake.table(asset, key).parent.path) if lake.is_local else None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder, prefix=".shelf-") as file:
        yield Shelf(file)


class Shelf:
    """Rows in a file, each to be taken by its place as often as it is wanted."""

    _SIZES = struct.Struct("<II")  # packed, and as it was
    _ZSTD = pa.Codec("zstd", compression_level=1)

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def put_all(self, batches: Iterator[pa.RecordBatch]) -> pa.Table:
        """Put the rows of batches away; the index says of each its `place`, and what it is sorted and told apart by."""
        known = pa.schema([CURATED.field(name) for name in ("session_id", "task_key", "kept")])
        parts = []
        places = array("q")
        for batch in batches:
            parts.append(batch.select(known.names).cast(known))
            places.extend(self.put(row) for row in to_rows([batch], raw=True))
        index = pa.Table.from_batches(parts, known)
        return index.append_column("place", pa.Array.from_buffers(pa.int64(), len(places), [None, pa.py_buffer(places)]))

    def put(self, row: Row) -> int:
        """Put a row at the end; its place."""
        place = self._file.tell()
        given = msgspec.msgpack.encode({name: bytes(value) if type(value) is msgspec.Raw else value for name, value in row.items()})
        packed = self._ZSTD.compress(given, asbytes=True)
        self._file.write(self._SIZES.pack(len(packed), len(given)) + packed)
        return place

    def take(self, place: int) -> Row:
        """The row at a place."""
        self._file.seek(place)
        packed, size = self._SIZES.unpack(self._file.read(self._SIZES.size))
        given = msgspec.msgpack.decode(self._ZSTD.decompress(self._file.read(packed), size, asbytes=True))
        return {name: msgspec.Raw(value) if type(value) is bytes else value for name, value in given.items()}

    def session(self, place: int) -> Session:
        """The session at a place."""
        return row_session(self.take(place))
