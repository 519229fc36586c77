"""The ledger that records the split of each task, so that a task always keeps its first split.

The ledger is a small table in the lake, one per partition. It keeps a task in its split even if the
settings or the store change. A task that is not in the ledger gets its split by hash and is
recorded. If the ledger is lost, the hash gives the same splits again, as long as the sizes of the
split are the same. `splits` defines the hash.

A partition may have as many tasks as sessions, so memory holds the ledger as an Arrow table: the
bytes of each key and about ten more.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.splits import LINEAGE_COLUMNS, SPLITS, Split, SplitSizes
from agent_pipeline.errors import DataError, MissingError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import make_column
from agent_pipeline.storage.lake import Lake

LEDGER_TABLE = "split_ledger"
LEDGER = pa.schema([column for column in LINEAGE_COLUMNS if column.name in ("task_key", "split")])
"""Columns of the split ledger."""


@dataclass(frozen=True)
class Ledger:
    """The recorded splits of a partition's tasks.

    Attributes:
        sizes: The sizes that determine the split of tasks that are not recorded.
        recorded: The recorded tasks, a table of `LEDGER` sorted by `task_key`.
    """

    sizes: SplitSizes
    recorded: pa.Table

    @classmethod
    def from_splits(cls, sizes: SplitSizes, splits_by_task: Mapping[str, Split]) -> "Ledger":
        """Create a ledger that records the given splits."""
        rows = [
            {"task_key": task_key, "split": split}
            for task_key, split in sorted(splits_by_task.items())
        ]
        return cls(sizes, pa.Table.from_pylist(rows, LEDGER))

    def find_split(self, task_key: str) -> Split:
        """Return the recorded split of a task.

        If the task is new, return the split that follows from its hash.
        """
        task_keys, splits = self._columns
        row_index = bisect_left(task_keys, task_key, key=str)
        if row_index < len(task_keys) and task_keys[row_index].as_py() == task_key:
            return cast(Split, splits[row_index].as_py())
        return self.sizes.find_split(task_key)

    @cached_property
    def _columns(self) -> list[pa.Array]:
        return [column.combine_chunks() for column in self.recorded.columns]

    def count_moved_tasks(self) -> int:
        """Count the tasks whose recorded split differs from the split by the current sizes."""
        return sum(
            split.as_py() != self.sizes.find_split(task_key.as_py())
            for task_key, split in zip(*self.recorded.columns, strict=True)
        )


def read_ledger(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> Ledger:
    """Return the ledger of a partition, which is empty if no ledger was written.

    Args:
        lake: The lake that the ledger is in.
        key: The partition.
        sizes: The sizes that determine the split of tasks that are not recorded.

    Raises:
        DataError: The ledger is damaged.
    """
    try:
        recorded = lake.open(LEDGER_TABLE, key).read(LEDGER.names)
    except MissingError:
        return Ledger(sizes, pa.Table.from_batches([], LEDGER))
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The split ledger of {key} at {lake.table(LEDGER_TABLE, key)} is damaged: restore a "
            "copy of it, or delete it. Without a ledger, the split of each task is computed from "
            "its hash again. Each task keeps its split if the split sizes have not changed.",
            asset=LEDGER_TABLE,
            partition=key,
            path=lake.table(LEDGER_TABLE, key),
        ) from error
    # A restored copy may have a different order, in which the binary search would not find a task.
    table = pa.Table.from_arrays(recorded.columns, schema=LEDGER).sort_by("task_key")
    return Ledger(sizes, table)


def record_tasks(
    lake: Lake,
    key: PartitionKey,
    tasks: pa.Array,
    sizes: SplitSizes,
    group_tasks: Callable[[], Mapping[str, str]] | None = None,
) -> Ledger:
    """Record tasks in the ledger of a partition.

    The ledger is written in one step, and only if a task is new.

    Args:
        lake: The lake that the ledger is in.
        key: The partition.
        tasks: The task keys to record, strings.
        sizes: The sizes that determine the split of a new task.
        group_tasks: Returns the group of each task whose request is nearly the same as the request
            of another task. It is called only if a task is new. The new tasks of a group get the
            split of the group's recorded tasks. If no task of the group is recorded, they get the
            split of the group's name. Nearly equal requests are therefore never both trained and
            tested.

    Returns:
        The ledger with these tasks.

    Raises:
        DataError: The ledger is damaged.
    """
    group_once = cache(group_tasks) if group_tasks else dict[str, str]

    def add_new_tasks(recorded: pa.Table) -> pa.Table:
        return add_tasks(Ledger(sizes, recorded), tasks, group_once).recorded

    return _update_ledger(lake, key, sizes, add_new_tasks)


def add_tasks(
    ledger: Ledger, tasks: pa.Array, group_tasks: Callable[[], Mapping[str, str]]
) -> Ledger:
    """Return a ledger that also records new tasks. The lake is not changed.

    Args:
        ledger: The ledger.
        tasks: The task keys to record, strings.
        group_tasks: As in `record_tasks`.
    """
    recorded = ledger.recorded
    is_new = pc.invert(pc.is_in(tasks, recorded["task_key"]))
    new_tasks = pc.unique(tasks.filter(is_new))
    if not len(new_tasks):
        return ledger
    choose_split = _split_by_group(group_tasks(), ledger)
    splits = [choose_split(task.as_py()) for task in new_tasks]
    new_rows = pa.Table.from_arrays(
        [new_tasks, make_column(splits, LEDGER.field("split"))], schema=LEDGER
    )
    return Ledger(ledger.sizes, pa.concat_tables([recorded, new_rows]).sort_by("task_key"))


def _split_by_group(groups: Mapping[str, str], ledger: Ledger) -> Callable[[str], Split]:
    """Return a function that determines the split of a new task from its group.

    If the recorded tasks of a group are in several splits, the group's new tasks go into the split
    that is held out least.
    """
    grouped_tasks = make_column(list(groups), LEDGER.field("task_key"))
    is_grouped = pc.is_in(ledger.recorded["task_key"], grouped_tasks)
    splits_by_group: dict[str, set[Split]] = {}
    for task_key in ledger.recorded.filter(is_grouped)["task_key"].to_pylist():
        splits_by_group.setdefault(groups[task_key], set()).add(ledger.find_split(task_key))

    def choose_split(task_key: str) -> Split:
        group = groups.get(task_key, task_key)
        if group in splits_by_group:
            return min(splits_by_group[group], key=SPLITS.index)
        return ledger.sizes.find_split(group)

    return choose_split


def remove_tasks(
    lake: Lake, key: PartitionKey, removed: Set[str], new_names: Mapping[str, str]
) -> int:
    """Remove some tasks from the split ledger, and rename other tasks.

    A renamed task keeps its split.

    Args:
        lake: The lake that the ledger is in.
        key: The partition.
        removed: The keys of the tasks to remove.
        new_names: The new key of each task to rename, by its old key.

    Returns:
        The number of tasks that were removed.

    Raises:
        DataError: The ledger is damaged.
    """
    removed_count = 0

    def remove(recorded: pa.Table) -> pa.Table:
        nonlocal removed_count
        splits_by_task = dict(zip(*recorded.to_pydict().values(), strict=True))
        removed_count = len(removed & splits_by_task.keys())
        remaining = {
            new_names.get(task_key, task_key): split
            for task_key, split in splits_by_task.items()
            if task_key not in removed
        }
        return Ledger.from_splits(SplitSizes(), remaining).recorded

    _update_ledger(lake, key, SplitSizes(), remove)
    return removed_count


def _update_ledger(
    lake: Lake, key: PartitionKey, sizes: SplitSizes, change: Callable[[pa.Table], pa.Table]
) -> Ledger:
    """Apply a change to the ledger, and return the new ledger.

    Several assets of a partition, on several machines, may change the ledger at the same time. The
    lake repeats the change on the newest ledger until no other process has written in between.
    """
    ledger = Ledger(sizes, pa.Table.from_batches([], LEDGER))

    def change_newest() -> pa.Table | None:
        nonlocal ledger
        before = read_ledger(lake, key, sizes).recorded
        ledger = Ledger(sizes, change(before).combine_chunks())
        return None if ledger.recorded.equals(before) else ledger.recorded

    lake.update(LEDGER_TABLE, key, change_newest)
    return ledger
