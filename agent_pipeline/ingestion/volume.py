"""The regression check on volume, which refuses a table that lost most sessions or verdicts.

A store with missing data, or with a missing file of verdicts, looks like a store that shrank.
Without this check, the next tables would be empty, and the replay buffer would lose its content.
The regression check on growth belongs to `growth`.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import make_scalar, read_batches
from agent_pipeline.storage.lake import Lake, StagedTable

MIN_COUNT_TO_COMPARE = 10
"""Minimum number of sessions or verdicts in the last table. If the number is smaller, losing half
of them is not suspicious.
"""

_TABLES_WITH_COUNTS = ("sessions", "judged_sessions", "curated_sessions")
_MAX_NOTES_IN_ERROR = 3


class VolumeError(DataError):
    """Raised if a table is refused because it keeps too little of the last table.

    Attributes:
        what: The kind of the missing data: `sessions`, `verdicts`, `metrics` or `labels`.
        before: Their number in the last run.
        now: Their number now.
    """

    def __init__(
        self,
        asset: str,
        key: PartitionKey,
        what: str,
        before: int,
        now: int,
        notes: Sequence[str] = (),
    ) -> None:
        """Create the error. The class describes the attributes.

        Args:
            asset: The table.
            key: The partition.
            what: The kind of the missing data.
            before: Their number in the last run.
            now: Their number now.
            notes: Sentences of the reader, which may explain the loss.
        """
        self.what, self.before, self.now = what, before, now
        sentences = [
            f"The table `{asset}` of {key} was not replaced: there are {now:,} {what}, and the "
            f"last run read {before:,}.",
            "Look for the missing data. If the smaller number is correct, run once with --set "
            f"{asset}.smallest_share=0.",
            *notes[:_MAX_NOTES_IN_ERROR],
        ]
        super().__init__(
            " ".join(sentences),
            setting=f"{asset}.smallest_share",
            asset=asset,
            partition=key,
        )


def check_volume(
    lake: Lake,
    key: PartitionKey,
    staged: StagedTable,
    smallest_share: float,
    notes: Sequence[str] = (),
) -> None:
    """Check that a staged table keeps enough of the last table's sessions and verdicts.

    If the last table is damaged, a table that was derived from it provides the counts. The staged
    table is deleted if an error is raised.

    Args:
        lake: The lake.
        key: The partition.
        staged: The new table `sessions`.
        smallest_share: The share of sessions, of recorded verdicts and of metrics that must be
            left. 0 allows any loss.
        notes: Sentences of the reader, which an error shows.

    Raises:
        VolumeError: A smaller share is left.
        DamageError: The last table is damaged, and no other table provides its counts.
    """
    if not (smallest_share and lake.has("sessions", key)):
        return
    counts_before = _read_last_counts(lake, key)
    if counts_before is None:
        staged.file.unlink()
        path = lake.table("sessions", key)
        raise DamageError(
            f"The table `sessions` of {key} was not replaced, because its last version at {path} "
            "is damaged and cannot show whether the store has lost sessions: restore the table "
            "from a backup, or run once with --set sessions.smallest_share=0.",
            path,
        )
    counts_now = _count_facts(pq.ParquetFile(staged.file))
    for what, before in counts_before.items():
        now = counts_now[what]
        if before >= MIN_COUNT_TO_COMPARE and now < smallest_share * before:
            staged.file.unlink()
            raise VolumeError("sessions", key, what, before, now, notes)


def _read_last_counts(lake: Lake, key: PartitionKey) -> Counter[str] | None:
    """Return the counts of the last run, read from the first readable table."""
    for asset in _TABLES_WITH_COUNTS:
        try:
            with lake.open(asset, key) as file:
                return _count_facts(file)
        except (DataError, pa.ArrowException, OSError, KeyError):
            continue
    return None


def _count_facts(file: pq.ParquetFile) -> Counter[str]:
    """Count the sessions, the sessions with a verdict, and the sessions with metrics.

    A verdict is the source's judgment or score. Metrics are counted separately, because a platform
    writes them for every session, which would hide that the verdicts are gone.
    """
    counts: Counter[str] = Counter()
    for batch in read_batches(file, ["judgment", "score", "scores"]):
        has_verdict = pc.or_(pc.is_valid(batch["judgment"]), pc.is_valid(batch["score"]))
        lengths = pc.binary_length(batch["scores"].storage)
        has_metrics = pc.greater(lengths, make_scalar(len("{}"), pa.int64()))
        counts["sessions"] += batch.num_rows
        counts["verdicts"] += pc.sum(has_verdict, min_count=0).as_py()
        counts["metrics"] += pc.sum(has_metrics, min_count=0).as_py()
    return counts
