"""The ledger of task → side: what was decided once holds, whatever the settings, the store or its tasks become later.

A small table of the lake, one a partition. A task that it does not know gets its side by hash and is written down. Where the ledger is
lost, the hash gives the same sides again as long as the sizes of the split are the same.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from filelock import FileLock

from agent_pipeline.datasets.splits import Split, SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake

LEDGER = "split_ledger"
SCHEMA = pa.schema([pa.field("task_key", pa.string(), nullable=False), pa.field("split", pa.string(), nullable=False)])


@dataclass(frozen=True)
class Ledger:
    """The sides of a partition's tasks; `sizes` decides for tasks that nobody has met."""

    sizes: SplitSizes
    known: dict[str, Split]

    def of(self, task_key: str) -> Split:
        """The side of a task, as it was written down first."""
        return self.known.get(task_key) or self.sizes.of(task_key)

    @property
    def older_than_the_sizes(self) -> int:
        """How many tasks stand on another side than the sizes of today would give them."""
        return sum(split != self.sizes.of(task) for task, split in self.known.items())


def read_ledger(lake: Lake, key: PartitionKey, sizes: SplitSizes) -> Ledger:
    """What is written down; nothing for a partition of which nothing is.

    Raises:
        DataError: the ledger is damaged.
    """
    if not lake.has(LEDGER, key):
        return Ledger(sizes, {})
    try:
        tasks, sides = lake.open(LEDGER, key).read(SCHEMA.names).columns
    except (DataError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"The ledger of the split of {key} at {lake.table(LEDGER, key)} is damaged: put a copy of it back, or delete it, and every "
            "task gets the side of its hash again, which is the same as long as the sizes of the split are."
        ) from error
    return Ledger(sizes, dict(zip(tasks.to_pylist(), sides.to_pylist(), strict=True)))


def settle(lake: Lake, key: PartitionKey, tasks: Iterable[str], sizes: SplitSizes) -> Ledger:
    """The ledger with these tasks in it; written, in one step, when one is new.

    Raises:
        DataError: the ledger is damaged.
    """
    with _alone(lake, key):
        ledger = read_ledger(lake, key, sizes)
        new = {task: sizes.of(task) for task in tasks if task not in ledger.known}
        if not new:
            return ledger
        known = dict(sorted((ledger.known | new).items()))
        table = pa.table({"task_key": list(known), "split": list(known.values())}, schema=SCHEMA)
        lake.stage(LEDGER, key, table.to_batches(), SCHEMA).commit()
        return Ledger(sizes, known)


def unsettle(lake: Lake, key: PartitionKey, gone: Collection[str], renamed: Mapping[str, str]) -> int:
    """Take tasks out of the ledger, and give others another name, on the side that they have; how many were taken out.

    Raises:
        DataError: the ledger is damaged.
    """
    with _alone(lake, key):
        known = read_ledger(lake, key, SplitSizes()).known
        left = dict(sorted((renamed.get(task, task), split) for task, split in known.items() if task not in gone))
        if left != known:
            table = pa.table({"task_key": list(left), "split": list(left.values())}, schema=SCHEMA)
            lake.stage(LEDGER, key, table.to_batches(), SCHEMA).commit()
        return len(known) - len(left)


@contextmanager
def _alone(lake: Lake, key: PartitionKey) -> Iterator[None]:
    """One writer at a time on this machine: three assets of a partition may run side by side. In a remote lake the last one wins: what it
    did not see is found by hash again."""
    if not lake.is_local:
        yield
        return
    folder = Path(lake.table(LEDGER, key).parent.path)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".lock"):
        yield
