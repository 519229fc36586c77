"""Groups of rows that are too large: near-duplicates, a phrase added to copies, a task, a day.

Sessions that somebody planted teach only if there are many, so they look alike: copies of one
session, or copies of many sessions with one phrase added. Such groups may have a small share of the
rows. What is left out stays in the index with its reason.

A group is measured against the others, so that data with few tasks or few kinds of conversation is
not thinned out.
"""

import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from agent_pipeline.options import Options
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import (
    NEAR,
    Pair,
    near_pairs,
    rows_with_candidates,
    words_of,
)
from agent_pipeline.selection.pool import Reason

FEWEST_ROWS = 50
"""Of fewer rows nothing is left out: their shares say little."""
SMALLEST_CAP = 2
"""Two rows of a group are always kept: many tasks have two trials."""
MEDIANS_OF_A_CLUSTER = 2
MEDIANS_OF_A_TASK = 10
"""A group may be as many times as large as the median group of its kind."""
PHRASE_WORDS = 5
"""Words in a row that make a phrase."""
FEWEST_WITH_A_PHRASE = 3
"""Copies of fewer sessions may have the same words added by chance."""
REQUEST_WORDS = 3
"""Words in a row that make a phrase of a user."""
FEWEST_TASKS_WITH_A_REQUEST = 5
NEW_REQUEST_SHARE = 0.02
"""What so few users say, or so small a share of the new rows, is no pattern."""
CHANCE = 0.001
"""A phrase is new only if luck explains so many new rows with it less often than this, among all phrases that were counted."""
FEWEST_OLDER = 50
"""With fewer older rows, a phrase that they lack is nothing special."""
FEWEST_WORDS = 20
"""Texts with fewer different words in common are near-duplicates only if nearly all words are."""
NEAR_IF_SHORT = 0.95
CONTAINED = 0.98
"""A row that has this share of another row's words is a copy of it with something added."""


class CrowdingOptions(Options):
    """How large a group of rows may be."""

    largest_cluster: float = Field(
        default=0.01,
        ge=0,
        le=1,
        description="Largest share of the rows that near-duplicates of one row may have, or copies of rows with one phrase added, or "
        "new rows in which the users of many tasks say one new phrase. Two rows, and twice as many near-duplicates as the median "
        "group has, are always kept. 1 keeps all.",
    )
    largest_task: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Largest share of the rows that one task may have. Two rows, and ten times as many as the median task has, are always "
        "kept. 1 keeps all.",
    )
    largest_day: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="Largest share of the rows that may have begun on one day (UTC). 1 keeps all: many stores are written in a day.",
    )


class LeftOut(NamedTuple):
    """A row that is left out: why, and the row (both by their places) that it is like, if any."""

    place: int
    reason: Reason
    like: int | None = None
    similarity: float | None = None


class Crowding(NamedTuple):
    """What is left out, and which group each row is in: `groups[kind][place]` is the group's name.

    The kinds are `near-duplicates of` (named by a session), `common phrase`, `task` and `day`.
    """

    left_out: list[LeftOut]
    groups: dict[str, dict[int, str]]


