"""The guard on growth: it refuses a store that grew far more than is usual for the agent.

Whoever can write sessions and their verdicts can write the model. Copies with a hidden instruction
come in numbers, because a few sessions among many teach little. A person looks at such a night
before a table is replaced.
"""

from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake, StagedTable

FEWEST_BEFORE = 10
"""A table with fewer sessions says nothing about what is usual."""
FEWEST_NEW = 30
"""So few new sessions are never refused."""
USUAL_TIMES = 3
"""As many times the agent's usual number of sessions since the last run may come."""


class Growth(NamedTuple):
    """How many sessions the last table had, how many are new, and how many new ones are usual."""

    before: int
    new: int
    allowed: int


class GrowthError(DataError):
    """There are far more new sessions than is usual.

    Attributes:
        growth: The numbers that were compared.
    """

    def __init__(self, key: PartitionKey, growth: Growth, largest: str) -> None:
        self.growth = growth
        super().__init__(
            f"sessions of {key} was not replaced: {growth.new:,} sessions are new, the last run read {growth.before:,}, and up to "
            f"{growth.allowed:,} new ones are usual. Most of the new ones have {largest}. Look at some of them; if they are right, run "
            "once with --set sessions.largest_growth=0."
        )


def check_growth(lake: Lake, key: PartitionKey, staged: StagedTable, largest_growth: float) -> None:
    """Compare the new sessions of a staged table with the table that it would replace.

    Args:
        lake: The lake.
        key: The agent.
        staged: The new table. It is removed if there are too many.
        largest_growth: New sessions that are allowed, as a multiple of the last table's; 0 allows
            any number.

    Raises:
        GrowthError: there are more new sessions than that, and than is usual.
    """
    if not (largest_growth and lake.has("sessions", key)):
        return
    columns = ["session_id", "task_key", "source", "created_at"]
    try:
        with lake.open("sessions", key) as file:
            before = file.read(columns)
        age = datetime.now(UTC).timestamp() - lake.table("sessions", key).stat().st_mtime
    except (
        DataError,
        pa.ArrowException,
        OSError,
        AttributeError,
    ):  # check_volume has dealt with a damaged table
        return
    with pq.ParquetFile(staged.file) as file:
        now = file.read(columns)
    new = now.filter(pc.invert(pc.is_in(now["session_id"], before["session_id"])))
    usual = USUAL_TIMES * _per_day(before["created_at"]) * age / 86_400
    growth = Growth(
        len(before), len(new), int(max(FEWEST_NEW, largest_growth * len(before), usual))
    )
    if growth.before >= FEWEST_BEFORE and growth.new > growth.allowed:
        staged.file.unlink()
        raise GrowthError(key, growth, _largest_groups(new))


def _per_day(times: pa.ChunkedArray) -> float:
    """Return how many sessions began per day, over the days between the first and the last."""
    known = times.drop_null()
    if len(known) < 2:
        return 0.0
    span = pc.min_max(known).as_py()
    days = (span["max"] - span["min"]).total_seconds() / 86_400
    return len(known) / max(days, 1.0)


def _largest_groups(new: pa.Table) -> str:
    """Describe the commonest task, reader and day of the new sessions with their shares."""
    days = [
        "no time" if time is None else f"{time:%Y-%m-%d}" for time in new["created_at"].to_pylist()
    ]
    groups = {
        "the task": new["task_key"].to_pylist(),
        "the reader": new["source"].to_pylist(),
        "the day": days,
    }
    parts = []
    for what, values in groups.items():
        value, count = Counter(values).most_common(1)[0]
        parts.append(f"{what} {str(value)[:60]} ({count / len(values):.0%})")
    return ", ".join(parts)
