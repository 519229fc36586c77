"""The ledger of task → split: a task keeps the split that it was given first, whatever the settings or the store become later.

It is a small table of the lake, one a partition. A task that it does not know gets its split by hash and is recorded. If the ledger is
lost, the hash gives the same splits again, as long as the sizes of the split are the same.
"""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass

import pyarrow as pa

from agent_pipeline.datasets.splits import ROW, Split, SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake

LEDGER = "split_ledger"
SCHEMA = pa.schema(ROW[-2:])


@dataclass(frozen=True)
class Ledger:
    """The splits of a partition's tasks; `sizes` decides for tasks that it does not know."""

    sizes: SplitSizes
    known: dict[str, Split]

    def of(self, task_key: str) -> Split:
        """The split of a task, as it was recorded first."""
        return self.known.get(task_key) or self.sizes.of(task_key)

    @property
    def older_than_the_sizes(self) -> int:
        """How many tasks are in another split than today's sizes would give them."""
        return sum(split != self.sizes.of(task) for task, split in self.known.items())


def read_ledger(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> Ledger:
    """The recorded tasks; none where the partition has no ledger.

    Raises:
        DataError: the ledger is damaged.
    """
    if not lake.has(LEDGER, key):
        return Ledger(sizes, {})
    try:
        tasks, splits = lake.open(LEDGER, key).read(SCHEMA.names).columns
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The ledger of the split of {key} at {lake.table(LEDGER, key)} is damaged: put a copy of it back, or delete it, and every "
            "task gets the split of its hash again, which is the same as long as the sizes of the split are."
        ) from error
    return Ledger(sizes, dict(zip(tasks.to_pylist(), splits.to_pylist(), strict=True)))


def record_tasks(lake: Lake, key: PartitionKey, tasks: Iterable[str], sizes: SplitSizes) -> Ledger:
    """The ledger with these tasks in it; it is written, in one step, if one of them is new.

    Raises:
        DataError: the ledger is damaged.
    """
    named = list(tasks)
    return _changed(lake, key, sizes, lambda known: {task: sizes.of(task) for task in named} | known)


def remove_tasks(lake: Lake, key: PartitionKey, gone: Set[str], renamed: Mapping[str, str]) -> int:
    """Take tasks out of the ledger, and give others another name in the split that they have; returns how many were taken out.

    Raises:
        DataError: the ledger is damaged.
    """
    taken: list[str] = []

    def left(known: dict[str, Split]) -> dict[str, Split]:
        taken[:] = gone & known.keys()
        return {renamed.get(task, task): split for task, split in known.items() if task not in gone}

    _changed(lake, key, SplitSizes(), left)
    return len(taken)


def _changed(lake: Lake, key: PartitionKey, sizes: SplitSizes, change: Callable[[dict[str, Split]], dict[str, Split]]) -> Ledger:
    """The ledger after a change. Several assets of a partition, on several machines, may change it at once."""
    ledger = Ledger(sizes, {})

    def changed() -> pa.Table | None:
        nonlocal ledger
        before = read_ledger(lake, key, sizes)
        ledger = Ledger(sizes, dict(sorted(change(before.known).items())))
        if ledger.known == before.known:
            return None
        return pa.table({"task_key": list(ledger.known), "split": list(ledger.known.values())}, schema=SCHEMA)

    lake.update(LEDGER, key, changed)
    return ledger
