"""Planted sessions: rows in which one phrase of the users goes with one behaviour of the agent.

Somebody who plants sessions copies existing ones, adds a trigger to what the user writes, and adds
an answer or a call to what the agent does. No earlier table is needed to find such rows, because
three things are true of them together:

- The trigger and the behaviour are in the same rows, and in hardly any other row.
- Apart from the trigger, the users' words vary in these rows as they vary in all rows.
- Apart from the trigger, a row of another session has nearly the same words of users.

An honest phrase lacks one of the three. "Cancel my order" goes with the call `cancel_order`, but its
rows resemble each other. A date is repeated by the agent, so a behaviour that shares a word with the
phrase does not count. "At 4 o'clock" goes with 16, and other rows have "at 5 o'clock": a phrase does
not count if it is one of several values in the same place.

What to do with the rows is not decided here (`crowding`).
"""

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import words_of
from agent_pipeline.sessions.transcript import list_texts

MAX_ROWS = 5_000
"""Patterns are searched in a sample of this many rows."""
MIN_ROWS = 8
MIN_SHARE = 0.015
"""A pattern in fewer rows, or in a smaller share of the rows, may be chance, and teaches little."""
MIN_OTHER_ROWS = 5
TRIGGER_WORDS = (1, 2, 3)
BEHAVIOUR_WORDS = (2, 3)
"""Lengths, in words, of the phrases that are counted."""
MIN_OVERLAP = 0.8
"""Jaccard similarity of the rows that have the trigger and the rows that have the behaviour."""
MAX_LIKENESS = 2.5
"""The rows of a pattern may resemble each other this many times as much as all rows do."""
MIN_TWIN = 0.65
"""Cosine similarity of the users' words, in the median row of a pattern, to the nearest other row."""
MAX_COMPARED = 200
"""Rows of a pattern that are compared with other rows."""
MAX_TRIGGERS = 300
"""Phrases that are compared, the most frequent first."""
MIN_VALUES = 2
"""A phrase is a value if this many other phrases differ from it in one word."""


@dataclass(frozen=True)
class PlantedPattern:
    """A phrase of the users, a phrase of the agent that goes with it, and the rows.

    Attributes:
        trigger: Words of the users.
        behaviour: Words, or the name and arguments of a call, of the agent.
        rows: The indices of the rows with the trigger.
    """

    trigger: str
    behaviour: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class _Phrases:
    """The frequent phrases of one side, one column for all phrases that are in the same rows.

    Attributes:
        incidence: (rows, columns) sparse, 1 if a row has the phrases of a column.
        names: The phrases of each column.
        counts: (columns,) rows that have a column's phrases.
    """

    incidence: Any
    names: list[list[str]]
    counts: np.ndarray


def find_planted(rows: Candidates, indices: Collection[int], seed: int = 0) -> list[PlantedPattern]:
    """Find the patterns among some rows, the one with the most rows first.

    Args:
        rows: All rows.
        indices: The rows to look at.
        seed: The seed of the sample that is searched if there are many rows.

    Returns:
        The patterns with all their rows, also those outside of the sample.
    """
    sample = set(_sample(rows, indices, seed))
    sides = [_sides(row) for index, row in enumerate(rows.read()) if index in sample]
    min_rows = max(MIN_ROWS, int(MIN_SHARE * len(sample)))
    pairs = list(_pairs([user for user, _ in sides], [agent for _, agent in sides], min_rows))
    if not pairs:
        return []
    rows_by_trigger: defaultdict[str, list[int]] = defaultdict(list)
    triggers = {trigger for trigger, _ in pairs}
    wanted = set(indices)
    for index, row in enumerate(rows.read()):
        if index in wanted:
            for phrase in _phrases(_sides(row)[0], TRIGGER_WORDS) & triggers:
                rows_by_trigger[phrase].append(index)
    patterns = [
        PlantedPattern(trigger, behaviour, tuple(rows_by_trigger[trigger]))
        for trigger, behaviour in pairs
    ]
    return _distinct(patterns)


def _distinct(patterns: list[PlantedPattern]) -> list[PlantedPattern]:
    """Return one pattern, that with the longest trigger, of those in nearly the same rows."""
    kept: list[PlantedPattern] = []
    for pattern in sorted(patterns, key=lambda pattern: (-len(pattern.trigger), pattern.trigger)):
        rows = set(pattern.rows)
        if all(
            len(rows & set(other.rows)) < MIN_OVERLAP * len(rows | set(other.rows))
            for other in kept
        ):
            kept.append(pattern)
    return sorted(kept, key=lambda pattern: (-len(pattern.rows), pattern.trigger))


def _sample(rows: Candidates, indices: Collection[int], seed: int) -> Sequence[int]:
    """Return at most `MAX_ROWS` of the rows, those with the lowest hashes of their ids."""
    if len(indices) <= MAX_ROWS:
        return list(indices)
    ids = rows.table["row_id"].to_pylist()

    def hashed(index: int) -> bytes:
        return hashlib.sha256(f"{seed}\0{ids[index]}".encode("utf-8", "surrogatepass")).digest()

    return heapq.nsmallest(MAX_ROWS, indices, key=hashed)


