"""Groups of rows that are too large: near-duplicates, planted rows, a task, a source, or a day.

Planted sessions have an effect only in large numbers, so they look alike: copies of one session, or
copies of many sessions with an added phrase. Such groups may have only a small share of the rows.
Rows beyond that share stay in the index, with the reason why they were left out.

A group is compared with the other groups of its kind, so that data with few tasks or few kinds of
conversation is not thinned out. Finding planted rows belongs to `phrases` and `planted`.
"""

import sys
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from agent_pipeline.errors import DataError
from agent_pipeline.options import Options
from agent_pipeline.selection.candidates import Candidates, sort_by_judgment
from agent_pipeline.selection.duplicates import (
    NEAR,
    NearPair,
    find_near_pairs,
    find_rows_with_candidates,
    split_words,
)
from agent_pipeline.selection.phrases import find_added_phrases, find_new_requests
from agent_pipeline.selection.planted import PlantedPattern, find_planted
from agent_pipeline.selection.pool import Reason

MIN_ROWS = 50
"""Minimum number of rows of a dataset from which rows may be left out. Shares of fewer rows are not
meaningful.
"""
MIN_CAP = 2
"""Number of rows that are kept from every group. It allows for the two trials that many tasks have.
"""
MEDIANS_OF_A_CLUSTER = 2
MEDIANS_OF_A_TASK = 10
MEDIANS_OF_A_SOURCE = 10
"""Maximum size of a group, as a multiple of the median group size of the same kind."""
MIN_COMMON_WORDS = 20
"""Minimum number of distinct words that two texts must share. If the texts have fewer words in
common, they are near-duplicates only if nearly all their words are shared.
"""
NEAR_IF_SHORT = 0.95
MAX_PLANTED_SHARE = 0.25
"""Maximum share of rows that contain a planted phrase. Above this share, no coreset is built."""

NEAR_DUPLICATES, PHRASES, TASKS, SOURCES, DAYS = (
    "near-duplicates of",
    "common phrase",
    "task",
    "source",
    "day",
)
"""Kinds of row groups."""


class CrowdingOptions(Options):
    """Options that limit the size of row groups."""

    largest_cluster: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description=(
            "Maximum share of the rows that one group of near-duplicates may have. Rows that "
            "look planted also form a group, such as copies of rows with an added phrase, or "
            "rows in which users write the same unusual phrase. Two rows, and twice the size of "
            "the median group, are always kept. 1 keeps all rows."
        ),
    )
    largest_task: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Maximum share of the rows that one task may have. Two rows, and up to ten times the "
            "rows of the median task, are always kept. 1 keeps all rows."
        ),
    )
    largest_source: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description=(
            "Maximum share of the rows that may come from one reader (one format of stores), if "
            "there are several readers. Two rows, and up to ten times the rows of the median "
            "reader, are always kept. The default of 1 keeps all rows, because most agents have "
            "one reader."
        ),
    )
    largest_day: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description=(
            "Maximum share of the rows whose sessions began on the same day (UTC). The default "
            "of 1 keeps all rows, because many stores are written on one day."
        ),
    )


@dataclass(frozen=True)
class LeftOutRow:
    """A row that is left out of the coreset.

    Attributes:
        index: The index of the row.
        reason: The reason why the row is left out.
        like: The index of the kept row of which it is a near-duplicate, or None.
        similarity: Jaccard similarity of the words of these two rows.
    """

    index: int
    reason: Reason
    like: int | None = None
    similarity: float | None = None


@dataclass(frozen=True)
class Crowding:
    """The groups of rows, and the rows that are left out of groups that are too large.

    Attributes:
        left_out: The left-out rows, ordered by index.
        groups: The name of the group of each row, by the kind of group and the row's index.
        patterns: The planted patterns.
        planted_share: The share of the rows that have a planted phrase.
    """

    left_out: list[LeftOutRow]
    groups: dict[str, dict[int, str]]
    patterns: list[PlantedPattern] = field(default_factory=list)
    planted_share: float = 0.0


class PlantedRowsError(DataError):
    """Raised if too many rows look planted, so that no coreset is built.

    Attributes:
        share: The share of the rows that have a planted phrase.
        phrases: The phrases, the most frequent first.
    """

    def __init__(self, share: float, phrases: list[str]) -> None:
        self.share, self.phrases = share, phrases
        named = "; ".join(repr(phrase[:80]) for phrase in phrases[:3])
        super().__init__(
            f"sft_coreset was not made: {share} of the training rows look planted, because copies "
            f"of other rows share an unusual phrase ({named}). Look at some of these sessions. If "
            "the sessions are right, run once with --set sft_coreset.largest_cluster=1."
        )


