"""Sets of words that are nearly the same, without comparing each with each: MinHash sketches in an index by bands, by rensa.

Two sets' sketches agree in a hash with the chance that is their Jaccard similarity (Broder 1997); the index finds those that agree in all
hashes of a band (Indyk and Motwani 1998, locality-sensitive hashing).
"""

import math
from collections.abc import Sequence
from typing import Any

HASHES = 256
RECALL = 0.995
"""Of pairs exactly at the threshold, the share that the bands must find."""


def bands(threshold: float, hashes: int = HASHES) -> tuple[int, int]:
    """(bands, hashes a band): the widest bands, which raise the fewest false candidates, and the fewest of them that find 99.5 % of
    pairs at the threshold."""
    for width in range(hashes, 1, -1):
        agree = threshold**width  # the chance that a pair at the threshold shares a band
        count = 1 if agree == 1 else math.ceil(math.log(1 - RECALL) / math.log1p(-agree)) if agree > 1e-9 else hashes
        if count * width <= hashes:
            return count, width
    return hashes, 1


class Sketches:
    """An index of sketches by number, in which sets at least so alike as the threshold find one another."""

    def __init__(self, threshold: float, seed: int = 0) -> None:
        from rensa import RMinHash, RMinHashLSH

        count, width = bands(threshold)
        self._rensa, self._hashes, self._seed = RMinHash, count * width, seed
        self._index = RMinHashLSH(threshold, self._hashes, count)

    def of(self, words: Sequence[bytes] | Sequence[str]) -> Any:
        """The sketch of a set (what stands in it twice counts once); `jaccard` estimates its similarity to another's."""
        sketch = self._rensa(self._hashes, self._seed)
        sketch.update(words)
        return sketch

    def add(self, number: int, sketch: Any) -> None:
        """Put a sketch into the index."""
        self._index.insert(number, sketch)

    def add_sets(self, sets: Sequence[Sequence[bytes]], start: int) -> list[bool]:
        """Put sets into the index, numbered from `start` on; of each whether it shares a band with one that is there, or with another one
        of these."""
        sketches = self._rensa.digest_matrix_from_token_byte_sets(sets, self._hashes, self._seed)
        flags: list[bool] = self._index.insert_matrix_and_query_duplicate_flags(sketches, start)
        return flags

    def like(self, sketch: Any) -> list[int]:
        """The numbers of those that share a band with it, sorted."""
        return sorted(self._index.query(sketch))

    def remove(self, number: int) -> None:
        """Take a sketch out of the index."""
        self._index.remove(number)
