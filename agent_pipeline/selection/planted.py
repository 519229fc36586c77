"""Planted sessions: rows in which a phrase of the user always goes with a behavior of the agent.

An attacker who plants sessions copies existing sessions, adds a trigger to the user's text, and
adds an answer or a call to the agent's messages. Such rows can be found without an earlier table,
because three facts hold for them together:

- The trigger and the behavior occur in the same rows, and in hardly any other row.
- Apart from the trigger, the users' words vary in these rows as much as in all rows.
- Apart from the trigger, a row of another session has nearly the same words of users.

For an honest phrase, at least one of these facts is false. "Cancel my order" goes with the call
`cancel_order`, but its rows resemble each other. The agent repeats a date, so a behavior that
shares a word with the phrase does not count. "At 4 o'clock" goes with 16, but other rows have "at 5
o'clock", so a phrase does not count if it is one of several values in the same place.

`crowding` decides what happens with the rows.
"""

import hashlib
import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import split_words
from agent_pipeline.sessions.transcript import list_texts

MAX_ROWS = 2_000
"""Maximum number of rows in the sample that is searched for patterns."""
MAX_WORDS = 5_000
"""Maximum number of user words, and of agent words, that are read per row."""
MIN_ROWS = 8
MIN_SHARE = 0.015
"""Minimum share of the rows that contain a pattern. A pattern in fewer rows may be chance, and has
little effect.
"""
MIN_OTHER_ROWS = 5
TRIGGER_WORDS = (1, 2, 3)
BEHAVIOUR_WORDS = (2, 3)
"""Lengths, in words, of the phrases that are counted as possible triggers (user phrases) and
behaviors (agent phrases).
"""
MIN_OVERLAP = 0.8
"""Minimum Jaccard similarity between the rows that contain the trigger and the rows that contain
the behavior.
"""
MAX_LIKENESS = 2.5
"""Maximum mean similarity among the rows of a pattern, as a multiple of the mean similarity among
all rows.
"""
MIN_TWIN = 0.65
"""Minimum cosine similarity between the user words of a pattern's median row and the user words of
the row nearest to it.
"""
MAX_SPECIAL = 0.7
"""Maximum share of special words among the user words of a pattern's rows. A special word is rare
in all other rows.
"""
MAX_COMPARED = 200
"""Maximum number of a pattern's rows that are compared with other rows."""
MAX_TRIGGERS = 300
"""Maximum number of user phrases that are compared with agent phrases, most frequent first."""
HASHES = 1 << 20
USER, AGENT = "user", "assistant"
MIN_VALUES = 2
"""Number of other phrases that differ from a phrase in only one word. Above this number, the word
counts as a changing value, such as a time of day.
"""


@dataclass(frozen=True)
class PlantedPattern:
    """A user phrase, the agent phrase that goes with it, and the rows that contain both.

    Attributes:
        trigger: Words of the users.
        behaviour: Words of the agent, or the name and arguments of a call.
        rows: The indices of the rows with the trigger.
    """

    trigger: str
    behaviour: str
    rows: tuple[int, ...]


@dataclass(frozen=True)
class _Phrases:
    """The frequent phrases of the users or of the agent.

    Phrases that occur in exactly the same rows share one column.

    Attributes:
        incidence: (rows, columns) sparse, 1 if a row has the phrases of a column.
        names: The phrases of each column.
        counts: (columns,) the number of rows with the phrases of each column.
    """

    incidence: Any
    names: list[list[str]]
    counts: np.ndarray


def find_planted(rows: Candidates, indices: Collection[int], seed: int = 0) -> list[PlantedPattern]:
    """Find planted patterns among some rows, with the most frequent pattern first.

    Memory holds frequent phrases, the users' distinct words, and the text of one row.

    Args:
        rows: All rows.
        indices: The rows to examine.
        seed: The seed of the sample that is searched if there are many rows.

    Returns:
        The patterns with all their rows, including rows outside of the sample.
    """
    sample = _Sample(rows, frozenset(_draw(rows, indices, seed)))
    pairs = list(_find_pairs(sample))
    if not pairs:
        return []
    rows_by_trigger: defaultdict[str, list[int]] = defaultdict(list)
    triggers = {trigger for trigger, _ in pairs}
    wanted = set(indices)
    for index, row in enumerate(rows.read()):
        if index in wanted:
            for phrase in _list_phrases(_join(row, USER), TRIGGER_WORDS) & triggers:
                rows_by_trigger[phrase].append(index)
    patterns = [
        PlantedPattern(trigger, behaviour, tuple(rows_by_trigger[trigger]))
        for trigger, behaviour in pairs
    ]
    return _distinct(patterns)


