"""Groups and phrases that dominate the rows that are new since the last coreset.

The findings are shown next to the coreset, and a suspicious finding is a warning. Leaving out rows
belongs to `crowding`.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.crowding import (
    NEAR_DUPLICATES,
    PHRASES,
    SOURCES,
    TASKS,
    Crowding,
)
from agent_pipeline.selection.phrases import MIN_OLDER_ROWS, list_phrases
from agent_pipeline.selection.pool import Reason
from agent_pipeline.selection.tables import CORESET_TABLE
from agent_pipeline.storage.lake import Lake

SHOWN = 3
"""Number of the largest groups per kind that are shown."""
MIN_ROWS = 5
"""Minimum number of rows for a group to be suspicious."""
NEW_PHRASES = "new phrase"
SUSPICIOUS_SHARE = {NEAR_DUPLICATES: 0.02, PHRASES: 0.0, TASKS: 0.2, NEW_PHRASES: 0.1}
"""Shares of the new rows at which a group is suspicious. A day or a source is never suspicious:
many stores are read for the first time with a long past or were written in one day, and most have
one reader.
"""
MAX_SEARCHED = 2000
"""Maximum number of new rows in which phrases are counted."""
TIMES_THE_MEAN = 3
"""Minimum size of a suspicious group, as a multiple of the mean group size of the same kind."""


@dataclass(frozen=True)
class RowGroup:
    """A group of rows that are new since the last coreset.

    Attributes:
        kind: The kind of group, such as a task.
        name: The name of the group.
        rows: The number of new rows in the group.
        share: Their share of all new rows.
        is_suspicious: Whether a person should examine the group.
    """

    kind: str
    name: str
    rows: int
    share: float
    is_suspicious: bool


@dataclass(frozen=True)
class Dominance:
    """The groups that dominate the new rows.

    Attributes:
        new: The number of new rows.
        groups: The largest groups of each kind.
        left_out: The number of rows that were left out because their group is too large.
    """

    new: int
    groups: list[RowGroup]
    left_out: int

    @property
    def suspicious(self) -> list[RowGroup]:
        """Return the groups that a person should examine."""
        return [group for group in self.groups if group.is_suspicious]

    @property
    def warning(self) -> str | None:
        """Return a warning for users, or None if no group is suspicious."""
        if not self.suspicious:
            return None
        named = "; ".join(
            f"{group.kind} {group.name[:60]!r}: {group.rows} rows ({group.share:.0%})"
            for group in self.suspicious[:SHOWN]
        )
        return (
            f"Of {self.new} new rows, many are alike ({named}), so {self.left_out} rows were left "
            "out. Look at some of these rows: whoever can write sessions with verdicts can change "
            "the model. If the rows are right, run once with --set sft_coreset.largest_cluster=1."
        )


def describe_new_rows(
    rows: Candidates, crowding: Crowding, before: pa.ChunkedArray | None
) -> Dominance:
    """Describe the groups that dominate the new rows.

    Args:
        rows: All rows.
        crowding: Their groups.
        before: The ids of the rows in the last coreset's index, or None if there is no earlier
            coreset.
    """
    ids = rows.table["row_id"]
    is_new = [True] * len(ids)
    if before is not None:
        is_new = pc.invert(pc.is_in(ids, before.combine_chunks())).to_pylist()
    new = sum(is_new)
    groups: list[RowGroup] = []
    for kind, names in crowding.groups.items():
        if kind == SOURCES and len(set(names.values())) < 2:
            continue
        counts = Counter(name for index, name in names.items() if is_new[index])
        groups += _list_largest(kind, counts, new)
    if new > 0 and len(ids) - new >= MIN_OLDER_ROWS:
        groups += _list_largest(NEW_PHRASES, _count_new_phrases(rows, is_new), new)
    return Dominance(new, groups, len(crowding.left_out))


def read_accepted_rows(lake: Lake, key: PartitionKey) -> pa.ChunkedArray | None:
    """Return the ids of the rows that the index of the last coreset accepted, or None.

    Rows that were left out because of a phrase count as new again. Otherwise, the next run would
    accept them.
    """
    try:
        with lake.open(CORESET_TABLE, key) as file:
            index = file.read(["row_id", "reason"])
            is_accepted = pc.not_equal(index["reason"], str(Reason.COMMON_PHRASE))
            return index.filter(is_accepted)["row_id"]
    except (DataError, pa.ArrowException, OSError):
        return None


def _list_largest(kind: str, counts: Counter[str], new: int) -> Iterator[RowGroup]:
    """Yield the largest groups of one kind.

    Args:
        kind: The kind of group.
        counts: The number of new rows in each group.
        new: The number of all new rows.
    """
    mean = counts.total() / len(counts) if counts else 0
    for name, count in counts.most_common(SHOWN):
        share = count / new
        is_large = count >= MIN_ROWS and share >= SUSPICIOUS_SHARE.get(kind, 2)
        is_unusual = (
            kind in (PHRASES, NEW_PHRASES) or count >= TIMES_THE_MEAN * mean or len(counts) <= SHOWN
        )
        if count > 1:
            yield RowGroup(kind, name, count, share, is_large and is_unusual)


def _count_new_phrases(rows: Candidates, is_new: Sequence[bool]) -> Counter[str]:
    """Count the phrases that occur in many new rows and in no older row.

    If several phrases occur in equally many rows, only one of them is counted, because they are
    probably parts of one sentence.
    """
    counts: Counter[str] = Counter()
    new_indices = [index for index, new in enumerate(is_new) if new][-MAX_SEARCHED:]
    for text in rows.texts(new_indices):
        counts.update(list_phrases(text))
    min_rows = max(MIN_ROWS, SUSPICIOUS_SHARE[NEW_PHRASES] * len(new_indices))
    common = {phrase: count for phrase, count in counts.items() if count >= min_rows}
    if not common:
        return Counter()
    for text, new in zip(rows.texts(), is_new, strict=True):
        if not new:
            for phrase in list_phrases(text) & common.keys():
                del common[phrase]
    phrases_by_count: dict[int, str] = {}
    for phrase in sorted(common):
        phrases_by_count.setdefault(common[phrase], phrase)
    return Counter({phrase: count for count, phrase in phrases_by_count.items()})