def crowding(
    rows: Candidates,
    places: Sequence[int],
    options: CrowdingOptions,
    seed: int = 0,
    older: pa.ChunkedArray | None = None,
) -> Crowding:
    """Find the groups among the rows at `places`, and leave out what is too much of them.

    Of a group, the better judged rows stay, then the earlier ones.

    Args:
        rows: All rows.
        places: The rows to look at.
        options: How large a group may be.
        seed: The seed of the index of words.
        older: The ids of rows that an earlier coreset has accepted; None if there was none.
    """
    wanted = set(places)
    standing = [place for place in standing_order(rows).tolist() if place in wanted]
    pairs, phrase = _alike(rows, standing, seed)
    phrase |= new_requests(
        rows, standing, older, _cap(options.largest_cluster, 0 if older is None else len(older))
    )
    ids, tasks, days = (
        rows.table["session_id"].to_pylist(),
        rows.table["task_key"].to_pylist(),
        _days(rows),
    )
    like = {place: (other, similarity) for place, other, similarity in pairs}
    cluster = {place: like[place][0] if place in like else place for place in standing}
    kept = _Kept()
    few_rows = len(standing) < FEWEST_ROWS
    distinct = len(set(cluster.values()))  # conversations, each counted once
    task = {place: tasks[place] for place in standing if tasks[place]}
    day = {place: days[place] for place in standing if days[place]}
    if not few_rows:
        cap = _cap(options.largest_cluster, len(standing) - len(phrase))
        kept.limit(standing, phrase, cap, Reason.COMMON_PHRASE)
        cap = _cap(options.largest_cluster, distinct, cluster.values(), MEDIANS_OF_A_CLUSTER)
        kept.limit(standing, cluster, cap, Reason.CROWDED_CLUSTER)
        cap = _cap(options.largest_task, len(standing), task.values(), MEDIANS_OF_A_TASK)
        kept.limit(standing, task, cap, Reason.CROWDED_TASK)
        kept.limit(standing, day, _cap(options.largest_day, len(standing)), Reason.CROWDED_DAY)
    clustered = {place for pair in like.items() for place in (pair[0], pair[1][0])}
    groups = {
        "near-duplicates of": {
            place: ids[cluster[place]] for place in standing if place in clustered
        },
        "common phrase": phrase,
        "task": task,
        "day": day,
    }
    stand = {place: other for place, other in like.items() if other[0] not in kept.left_out}
    left_out = [
        LeftOut(place, reason, *stand.get(place, (None, None)))
        for place, reason in sorted(kept.left_out.items())
    ]
    return Crowding(left_out, groups)


def standing_order(rows: Candidates) -> np.ndarray:
    """Return the places of all rows: the better judged first, then the earlier, then by id."""
    scores, began = rows.table["score"], rows.table["began"]
    unjudged_last, undated_last = (
        pc.fill_null(values, float("inf")).to_numpy() for values in (pc.negate(scores), began)
    )
    return np.lexsort((undated_last, unjudged_last))  # the last decides first


class _Kept:
    """The rows that are left out so far, with the first reason for each."""

    def __init__(self) -> None:
        self.left_out: dict[int, Reason] = {}

    def limit(
        self, standing: Iterable[int], groups: Mapping[int, Hashable], cap: int, reason: Reason
    ) -> None:
        """Leave out the rows of each group that come after its first `cap` rows."""
        counts: Counter[Hashable] = Counter()
        for place in standing:
            if place in groups and place not in self.left_out:
                counts[groups[place]] += 1
                if counts[groups[place]] > cap:
                    self.left_out[place] = reason


