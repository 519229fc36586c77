"""Sketches of texts (MinHash), and an index of sketches (LSH) that finds nearly equal texts.

The sketches of two sets agree in a hash with a probability equal to their Jaccard similarity
(Broder 1997). An index with bands finds the sketches that agree in all hashes of a band (Indyk and
Motwani 1998). The use of nearly equal texts does not belong here.
"""

import math
from collections.abc import Iterable, Sequence

from rensa import RMinHash, RMinHashLSH

WORDS_PER_SHINGLE = 5
"""Number of consecutive words in a shingle. Texts from the same template with different words share
few shingles.
"""

MAX_HASHES = 256
"""Maximum number of hashes in the sketch of a text."""

MIN_RECALL = 0.995
"""Minimum share of the pairs with exactly the threshold similarity that the bands must find."""


class Sketches:
    """A factory of text sketches, with an index in which each sketch has a number.

    In the index, sets that are at least as similar as the threshold share a band with high
    probability.
    """

    def __init__(self, threshold: float, seed: int = 0) -> None:
        band_count, band_width = choose_bands(threshold)
        self._hash_count = band_count * band_width
        self._seed = seed
        self.index = RMinHashLSH(threshold, self._hash_count, band_count)

    def sketch(self, words: Sequence[bytes] | Sequence[str]) -> RMinHash:
        """Return the sketch of a set of words.

        Repeated words count once. The sketch's `jaccard` estimates the similarity to another
        sketch.
        """
        sketch = RMinHash(self._hash_count, self._seed)
        sketch.update(words)
        return sketch

    def add_sets(self, sets: Sequence[Sequence[bytes]], start: int) -> list[bool]:
        """Add sets of words to the index, numbered from `start`.

        Returns:
            For each set, whether it shares a band with another set in the index.
        """
        matrix = RMinHash.digest_matrix_from_token_byte_sets(sets, self._hash_count, self._seed)
        shares_a_band: list[bool] = self.index.insert_matrix_and_query_duplicate_flags(
            matrix, start
        )
        return shares_a_band


def choose_bands(threshold: float, max_hashes: int = MAX_HASHES) -> tuple[int, int]:
    """Return the number of bands and the hashes per band for a similarity threshold.

    Wide bands cause few false candidates. The function chooses the widest bands that still find
    99.5 % of the pairs at the threshold with at most `max_hashes` hashes.
    """
    for width in range(max_hashes, 1, -1):
        # the probability that a pair at the threshold shares a band
        band_probability = threshold**width
        if band_probability == 1:
            count = 1
        elif band_probability > 1e-9:
            count = math.ceil(math.log(1 - MIN_RECALL) / math.log1p(-band_probability))
        else:
            count = max_hashes
        if count * width <= max_hashes:
            return count, width
    return max_hashes, 1


def split_into_shingles(text: str) -> list[str]:
    """Return every distinct sequence of five words in a text, in lower case.

    A shorter text is one shingle.
    """
    words = text.lower().split()
    starts = range(max(1, len(words) - WORDS_PER_SHINGLE + 1))
    return sorted({" ".join(words[start : start + WORDS_PER_SHINGLE]) for start in starts})


class _Groups:
    """Groups of names that grow by joining two names at a time (a union-find forest).

    The representative of a group is its first name in sort order.
    """

    def __init__(self) -> None:
        self._parents: dict[str, str] = {}

    def find_representative(self, name: str) -> str:
        """Return the name that represents a name's group.

        A new name forms its own group.
        """
        parent = self._parents.setdefault(name, name)
        while parent != name:
            grandparent = self._parents[parent]
            self._parents[name] = grandparent  # shortens the path for the next search
            name = grandparent
            parent = self._parents[name]
        return name

    def join(self, one: str, other: str) -> None:
        """Merge the groups of two names."""
        first, second = sorted((self.find_representative(one), self.find_representative(other)))
        self._parents[second] = first

    def list_shared(self) -> dict[str, str]:
        """Return the representative of each name whose group also contains other names."""
        representatives = {name: self.find_representative(name) for name in list(self._parents)}
        shared = {
            representative
            for name, representative in representatives.items()
            if name != representative
        }
        return {
            name: representative
            for name, representative in representatives.items()
            if representative in shared
        }


def group_similar_texts(texts: Iterable[tuple[str, str]], threshold: float) -> dict[str, str]:
    """Group the owners of texts that are nearly equal.

    Args:
        texts: Pairs of an owner and a text. An owner may have several texts.
        threshold: Minimum estimated Jaccard similarity of the shingles of two texts that count as
            nearly the same.

    Returns:
        For each owner in a group with other owners, the first owner (by name) of the group. The
        order of the texts does not matter.
    """
    sketches = Sketches(threshold)
    groups = _Groups()
    owners_by_text: dict[str, list[str]] = {}
    for owner, text in texts:
        owners = owners_by_text.setdefault(" ".join(text.lower().split()), [])
        owners.append(owner)
        groups.join(owners[0], owner)
    indexed: list[tuple[str, RMinHash]] = []
    for text, owners in sorted(owners_by_text.items()):
        sketch = sketches.sketch(split_into_shingles(text))
        for text_index in sketches.index.query(sketch):
            other_owner, other_sketch = indexed[text_index]
            if sketch.jaccard(other_sketch) >= threshold:
                groups.join(owners[0], other_owner)
        sketches.index.insert(len(indexed), sketch)
        indexed.append((owners[0], sketch))
    return groups.list_shared()