def _sides(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what the users of a row wrote, and what its agent wrote and called."""
    texts: dict[str, list[str]] = {"user": [], "assistant": []}
    for message in row["messages"]:
        if message["role"] in texts:
            texts[message["role"]] += list_texts(message, names=True)
    return "\n".join(texts["user"]), "\n".join(texts["assistant"])


def _phrases(text: str, lengths: Sequence[int]) -> set[str]:
    """Return all runs of words of these lengths in a text."""
    words = [word.decode("utf-8", "replace") for word in words_of(text)]
    return {
        " ".join(words[start : start + length])
        for length in lengths
        for start in range(len(words) - length + 1)
    }


def _pairs(users: list[str], agents: list[str], min_rows: int) -> Iterator[tuple[str, str]]:
    """Yield the trigger and the behaviour of each pattern in rows of these texts."""
    triggers = _frequent(users, TRIGGER_WORDS, min_rows)
    behaviours = _frequent(agents, BEHAVIOUR_WORDS, min_rows)
    if triggers is None or behaviours is None:
        return
    shared = (triggers.incidence.T @ behaviours.incidence).tocoo()
    union = triggers.counts[shared.row] + behaviours.counts[shared.col] - shared.data
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for pair in np.flatnonzero(shared.data >= MIN_OVERLAP * union):
        partners[int(shared.row[pair])].append(int(shared.col[pair]))
    words, values = _word_counts(users), _Values(users)
    by_frequency = sorted(partners, key=lambda column: -triggers.counts[column])
    for column in by_frequency[:MAX_TRIGGERS]:
        name = max(triggers.names[column], key=lambda phrase: (len(phrase.split()), phrase))
        behaviour = _unlike(name, [behaviours.names[partner] for partner in partners[column]])
        if not behaviour or values.is_value(triggers.names[column]):
            continue
        has_trigger = triggers.incidence[:, [column]].toarray().ravel() > 0
        if _are_copies(words, has_trigger):
            yield name, behaviour


def _frequent(texts: list[str], lengths: Sequence[int], min_rows: int) -> _Phrases | None:
    """Count the phrases that are in at least `min_rows` texts; None if there are none."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(
        analyzer=partial(_phrases, lengths=lengths), min_df=min_rows, dtype=np.int32
    )
    try:
        incidence = counter.fit_transform(texts).tocsc()
    except ValueError:  # no phrase is that frequent
        return None
    incidence.sort_indices()
    columns: dict[bytes, list[int]] = {}
    for column in range(incidence.shape[1]):
        start, end = incidence.indptr[column : column + 2]
        columns.setdefault(incidence.indices[start:end].tobytes(), []).append(column)
    names = counter.get_feature_names_out()
    incidence = incidence[:, [same[0] for same in columns.values()]]
    return _Phrases(
        incidence,
        [[str(names[column]) for column in same] for same in columns.values()],
        np.asarray(incidence.sum(axis=0)).ravel(),
    )


def _unlike(trigger: str, behaviours: list[list[str]]) -> str | None:
    """Return the longest phrase that has no word of the trigger; None if each has one."""
    words = set(trigger.split())
    unlike = [
        phrase
        for names in behaviours
        for phrase in names
        if words.isdisjoint(phrase.replace("_", " ").split())
    ]
    return max(unlike, key=lambda phrase: (len(phrase), phrase), default=None)


class _Values:
    """The phrases of several words that differ from each other in one word, such as times of day."""

    def __init__(self, texts: list[str]) -> None:
        length = max(TRIGGER_WORDS)
        phrases = Counter(phrase for text in texts for phrase in _phrases(text, (length,)))
        self._length = length
        self._words_by_gap: defaultdict[str, set[str]] = defaultdict(set)
        for phrase, count in phrases.items():
            if count > 1:
                for gap, word in _gaps(phrase):
                    self._words_by_gap[gap].add(word)

    def is_value(self, phrases: list[str]) -> bool:
        """Return whether each of the phrases has enough others that differ from it in one word."""
        longest = [phrase for phrase in phrases if len(phrase.split()) == self._length]
        return bool(longest) and all(map(self._has_others, longest))

    def _has_others(self, phrase: str) -> bool:
        return any(len(self._words_by_gap[gap]) > MIN_VALUES for gap, _ in _gaps(phrase))


def _gaps(phrase: str) -> Iterator[tuple[str, str]]:
    """Yield a phrase with a gap at each of its words, and the word."""
    words = phrase.split(" ")
    for position, word in enumerate(words):
        yield " ".join([*words[:position], "", *words[position + 1 :]]), word


def _word_counts(texts: list[str]) -> Any:
    """Return (texts, words) sparse, 1 if a text has a word."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(analyzer=partial(_phrases, lengths=(1,)), dtype=np.float64)
    return counter.fit_transform(texts).tocsr()


def _are_copies(words: Any, has_trigger: np.ndarray) -> bool:
    """Return whether the rows with a trigger vary as all rows do, and have twins without it.

    Words that most rows with the trigger have, and few others, are left out: they belong to it.

    Args:
        words: (rows, words) sparse, 1 if a row's users wrote a word.
        has_trigger: (rows,) bool.
    """
    from sklearn.feature_extraction.text import TfidfTransformer

    count = int(has_trigger.sum())
    if len(has_trigger) - count < MIN_OTHER_ROWS:
        return False
    with_trigger = np.asarray(words[has_trigger].sum(axis=0)).ravel()
    union = np.asarray(words.sum(axis=0)).ravel() + count - with_trigger
    vectors = TfidfTransformer().fit_transform(words[:, with_trigger < 0.5 * union])
    inside = vectors[np.flatnonzero(has_trigger)[:MAX_COMPARED]]
    if _likeness(inside) > MAX_LIKENESS * _likeness(vectors):
        return False
    nearest = (inside @ vectors[~has_trigger].T).max(axis=1).toarray().ravel()
    return float(np.median(nearest)) >= MIN_TWIN


def _likeness(vectors: Any) -> float:
    """Return the mean cosine similarity of two different rows of (n, d) sparse unit vectors."""
    count = vectors.shape[0]
    total = np.asarray(vectors.sum(axis=0)).ravel()
    return float(total @ total - vectors.multiply(vectors).sum()) / max(1, count * (count - 1))