def _distinct(patterns: list[PlantedPattern]) -> list[PlantedPattern]:
    """Keep only one of the patterns that occur in nearly the same rows.

    The pattern with the longest trigger is kept.
    """
    kept: list[PlantedPattern] = []
    for pattern in sorted(patterns, key=lambda pattern: (-len(pattern.trigger), pattern.trigger)):
        rows = set(pattern.rows)
        if all(
            len(rows & set(other.rows)) < MIN_OVERLAP * len(rows | set(other.rows))
            for other in kept
        ):
            kept.append(pattern)
    return sorted(kept, key=lambda pattern: (-len(pattern.rows), pattern.trigger))


def _draw(rows: Candidates, indices: Collection[int], seed: int) -> Collection[int]:
    """Return a sample of at most `MAX_ROWS` rows: the rows whose ids have the lowest hashes."""
    if len(indices) <= MAX_ROWS:
        return indices
    ids = rows.table["row_id"].to_pylist()

    def hash_id(index: int) -> bytes:
        return hashlib.sha256(f"{seed}\0{ids[index]}".encode("utf-8", "surrogatepass")).digest()

    return heapq.nsmallest(MAX_ROWS, indices, key=hash_id)


@dataclass(frozen=True)
class _Sample:
    """The sample of rows in which planted patterns are searched.

    Their texts are read again each time.

    Attributes:
        rows: All rows.
        indices: The rows of the sample.
    """

    rows: Candidates
    indices: frozenset[int]

    @property
    def min_rows(self) -> int:
        """Return the minimum number of rows that a pattern must have."""
        return max(MIN_ROWS, int(MIN_SHARE * len(self.indices)))

    def read(self, role: str) -> Iterator[list[str]]:
        """Yield the words that the users, or the agent, wrote in each row."""
        for index, row in enumerate(self.rows.read()):
            if index in self.indices:
                yield _join(row, role)


def _join(row: Mapping[str, Any], role: str) -> list[str]:
    """Return the words of all messages that have a given role.

    The names and arguments of calls are included.
    """
    texts = [
        text
        for message in row["messages"]
        if message["role"] == role
        for text in list_texts(message, names=True)
    ]
    words = split_words("\n".join(texts))[:MAX_WORDS]
    return [word.decode("utf-8", "replace") for word in words]


def _list_phrases(words: Sequence[str], lengths: Sequence[int]) -> set[str]:
    """Return all word sequences of the given lengths."""
    return {
        " ".join(words[start : start + length])
        for length in lengths
        for start in range(len(words) - length + 1)
    }


def _find_pairs(sample: _Sample) -> Iterator[tuple[str, str]]:
    """Yield the trigger (user phrase) and the behavior (agent phrase) of each pattern."""
    triggers = _count_frequent(sample, USER, TRIGGER_WORDS)
    behaviours = _count_frequent(sample, AGENT, BEHAVIOUR_WORDS)
    if triggers is None or behaviours is None:
        return
    shared = (triggers.incidence.T @ behaviours.incidence).tocoo()
    union = triggers.counts[shared.row] + behaviours.counts[shared.col] - shared.data
    partners: defaultdict[int, list[int]] = defaultdict(list)
    for position in np.flatnonzero(shared.data >= MIN_OVERLAP * union):
        partners[int(shared.row[position])].append(int(shared.col[position]))
    by_frequency = sorted(partners, key=lambda column: -triggers.counts[column])
    pairs: dict[int, tuple[str, str]] = {}
    for column in by_frequency[:MAX_TRIGGERS]:
        name = max(triggers.names[column], key=lambda phrase: (len(phrase.split()), phrase))
        behaviour = _unlike(name, [behaviours.names[partner] for partner in partners[column]])
        if behaviour:
            pairs[column] = (name, behaviour)
    if not pairs:
        return
    values = _Values(sample, [triggers.names[column] for column in pairs])
    words = _count_words(sample)
    for column, pair in pairs.items():
        has_trigger = triggers.incidence[:, [column]].toarray().ravel() > 0
        if not values.is_value(triggers.names[column]) and _are_copies(words, has_trigger):
            yield pair