def _cap(share: float, total: int, groups: Iterable[Hashable] = (), medians: int = 0) -> int:
    """Return how many rows a group may have: a share of `total`, or as many medians of the groups' sizes as are given, or two."""
    if share >= 1:
        return sys.maxsize
    sizes = sorted(Counter(groups).values())
    return max(SMALLEST_CAP, int(share * total), medians * sizes[len(sizes) // 2] if sizes else 0)


def _alike(
    rows: Candidates, standing: Sequence[int], seed: int
) -> tuple[list[Pair], dict[int, str]]:
    """Return near-duplicates among rows, by their places, and the phrases that were added to copies.

    Only the texts of rows that may have a near-duplicate are held in memory.
    """
    wanted = sorted(standing)
    if not wanted:
        return [], {}
    candidates = [wanted[number] for number in rows_with_candidates(rows.texts(wanted), NEAR, seed)]
    texts_by_place = (
        dict(zip(candidates, rows.texts(candidates), strict=True)) if candidates else {}
    )
    places = [place for place in standing if place in texts_by_place]
    texts = [texts_by_place[place] for place in places]
    pairs = [pair for pair in near_pairs(texts, NEAR, seed)[0] if _is_near(texts, pair)]
    phrases = _added_phrases(texts, [(row, other) for row, other, _ in pairs])
    return (
        [(places[row], places[other], similarity) for row, other, similarity in pairs],
        {places[row]: phrase for row, phrase in phrases.items()},
    )


def _is_near(texts: Sequence[str], pair: Pair) -> bool:
    """Return whether two texts have enough words in common to be near-duplicates: of a few words, most are alike by chance."""
    row, other, similarity = pair
    return (
        similarity >= NEAR_IF_SHORT
        or len(set(words_of(texts[row])) & set(words_of(texts[other]))) >= FEWEST_WORDS
    )


def _days(rows: Candidates) -> list[str]:
    times = rows.table["began"].to_pylist()
    return [
        "" if time is None else f"{datetime.fromtimestamp(time, UTC):%Y-%m-%d}" for time in times
    ]


def _added_phrases(texts: Sequence[str], pairs: Sequence[tuple[int, int]]) -> dict[int, str]:
    """Return the rows that are copies of others with a phrase added, each with that phrase.

    A phrase counts if it was added to copies of several rows: the words that two trials of a task
    differ in are others in each task.
    """
    originals: defaultdict[str, set[int]] = defaultdict(set)
    for one, other in pairs:
        for copy, original in ((one, other), (other, one)):
            for phrase in _added(texts[copy], texts[original]):
                originals[phrase].add(original)
    shared = {
        phrase: len(rows) for phrase, rows in originals.items() if len(rows) >= FEWEST_WITH_A_PHRASE
    }
    copies = {}
    for row in {row for pair in pairs for row in pair} if shared else ():
        if (
            common := phrases_of(words_of(texts[row])) & shared.keys()
        ):  # a copy of a copy has the phrase, too
            copies[row] = max(common, key=lambda phrase: (shared[phrase], phrase))
    return copies


def _added(copy: str, original: str) -> set[str]:
    """Return the phrases of a copy that its original lacks; none if it is no copy."""
    words, before = words_of(copy), set(words_of(original))
    if not before or len(before & set(words)) < CONTAINED * len(before):
        return set()
    return phrases_of(words) - phrases_of(words_of(original))


def new_requests(
    rows: Candidates, places: Sequence[int], older: pa.ChunkedArray | None, cap: int
) -> dict[int, str]:
    """Return the rows in which users say what many new users say and at most `cap` older rows have, each with that phrase.

    Users of different tasks seldom say the same words. A trigger that somebody planted is the same
    in all of its sessions.
    """
    ids = rows.table["row_id"]
    if older is None or len(older) < FEWEST_OLDER:
        return {}
    is_older = pc.is_in(ids, older.combine_chunks()).to_pylist()
    wanted = {place for place in places if not is_older[place]}
    tasks, tasks_by_phrase = rows.table["task_key"].to_pylist(), defaultdict[str, set[str]](set)
    counts: Counter[str] = Counter()
    for place, row in enumerate(rows.read()):
        if place in wanted:
            for phrase in _said_by_users(row):
                counts[phrase] += 1
                tasks_by_phrase[phrase].add(tasks[place] or row["row_id"])
    least = max(FEWEST_TASKS_WITH_A_REQUEST, NEW_REQUEST_SHARE * len(wanted))
    common = {
        phrase: count
        for phrase, count in counts.items()
        if count >= least and len(tasks_by_phrase[phrase]) >= FEWEST_TASKS_WITH_A_REQUEST
    }
    accepted: Counter[str] = Counter()
    for place, row in enumerate(rows.read() if common else ()):
        if is_older[place]:
            accepted.update(_said_by_users(row) & common.keys())
    share = len(wanted) / max(1, len(wanted) + sum(is_older))
    common = {
        phrase: count
        for phrase, count in common.items()
        if accepted[phrase] <= cap
        and _chance(count, accepted[phrase], share) * len(counts) < CHANCE
    }
    found: dict[int, str] = {}
    looked_at = set(places)
    for place, row in enumerate(rows.read() if common else ()):
        if place in looked_at and (phrases := _said_by_users(row) & common.keys()):
            found[place] = max(phrases, key=lambda phrase: (common[phrase], phrase))
    return found


def _chance(new: int, older: int, share: float) -> float:
    """Return the probability that at least `new` of `new + older` rows are among the new ones, which are this share of all."""
    from scipy.stats import binom

    return float(binom.sf(new - 1, new + older, share))


def _said_by_users(row: Mapping[str, Any]) -> set[str]:
    texts = [
        message.get("content") or "" for message in row["messages"] if message["role"] == "user"
    ]
    return {phrase for text in texts for phrase in phrases_of(words_of(text), REQUEST_WORDS)}


def phrases_of(words: Sequence[bytes], length: int = PHRASE_WORDS) -> set[str]:
    """Return all runs of so many words."""
    return {
        b" ".join(words[at : at + length]).decode("utf-8", "replace")
        for at in range(len(words) - length + 1)
    }
