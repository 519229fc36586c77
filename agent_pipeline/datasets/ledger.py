"""The ledger of task → split: a task keeps the split that it was given first, whatever the settings or the store become later.

It is a small table of the lake, one a partition. A task that it does not know gets its split by hash and is recorded. If the ledger is
lost, the hash gives the same splits again, as long as the sizes of the split are the same. Memory holds it as Arrow does, the bytes of each
key and some ten more: a partition may have as many tasks as sessions.
"""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from functools import cache, cached_property
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.splits import ROW, SPLITS, Split, SplitSizes
from agent_pipeline.errors import DataError, MissingError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import make_column
from agent_pipeline.storage.lake import Lake

LEDGER = "split_ledger"
SCHEMA = pa.schema(ROW[-2:])


@dataclass(frozen=True)
class Ledger:
    """The splits of a partition's tasks: `known`, sorted by `task_key`; `sizes` decides for tasks that it does not know."""

    sizes: SplitSizes
    known: pa.Table

    @classmethod
    def with_tasks(cls, sizes: SplitSizes, known: Mapping[str, Split]) -> "Ledger":
        """A ledger that knows these tasks."""
        return cls(
            sizes,
            pa.Table.from_pylist(
                [dict(zip(SCHEMA.names, each, strict=True)) for each in sorted(known.items())],
                SCHEMA,
            ),
        )

    def of(self, task_key: str) -> Split:
        """The split of a task, as it was recorded first."""
        tasks, splits = self._columns
        at = bisect_left(tasks, task_key, key=str)
        found = at < len(tasks) and tasks[at].as_py() == task_key
        return cast(Split, splits[at].as_py()) if found else self.sizes.of(task_key)

    @cached_property
    def _columns(self) -> list[pa.Array]:
        return [each.combine_chunks() for each in self.known.columns]

    @property
    def older_than_the_sizes(self) -> int:
        """How many tasks are in another split than today's sizes would give them."""
        return sum(
            split.as_py() != self.sizes.of(task.as_py())
            for task, split in zip(*self.known.columns, strict=True)
        )


def read_ledger(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> Ledger:
    """The recorded tasks; none where the partition has no ledger.

    Raises:
        DataError: the ledger is damaged.
    """
    try:
        known = lake.open(LEDGER, key).read(SCHEMA.names)
    except MissingError:
        return Ledger(sizes, pa.Table.from_batches([], SCHEMA))
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The ledger of the split of {key} at {lake.table(LEDGER, key)} is damaged: put a copy of it back, or delete it, and every "
            "task gets the split of its hash again, which is the same as long as the sizes of the split are."
        ) from error
    # A copy that was put back may lie in another order: a task that is looked for in vain would move to the split of its hash.
    return Ledger(sizes, pa.Table.from_arrays(known.columns, schema=SCHEMA).sort_by("task_key"))


def record_tasks(
    lake: Lake,
    key: PartitionKey,
    tasks: pa.Array,
    sizes: SplitSizes,
    alike: Callable[[], Mapping[str, str]] | None = None,
) -> Ledger:
    """The ledger with these tasks in it; it is written, in one step, if one of them is new.

    Args:
        lake: The lake of the ledger.
        key: Its partition.
        tasks: The tasks to record.
        sizes: They decide the split of a new task.
        alike: Gives the group of each task whose request is nearly that of another task. It is asked only if a task is new. The new tasks
            of a group get the split of the group's known tasks, else that of the group's name: no trial of a task then tests what another
            trial trains.

    Raises:
        DataError: the ledger is damaged.
    """
    groups = cache(alike) if alike else dict[str, str]

    def recorded(known: pa.Table) -> pa.Table:
        new = pc.unique(tasks.filter(pc.invert(pc.is_in(tasks, known["task_key"]))))
        split_of = _splits_of_groups(groups() if len(new) else {}, known, sizes)
        splits = make_column([split_of(task.as_py()) for task in new], SCHEMA.field("split"))
        return (
            pa.concat_tables([known, pa.Table.from_arrays([new, splits], schema=SCHEMA)]).sort_by(
                "task_key"
            )
            if len(new)
            else known
        )

    return _changed(lake, key, sizes, recorded)


def _splits_of_groups(
    groups: Mapping[str, str], known: pa.Table, sizes: SplitSizes
) -> Callable[[str], Split]:
    """The split of a new task. If tasks of a group are known in several splits, the group's new tasks are trained, not tested."""
    ledger, by_group = Ledger(sizes, known), dict[str, set[Split]]()
    recorded = set(
        known.filter(
            pc.is_in(known["task_key"], make_column(list(groups), SCHEMA.field("task_key")))
        )["task_key"].to_pylist()
    )
    for task in recorded:
        by_group.setdefault(groups[task], set()).add(ledger.of(task))

    def split_of(task: str) -> Split:
        group = groups.get(task, task)
        return min(by_group.get(group, {sizes.of(group)}), key=SPLITS.index)

    return split_of


def remove_tasks(lake: Lake, key: PartitionKey, gone: Set[str], renamed: Mapping[str, str]) -> int:
    """Take tasks out of the ledger, and give others another name in the split that they have; returns how many were taken out.

    Raises:
        DataError: the ledger is damaged.
    """
    taken: list[str] = []

    def left(table: pa.Table) -> pa.Table:
        known = dict(zip(*table.to_pydict().values(), strict=True))
        taken[:] = gone & known.keys()
        return Ledger.with_tasks(
            SplitSizes(),
            {renamed.get(task, task): split for task, split in known.items() if task not in gone},
        ).known

    _changed(lake, key, SplitSizes(), left)
    return len(taken)


def _changed(
    lake: Lake, key: PartitionKey, sizes: SplitSizes, change: Callable[[pa.Table], pa.Table]
) -> Ledger:
    """The ledger after a change. Several assets of a partition, on several machines, may change it at once."""
    ledger = Ledger(sizes, pa.Table.from_batches([], SCHEMA))

    def changed() -> pa.Table | None:
        nonlocal ledger
        before = read_ledger(lake, key, sizes).known
        ledger = Ledger(sizes, change(before).combine_chunks())
        return None if ledger.known.equals(before) else ledger.known

    lake.update(LEDGER, key, changed)
    return ledger