def check_planted_share(crowding: Crowding) -> None:
    """Check that only few rows look planted.

    Raises:
        PlantedRowsError: the share of such rows is above `MAX_PLANTED_SHARE`.
    """
    if crowding.planted_share > MAX_PLANTED_SHARE:
        phrases = Counter(crowding.groups[PHRASES].values())
        raise PlantedRowsError(
            crowding.planted_share, [phrase for phrase, _ in phrases.most_common()]
        )


def find_crowding(
    rows: Candidates,
    indices: Sequence[int],
    options: CrowdingOptions,
    seed: int = 0,
    older: pa.ChunkedArray | None = None,
    sources: Mapping[str, str] | None = None,
) -> Crowding:
    """Find the groups among some rows, and leave out the rows that exceed the size limits.

    The rows of a group with the best scores stay, then the earliest.

    Args:
        rows: All rows.
        indices: The rows to examine.
        options: The limits of group sizes.
        seed: The seed of the index of words.
        older: The ids of the rows that an earlier coreset accepted, or None if there was no earlier
            coreset.
        sources: The reader of each session, by session id.
    """
    wanted = set(indices)
    ordered = [index for index in sort_by_judgment(rows).tolist() if index in wanted]
    near = _find_near(rows, ordered, seed)
    phrases = dict(near.phrases)
    patterns: list[PlantedPattern] = []
    is_limited = options.largest_cluster < 1 and len(ordered) >= MIN_ROWS
    max_older = _get_cap(options.largest_cluster, 0 if older is None else len(older))
    phrases |= find_new_requests(rows, ordered, older, max_older)
    if is_limited:
        patterns = _find_new_patterns(rows, ordered, seed, older, max_older)
        for pattern in reversed(patterns):  # the most frequent pattern gives a row its group name
            name = f"{pattern.trigger} → {pattern.behaviour}"
            phrases |= dict.fromkeys(pattern.rows, name)
    groups = _name_groups(rows, ordered, near, phrases, sources or {})
    clusters = {index: near.get_standing(index) for index in ordered}
    limiter = _Limiter(ordered)
    if len(ordered) >= MIN_ROWS:
        planted = {index: "" for pattern in patterns for index in pattern.rows}
        _limit_groups(limiter, options, groups, clusters, planted)
    left_out = []
    for index, reason in sorted(limiter.reasons.items()):
        pair = near.pairs_by_row.get(index)
        if pair and pair.stands not in limiter.reasons:
            left_out.append(LeftOutRow(index, reason, pair.stands, pair.similarity))
        else:
            left_out.append(LeftOutRow(index, reason))
    share = len(phrases) / len(ordered) if is_limited else 0.0
    return Crowding(left_out, groups, patterns, share)


@dataclass(frozen=True)
class _NearRows:
    """The near-duplicates among rows, and the phrases that were added to copies, by row index."""

    pairs_by_row: dict[int, NearPair]
    phrases: dict[int, str]

    def get_standing(self, index: int) -> int:
        """Return the row that represents a given row among its near-duplicates.

        A row without near-duplicates represents itself.
        """
        pair = self.pairs_by_row.get(index)
        return pair.stands if pair else index


class _Limiter:
    """The rows that are left out so far, each with the first reason for leaving it out.

    Attributes:
        reasons: The reason by the index of the row.
    """

    def __init__(self, ordered: Sequence[int]) -> None:
        self._ordered = ordered
        self.reasons: dict[int, Reason] = {}

    def limit(self, groups: Mapping[int, Hashable], cap: int, reason: Reason) -> None:
        """In each group, leave out all rows after the first `cap` rows."""
        counts: Counter[Hashable] = Counter()
        for index in self._ordered:
            if index in groups and index not in self.reasons:
                counts[groups[index]] += 1
                if counts[groups[index]] > cap:
                    self.reasons[index] = reason


def _limit_groups(
    limiter: _Limiter,
    options: CrowdingOptions,
    groups: Mapping[str, Mapping[int, str]],
    clusters: Mapping[int, int],
    planted: Mapping[int, str],
) -> None:
    """Apply the size limits to the groups of all kinds.

    Args:
        limiter: The rows that are left out so far.
        options: The caps.
        groups: The named groups, by kind.
        clusters: The row that represents each row.
        planted: One group of all rows with a planted pattern.
    """
    count, phrases = len(clusters), groups[PHRASES]
    cap = _get_cap(options.largest_cluster, count - len(phrases))
    limiter.limit(planted, cap, Reason.COMMON_PHRASE)
    limiter.limit(phrases, cap, Reason.COMMON_PHRASE)
    distinct = len(set(clusters.values()))  # each conversation counts once
    cap = _get_cap(options.largest_cluster, distinct, _median_size(clusters), MEDIANS_OF_A_CLUSTER)
    limiter.limit(clusters, cap, Reason.CROWDED_CLUSTER)
    tasks, sources, days = groups[TASKS], groups[SOURCES], groups[DAYS]
    cap = _get_cap(options.largest_task, count, _median_size(tasks), MEDIANS_OF_A_TASK)
    limiter.limit(tasks, cap, Reason.CROWDED_TASK)
    if len(set(sources.values())) > 1:
        cap = _get_cap(options.largest_source, count, _median_size(sources), MEDIANS_OF_A_SOURCE)
        limiter.limit(sources, cap, Reason.CROWDED_SOURCE)
    limiter.limit(days, _get_cap(options.largest_day, count), Reason.CROWDED_DAY)


