"""The guard on volume: a store that lost most of its sessions, or of their verdicts, since the last run is refused.

Half a store and a verdict file that is gone look like a store that shrank. Without the guard the next tables would be empty, and the
replay buffer would let go what it remembers.
"""

from collections import Counter
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import scalar, stored_batches
from agent_pipeline.storage.lake import Lake, StagedTable

FEW = 10
"""Of fewer sessions or verdicts than this, losing half says nothing."""


class VolumeError(DataError):
    """There are too few of `what` (`sessions`, `verdicts`, `metrics`, `labels`): `now`, where the last run had `before`."""

    def __init__(self, asset: str, key: PartitionKey, what: str, before: int, now: int, notes: Sequence[str] = ()) -> None:
        self.what, self.before, self.now = what, before, now
        super().__init__(
            f"{asset} of {key} was not replaced: there are {now:,} {what}, and the last run read {before:,}. Look for what is missing; "
            f"if so few are right, run once with --set {asset}.smallest_share=0." + "".join(f" {note}" for note in notes[:3])
        )


def check_volume(lake: Lake, key: PartitionKey, staged: StagedTable, smallest_share: float, notes: Sequence[str] = ()) -> None:
    """Compare a staged table with the one that it would replace; `notes` are what the reader noted, shown with the error.

    Raises:
        VolumeError: the share of sessions, of those with a recorded verdict, or of those with metrics that is left is smaller; the staged
            table is removed.
    """
    if not (smallest_share and lake.has("sessions", key)):
        return
    try:
        before = _counts(lake.open("sessions", key))
    except (DataError, pa.ArrowException, OSError):  # a damaged table is replaced, not compared
        return
    now = _counts(pq.ParquetFile(staged.file))
    for what, count in before.items():
        if count >= FEW and now[what] < smallest_share * count:
            staged.file.unlink()
            raise VolumeError("sessions", key, what, count, now[what], notes)


def _counts(file: pq.ParquetFile) -> Counter[str]:
    """How many sessions there are, how many have a verdict (the source's judgment or score), and how many metrics: those of a platform are
    on every session, and would hide that the verdicts are gone."""
    counts: Counter[str] = Counter()
    for batch in stored_batches(file, ["judgment", "score", "scores"]):
        judged = pc.or_(pc.is_valid(batch["judgment"]), pc.is_valid(batch["score"]))
        scored = pc.greater(pc.binary_length(batch["scores"].storage), scalar(len("{}"), pa.int64()))
        counts["sessions"] += batch.num_rows
        counts.update({name: pc.sum(each, min_count=0).as_py() for name, each in (("verdicts", judged), ("metrics", scored))})
    return counts
