"""What dominates the rows that are new since the last coreset: groups, and phrases that no older row has.

It is shown beside the coreset, and what is suspicious is a warning. Nothing is left out here.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.crowding import FEWEST_OLDER, Crowding, phrases_of
from agent_pipeline.selection.duplicates import words_of
from agent_pipeline.selection.pool import Reason
from agent_pipeline.selection.tables import CORESET_TABLE
from agent_pipeline.storage.lake import Lake

SHOWN = 3
"""The largest groups of each kind that are shown."""
FEWEST_ROWS = 5
"""Groups with fewer rows are never suspicious."""
SUSPICIOUS_SHARE = {
    "near-duplicates of": 0.02,
    "common phrase": 0.0,
    "task": 0.2,
    "new phrase": 0.1,
}
"""Shares of the new rows at which a group is suspicious. A day never is: many stores are read for
the first time with a long past, or were written in a day."""
MOST_SEARCHED = 2000
"""Phrases are counted in at most so many new rows."""
TIMES_THE_MEAN = 3
"""A suspicious group is also so many times as large as the mean group of its kind."""


class Group(NamedTuple):
    """A group of new rows, its share of them, and whether it is suspicious."""

    kind: str
    name: str
    rows: int
    share: float
    is_suspicious: bool


class Dominance(NamedTuple):
    """How many rows are new, the largest groups among them, and how many rows were left out for being in too large a group."""

    new: int
    groups: list[Group]
    left_out: int

    @property
    def suspicious(self) -> list[Group]:
        return [group for group in self.groups if group.is_suspicious]

    @property
    def warning(self) -> str | None:
        """A sentence for a person; None if nothing is suspicious."""
        if not self.suspicious:
            return None
        named = "; ".join(
            f"{group.kind} {group.name[:60]!r}: {group.rows} rows ({group.share:.0%})"
            for group in self.suspicious[:SHOWN]
        )
        return (
            f"Of {self.new} new rows, many are alike ({named}). {self.left_out} rows were left out for that. "
            "Look at some of them: whoever can write sessions with verdicts can write the model. If they are right, run once with "
            "--set sft_coreset.largest_cluster=1."
        )


def dominance(rows: Candidates, crowd: Crowding, before: pa.ChunkedArray | None) -> Dominance:
    """Describe the new rows.

    Args:
        rows: All rows.
        crowd: Their groups.
        before: The ids of the rows of the last coreset's index; None if there is none.
    """
    ids = rows.table["row_id"]
    is_new = (
        [True] * len(ids)
        if before is None
        else pc.invert(pc.is_in(ids, before.combine_chunks())).to_pylist()
    )
    new = sum(is_new)
    groups = [
        group
        for kind, names in crowd.groups.items()
        for group in _largest(
            kind, Counter(name for place, name in names.items() if is_new[place]), new
        )
    ]
    if new > 0 and len(ids) - new >= FEWEST_OLDER:
        groups += _largest("new phrase", _new_phrases(rows, is_new), new)
    return Dominance(new, groups, len(crowd.left_out))


def last_rows(lake: Lake, key: PartitionKey) -> pa.ChunkedArray | None:
    """Return the ids of the rows that the last coreset's index accepted; None if there is none that can be read.

    Rows that were left out for a phrase are new again: otherwise they would be accepted a night later.
    """
    try:
        with lake.open(CORESET_TABLE, key) as file:
            index = file.read(["row_id", "reason"])
            return index.filter(pc.not_equal(index["reason"], str(Reason.COMMON_PHRASE)))["row_id"]
    except (DataError, pa.ArrowException, OSError):
        return None


def _largest(kind: str, counts: Counter[str], new: int) -> Iterable[Group]:
    mean = counts.total() / len(counts) if counts else 0
    for name, count in counts.most_common(SHOWN):
        share = count / new
        is_large = count >= FEWEST_ROWS and share >= SUSPICIOUS_SHARE.get(kind, 2)
        is_unusual = (
            kind in ("common phrase", "new phrase")
            or count >= TIMES_THE_MEAN * mean
            or len(counts) <= SHOWN
        )
        if count > 1:
            yield Group(kind, name, count, share, is_large and is_unusual)


def _new_phrases(rows: Candidates, is_new: list[bool]) -> Counter[str]:
    """Return the phrases that many new rows have and no older row has, with the number of rows; of phrases in the same rows, one."""
    counts: Counter[str] = Counter()
    places = [place for place, new in enumerate(is_new) if new][-MOST_SEARCHED:]
    for text in rows.texts(places):
        counts.update(phrases_of(words_of(text)))
    least = max(FEWEST_ROWS, SUSPICIOUS_SHARE["new phrase"] * len(places))
    common = {phrase: count for phrase, count in counts.items() if count >= least}
    for text, new in zip(rows.texts(), is_new, strict=True) if common else ():
        if not new:
            for phrase in phrases_of(words_of(text)) & common.keys():
                del common[phrase]
    by_count: dict[int, str] = {}
    for phrase in sorted(common):
        by_count.setdefault(common[phrase], phrase)
    return Counter({phrase: count for count, phrase in by_count.items()})
