"""Phrases: sequences of words that many rows share, which is rare in honest data.

Two kinds are found here: phrases that were added to copies of rows, and phrases of users that occur
only in new rows. `crowding` decides what happens with the rows.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.duplicates import split_words

PHRASE_WORDS = 5
"""Number of words in a phrase that is searched among the words added to copies."""
MIN_COPIED_ROWS = 3
"""Minimum number of rows that contain the same added words. Fewer copies may have the same added
words by chance.
"""
CONTAINED = 0.98
"""Minimum share of another row's words that a row must contain to count as a copy of it with added
words.
"""
MAX_ADDED_PER_LOST_WORD = 4
"""Maximum number of words that honest wording adds per word that it replaces. A replaced word is a
word of the original that is missing in many copies: two honest trials of a task answer in different
words. A copy that adds more words than that has an added phrase.
"""
REQUEST_WORDS = 3
"""Number of words in a phrase that is searched in user messages."""
MIN_REQUEST_TASKS = 5
MIN_REQUEST_SHARE = 0.02
"""Minimum share of the new rows that contain a phrase. A phrase in a smaller share of the rows, or
in fewer tasks, is not a pattern.
"""
MAX_CHANCE = 0.001
"""Maximum probability, over all phrases, that a phrase is in so many new rows only by chance. If
the probability is lower, the phrase counts as new.
"""
MIN_OLDER_ROWS = 50
"""Minimum number of older rows. If there are fewer older rows, it is not unusual that none of them
contains a phrase.
"""


def list_phrases(text: str, length: int = PHRASE_WORDS) -> set[str]:
    """Return all sequences of `length` words in a text."""
    words = split_words(text)
    return {
        b" ".join(words[start : start + length]).decode("utf-8", "replace")
        for start in range(len(words) - length + 1)
    }


def find_added_phrases(texts: Sequence[str], pairs: Sequence[tuple[int, int]]) -> dict[int, str]:
    """Find the texts that are copies of other texts with an added phrase.

    A phrase counts only if copies of several texts have it. Two trials of a task differ in some
    words too, but these words differ between tasks.

    Args:
        texts: The texts.
        pairs: The indices of texts that are nearly the same.

    Returns:
        The added phrase by the index of the text.
    """
    both_ways = [*pairs, *((second, first) for first, second in pairs)]
    lost_words = Counter(
        word for copy, original in both_ways for word in _find_lost(texts[copy], texts[original])
    )
    replaced = {word for word, count in lost_words.items() if count >= MIN_COPIED_ROWS}
    originals: defaultdict[str, set[int]] = defaultdict(set)
    for copy, original in both_ways:
        for phrase in _find_added(texts[copy], texts[original], replaced):
            originals[phrase].add(original)
    counts = {
        phrase: len(indices)
        for phrase, indices in originals.items()
        if len(indices) >= MIN_COPIED_ROWS
    }
    if not counts:
        return {}
    phrases_by_index = {}
    for index in {index for pair in pairs for index in pair}:
        most_frequent = _choose_most_frequent(list_phrases(texts[index]), counts)
        if most_frequent:  # a copy of a copy has the phrase too
            phrases_by_index[index] = most_frequent
    return phrases_by_index


def _find_lost(copy: str, original: str) -> Counter[bytes]:
    """Return the words of an original that its copy lacks.

    The result is empty if the text is not a copy.
    """
    words, original_words = Counter(split_words(copy)), Counter(split_words(original))
    shared = original_words.keys() & words.keys()
    if not original_words or len(shared) < CONTAINED * len(original_words):
        return Counter()
    return original_words - words


def _find_added(copy: str, original: str, replaced: Collection[bytes]) -> set[str]:
    """Return the phrases of a copied text that the original text does not contain.

    The result is empty if the text is not a copy, or if the new words only replace words of the
    original.

    Args:
        copy: The text that may be a copy.
        original: The text that may be the original.
        replaced: The words that many copies lack.
    """
    words, original_words = Counter(split_words(copy)), Counter(split_words(original))
    shared = original_words.keys() & words.keys()
    if not original_words or len(shared) < CONTAINED * len(original_words):
        return set()
    lost = sum(count for word, count in (original_words - words).items() if word in replaced)
    if lost and (words - original_words).total() <= MAX_ADDED_PER_LOST_WORD * lost:
        return set()
    return list_phrases(copy) - list_phrases(original)


def _choose_most_frequent(phrases: Iterable[str], counts: Mapping[str, int]) -> str | None:
    """Return the phrase with the highest count, or None if no phrase has a count."""
    counted = [phrase for phrase in phrases if phrase in counts]
    return max(counted, key=lambda phrase: (counts[phrase], phrase), default=None)


def find_new_requests(
    rows: Candidates, indices: Sequence[int], older: pa.ChunkedArray | None, max_older: int
) -> dict[int, str]:
    """Find rows with a phrase that many new users wrote and hardly any earlier user wrote.

    Users of different tasks seldom write the same words. A planted trigger is the same in all of
    its sessions.

    Args:
        rows: All rows.
        indices: The rows to examine.
        older: The ids of the rows that an earlier coreset accepted, or None if there was no earlier
            coreset.
        max_older: Maximum number of older rows that may have the phrase.

    Returns:
        The phrase by the index of the row.
    """
    if older is None or len(older) < MIN_OLDER_ROWS:
        return {}
    is_older = pc.is_in(rows.table["row_id"], older.combine_chunks()).to_pylist()
    is_new = {index for index in indices if not is_older[index]}
    all_counts, frequent = _count_new_requests(rows, is_new)
    if not frequent:
        return {}
    older_counts: Counter[str] = Counter()
    for index, row in enumerate(rows.read()):
        if is_older[index]:
            older_counts.update(_list_requests(row) & frequent.keys())
    share = len(is_new) / max(1, len(is_new) + sum(is_older))
    new_phrases = {
        phrase: count
        for phrase, count in frequent.items()
        if older_counts[phrase] <= max_older
        and _get_chance(count, older_counts[phrase], share) * all_counts < MAX_CHANCE
    }
    if not new_phrases:
        return {}
    wanted = set(indices)
    phrases_by_index = {}
    for index, row in enumerate(rows.read()):
        if index in wanted:
            phrase = _choose_most_frequent(_list_requests(row), new_phrases)
            if phrase:
                phrases_by_index[index] = phrase
    return phrases_by_index


def _count_new_requests(rows: Candidates, is_new: set[int]) -> tuple[int, dict[str, int]]:
    """Count the phrases in user messages of new rows.

    Returns:
        The number of distinct phrases, and the counts of the frequent phrases.
    """
    tasks = rows.table["task_key"].to_pylist()
    tasks_by_phrase: defaultdict[str, set[str]] = defaultdict(set)
    counts: Counter[str] = Counter()
    for index, row in enumerate(rows.read()):
        if index in is_new:
            for phrase in _list_requests(row):
                counts[phrase] += 1
                tasks_by_phrase[phrase].add(tasks[index] or row["row_id"])
    min_rows = max(MIN_REQUEST_TASKS, MIN_REQUEST_SHARE * len(is_new))
    frequent = {
        phrase: count
        for phrase, count in counts.items()
        if count >= min_rows and len(tasks_by_phrase[phrase]) >= MIN_REQUEST_TASKS
    }
    return len(counts), frequent


def _get_chance(new: int, older: int, share: float) -> float:
    """Return the probability that at least `new` of a phrase's `new + older` rows are new rows.

    Args:
        new: New rows with a phrase.
        older: Older rows with the phrase.
        share: The share of new rows among all rows.
    """
    from scipy.stats import binom

    return float(binom.sf(new - 1, new + older, share))


def _list_requests(row: Mapping[str, Any]) -> set[str]:
    """Return the phrases that occur in the user messages of a row."""
    texts = [
        message.get("content") or "" for message in row["messages"] if message["role"] == "user"
    ]
    return {phrase for text in texts for phrase in list_phrases(text, REQUEST_WORDS)}