def _median_size(groups: Mapping[int, Hashable]) -> int:
    """Return the number of rows of the median group, or 0 if there are no groups."""
    sizes = sorted(Counter(groups.values()).values())
    return sizes[len(sizes) // 2] if sizes else 0


def _get_cap(share: float, total: int, median: int = 0, medians: int = 0) -> int:
    """Return the maximum number of rows that may be kept from a group.

    Args:
        share: The largest share. 1 or more allows any number of rows.
        total: The number of rows to which the share refers.
        median: The number of rows of the median group.
        medians: Allowed size of a group, as a multiple of the median group.
    """
    if share >= 1:
        return sys.maxsize
    return max(MIN_CAP, int(share * total), medians * median)


def _find_new_patterns(
    rows: Candidates,
    indices: Sequence[int],
    seed: int,
    older: pa.ChunkedArray | None,
    max_older: int,
) -> list[PlantedPattern]:
    """Find planted patterns, except patterns that an earlier coreset accepted.

    Args:
        rows: All rows.
        indices: The rows to examine.
        seed: The seed of the sample.
        older: The ids of the rows that an earlier coreset accepted, or None if there was no earlier
            coreset.
        max_older: A pattern in more than this number of older rows counts as accepted by a person.
    """
    patterns = find_planted(rows, indices, seed)
    if older is None or not patterns:
        return patterns
    is_older = pc.is_in(rows.table["row_id"], older.combine_chunks()).to_pylist()
    return [
        pattern
        for pattern in patterns
        if sum(is_older[index] for index in pattern.rows) <= max_older
    ]


def _name_groups(
    rows: Candidates,
    indices: Sequence[int],
    near: _NearRows,
    phrases: dict[int, str],
    sources: Mapping[str, str],
) -> dict[str, dict[int, str]]:
    """Return, for each kind of group, the name of the group that each row belongs to."""
    sessions = rows.table["session_id"].to_pylist()
    tasks, days = rows.table["task_key"].to_pylist(), _list_days(rows)
    standing = {pair.stands for pair in near.pairs_by_row.values()}
    clustered = standing | near.pairs_by_row.keys()
    return {
        NEAR_DUPLICATES: {
            index: sessions[near.get_standing(index)] for index in indices if index in clustered
        },
        PHRASES: phrases,
        TASKS: {index: tasks[index] for index in indices if tasks[index]},
        SOURCES: {
            index: sources[sessions[index]] for index in indices if sessions[index] in sources
        },
        DAYS: {index: days[index] for index in indices if days[index]},
    }


def _find_near(rows: Candidates, ordered: Sequence[int], seed: int) -> _NearRows:
    """Find the near-duplicates among rows, and the phrases that were added to copies.

    Memory holds only the texts of rows that may have a near-duplicate.
    """
    by_index = sorted(ordered)
    if not by_index:
        return _NearRows({}, {})
    with_candidates = find_rows_with_candidates(rows.texts(by_index), NEAR, seed)
    candidates = [by_index[position] for position in with_candidates]
    if not candidates:
        return _NearRows({}, {})
    texts_by_index = dict(zip(candidates, rows.texts(candidates), strict=True))
    indices = [index for index in ordered if index in texts_by_index]
    texts = [texts_by_index[index] for index in indices]
    pairs = [pair for pair in find_near_pairs(texts, NEAR, seed).pairs if _is_near(texts, pair)]
    phrases = find_added_phrases(texts, [(pair.row, pair.stands) for pair in pairs])
    return _NearRows(
        {
            indices[pair.row]: NearPair(indices[pair.row], indices[pair.stands], pair.similarity)
            for pair in pairs
        },
        {indices[position]: phrase for position, phrase in phrases.items()},
    )


def _is_near(texts: Sequence[str], pair: NearPair) -> bool:
    """Return whether two texts have enough words in common to be near-duplicates.

    If texts have only a few words, most of them may be the same by chance.
    """
    if pair.similarity >= NEAR_IF_SHORT:
        return True
    common = set(split_words(texts[pair.row])) & set(split_words(texts[pair.stands]))
    return len(common) >= MIN_COMMON_WORDS


def _list_days(rows: Candidates) -> list[str]:
    """Return the day (UTC) on which each row's session began.

    The text is empty if the day is unknown.
    """
    return [
        "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}"
        for time in rows.table["began"].to_pylist()
    ]