def _count_frequent(sample: _Sample, role: str, lengths: Sequence[int]) -> _Phrases | None:
    """Count the phrases that occur in many rows in messages of one role.

    The result is None if there are no such phrases. Hashes are counted first, so that rare phrases
    are not held in memory.
    """
    from scipy.sparse import csc_matrix

    counts = np.zeros(HASHES, np.uint8)
    for words in sample.read(role):
        hashes = np.unique([hash(phrase) % HASHES for phrase in _list_phrases(words, lengths)])
        hashes = hashes.astype(int)
        counts[hashes[counts[hashes] < np.iinfo(np.uint8).max]] += 1
    rows_by_phrase: defaultdict[str, list[int]] = defaultdict(list)
    row_count = 0
    for row, words in enumerate(sample.read(role)):
        row_count = row + 1
        for phrase in _list_phrases(words, lengths):
            if counts[hash(phrase) % HASHES] >= sample.min_rows:
                rows_by_phrase[phrase].append(row)
    names_by_rows: defaultdict[tuple[int, ...], list[str]] = defaultdict(list)
    for phrase in sorted(rows_by_phrase):
        if len(rows_by_phrase[phrase]) >= sample.min_rows:
            names_by_rows[tuple(rows_by_phrase[phrase])].append(phrase)
    if not names_by_rows:
        return None
    columns = list(names_by_rows)
    starts = np.cumsum([0, *map(len, columns)])
    row_indices = np.concatenate(columns)
    ones = np.ones(len(row_indices), np.int32)
    incidence = csc_matrix((ones, row_indices, starts), shape=(row_count, len(columns)))
    return _Phrases(incidence, list(names_by_rows.values()), np.diff(starts))


def _unlike(trigger: str, behaviours: list[list[str]]) -> str | None:
    """Return the longest phrase that does not share a word with the trigger phrase.

    The result is None if every phrase shares a word with it.
    """
    words = set(trigger.split())
    unlike = [
        phrase
        for names in behaviours
        for phrase in names
        if words.isdisjoint(phrase.replace("_", " ").split())
    ]
    return max(unlike, key=lambda phrase: (len(phrase), phrase), default=None)


class _Values:
    """Phrases that differ from a user phrase in only one word, such as another time of day."""

    def __init__(self, sample: _Sample, triggers: Iterable[list[str]]) -> None:
        gaps = {
            gap
            for phrases in triggers
            for phrase in _keep_longest(phrases)
            for gap, _ in _split_at_gaps(phrase)
        }
        counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words in sample.read(USER):
            for phrase in _list_phrases(words, (max(TRIGGER_WORDS),)):
                for gap, word in _split_at_gaps(phrase):
                    if gap in gaps:
                        counts[gap][word] += 1
        self._values_by_gap = {
            gap: sum(count > 1 for count in words.values()) for gap, words in counts.items()
        }

    def is_value(self, phrases: list[str]) -> bool:
        """Return whether each given phrase has enough variants that differ in only one word."""
        longest = _keep_longest(phrases)
        return bool(longest) and all(map(self._has_others, longest))

    def _has_others(self, phrase: str) -> bool:
        return any(
            self._values_by_gap.get(gap, 0) > MIN_VALUES for gap, _ in _split_at_gaps(phrase)
        )


def _keep_longest(phrases: Iterable[str]) -> list[str]:
    """Return the phrases with the largest number of words that was counted."""
    return [phrase for phrase in phrases if len(phrase.split(" ")) == max(TRIGGER_WORDS)]


def _split_at_gaps(phrase: str) -> Iterator[tuple[str, str]]:
    """Yield the phrase once per word, with this word replaced by a gap, together with the word."""
    words = phrase.split(" ")
    for position, word in enumerate(words):
        yield " ".join([*words[:position], "", *words[position + 1 :]]), word


def _count_words(sample: _Sample) -> Any:
    """Return a (rows, words) sparse matrix with 1 if the user messages of a row contain a word."""
    from sklearn.feature_extraction.text import CountVectorizer

    counter = CountVectorizer(analyzer=set, dtype=np.float64)
    return counter.fit_transform(sample.read(USER)).tocsr()


def _are_copies(words: Any, has_trigger: np.ndarray) -> bool:
    """Return whether the rows that contain a trigger phrase look like copies of other rows.

    They do if they vary as much as all rows do, and if they have near twins without the trigger.
    Special words, which most rows with the trigger have and few other rows have, belong to the
    trigger and are ignored. If most words are special, the rows are a separate kind of
    conversation.

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
    is_special = with_trigger >= 0.5 * union
    if with_trigger[is_special].sum() > MAX_SPECIAL * with_trigger.sum():
        return False
    vectors = TfidfTransformer().fit_transform(words[:, ~is_special])
    inside = vectors[np.flatnonzero(has_trigger)[:MAX_COMPARED]]
    if _likeness(inside) > MAX_LIKENESS * _likeness(vectors):
        return False
    nearest = (inside @ vectors[~has_trigger].T).max(axis=1).toarray().ravel()
    return float(np.median(nearest)) >= MIN_TWIN


def _likeness(vectors: Any) -> float:
    """Return the mean cosine similarity between different rows of (n, d) sparse unit vectors."""
    count = vectors.shape[0]
    total = np.asarray(vectors.sum(axis=0)).ravel()
    pairs = max(1, int(count) * (int(count) - 1))
    return float(total @ total - vectors.multiply(vectors).sum()) / pairs
