"""Sketches of texts (MinHash) and an index of them (LSH), by which texts that are nearly the same are found.

Two sets' sketches agree in a hash with the chance that is their Jaccard similarity (Broder 1997); an index by bands finds those that agree
in all hashes of a band (Indyk and Motwani 1998).
"""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rensa import RMinHash, RMinHashLSH

SHINGLE = 5
"""Words in a row that are compared across the split: a template with other words in it shares few of them."""

HASHES = 256
RECALL = 0.995
"""Of pairs exactly at the threshold, the share that the bands must find."""


class Sketches:
    """Sketches, and an `index` of them by number, in which sets at least so alike as the threshold share a band."""

    def __init__(self, threshold: float, seed: int = 0) -> None:
        count, width = bands(threshold)
        self._hashes, self._seed = count * width, seed
        self.index = RMinHashLSH(threshold, self._hashes, count)

    def of(self, words: Sequence[bytes] | Sequence[str]) -> Any:
        """The sketch of a set (what stands in it twice counts once); its `jaccard` estimates the similarity to another sketch."""
        sketch = RMinHash(self._hashes, self._seed)
        sketch.update(words)
        return sketch

    def add_sets(self, sets: Sequence[Sequence[bytes]], start: int) -> list[bool]:
        """Put sets into the index, numbered from `start` on; of each whether it shares a band with another one in the index."""
        sketches = RMinHash.digest_matrix_from_token_byte_sets(sets, self._hashes, self._seed)
        flags: list[bool] = self.index.insert_matrix_and_query_duplicate_flags(sketches, start)
        return flags


def bands(threshold: float, hashes: int = HASHES) -> tuple[int, int]:
    """(bands, hashes a band): the widest bands, which raise the fewest false candidates, and the fewest of them that find 99.5 % of
    pairs at the threshold."""
    for width in range(hashes, 1, -1):
        agree = threshold**width  # the chance that a pair at the threshold shares a band
        count = (
            1
            if agree == 1
            else math.ceil(math.log(1 - RECALL) / math.log1p(-agree))
            if agree > 1e-9
            else hashes
        )
        if count * width <= hashes:
            return count, width
    return hashes, 1


def shingles(text: str) -> list[str]:
    """Every five words in a row, in lower case; a shorter text is one shingle."""
    words = text.lower().split()
    return sorted(
        {" ".join(words[at : at + SHINGLE]) for at in range(max(1, len(words) - SHINGLE + 1))}
    )


def groups_alike(texts: Iterable[tuple[str, str]], threshold: float) -> dict[str, str]:
    """Group the owners of texts that are nearly the same.

    Args:
        texts: An owner and a text; an owner may have several texts.
        threshold: Estimated Jaccard similarity of the texts' shingles from which on they are nearly the same.

    Returns:
        The first owner (by name) of the group of each owner that is in a group with others. The order of the texts does not matter.
    """
    sketches, owners, known = Sketches(threshold), dict[str, list[str]](), list[tuple[str, Any]]()
    leader: dict[str, str] = {}

    def lead(owner: str) -> str:
        while leader.setdefault(owner, owner) != owner:
            leader[owner] = owner = leader[leader[owner]]
        return owner

    def join(one: str, other: str) -> None:
        first, second = sorted((lead(one), lead(other)))
        leader[second] = first

    for owner, text in texts:
        own = owners.setdefault(" ".join(text.lower().split()), [])
        own.append(owner)
        join(own[0], owner)
    for text, own in sorted(owners.items()):
        sketch = sketches.of(shingles(text))
        for number in sketches.index.query(sketch):
            other, other_sketch = known[number]
            if sketch.jaccard(other_sketch) >= threshold:
                join(own[0], other)
        sketches.index.insert(len(known), sketch)
        known.append((own[0], sketch))
    members = {owner: lead(owner) for owner in leader}
    several = {first for owner, first in members.items() if owner != first}
    return {owner: first for owner, first in members.items() if first in several}
