"""The regression check on growth, which refuses a table with unusually many new sessions.

A person who can write sessions and their verdicts can change the model. Planted sessions come in
large numbers, because a few sessions among many have little effect. If a store grew unusually fast,
a person has to look at the new sessions before the table is replaced. The regression check on
losses belongs to `volume`.
"""

from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake, StagedTable

MIN_SESSIONS_BEFORE = 10
"""Minimum number of sessions in the last table. A smaller table does not show what growth is usual.
"""
ALWAYS_ALLOWED_SESSIONS = 30
"""Number of new sessions that is never refused."""
USUAL_MULTIPLE = 3
"""Maximum number of new sessions, as a multiple of the number that is usual in the time since the
last run.
"""
_SECONDS_PER_DAY = 86_400


@dataclass(frozen=True)
class Growth:
    """The growth of a table since the last run.

    Attributes:
        before: Number of sessions in the last table.
        new: Number of new sessions.
        allowed: Number of new sessions that are allowed.
    """

    before: int
    new: int
    allowed: int


class GrowthError(DataError):
    """Raised if a table is refused because it has unusually many new sessions.

    Attributes:
        growth: The numbers that were compared.
        largest_groups: A text with the most common task, reader and day of the new sessions.
    """

    def __init__(self, key: PartitionKey, growth: Growth, largest_groups: str) -> None:
        self.growth = growth
        self.largest_groups = largest_groups
        super().__init__(
            f"The table `sessions` of {key} was not replaced: {growth.new} sessions are new, the "
            f"last run read {growth.before}, and up to {growth.allowed} new sessions are usual. "
            f"Most of the new sessions have {largest_groups}. Look at some of them. If they are "
            "right, run once with --set sessions.largest_growth=0.",
            setting="sessions.largest_growth",
            asset="sessions",
            partition=key,
        )


def check_growth(lake: Lake, key: PartitionKey, staged: StagedTable, largest_growth: float) -> None:
    """Check that a staged table does not have unusually many new sessions.

    Args:
        lake: The lake.
        key: The agent.
        staged: The new table. It is deleted if too many sessions are new.
        largest_growth: Number of new sessions that are allowed, as a multiple of the last table's
            sessions. 0 allows any number.

    Raises:
        GrowthError: There are more new sessions than `largest_growth` allows and than is usual.
    """
    if not (largest_growth and lake.has("sessions", key)):
        return
    columns = ["session_id", "task_key", "source", "created_at"]
    try:
        with lake.open("sessions", key) as file:
            before = file.read(columns)
        modified_at = lake.table("sessions", key).stat().st_mtime
    except (DataError, pa.ArrowException, OSError, AttributeError):
        return  # check_volume reports a damaged table
    age_seconds = datetime.now(UTC).timestamp() - modified_at
    with pq.ParquetFile(staged.file) as file:
        now = file.read(columns)
    new = now.filter(pc.invert(pc.is_in(now["session_id"], before["session_id"])))
    usual = _measure_daily_rate(before["created_at"]) * age_seconds / _SECONDS_PER_DAY
    allowed = max(ALWAYS_ALLOWED_SESSIONS, largest_growth * len(before), USUAL_MULTIPLE * usual)
    growth = Growth(len(before), len(new), int(allowed))
    if growth.before >= MIN_SESSIONS_BEFORE and growth.new > growth.allowed:
        staged.file.unlink()
        raise GrowthError(key, growth, _describe_largest_groups(new))


def _measure_daily_rate(times: pa.ChunkedArray) -> float:
    """Return the mean number of sessions per day between the first and the last session."""
    known = times.drop_null()
    if len(known) < 2:
        return 0.0
    span = pc.min_max(known).as_py()
    days = (span["max"] - span["min"]).total_seconds() / _SECONDS_PER_DAY
    return float(len(known) / max(days, 1.0))


def _describe_largest_groups(new: pa.Table) -> str:
    """Describe the most frequent task, reader and day of the new sessions, each with its share."""
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
