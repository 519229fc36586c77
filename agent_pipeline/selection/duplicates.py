"""Duplicates among rows: exact duplicates, and near-duplicates by MinHash LSH (rensa).

The messages and calls are compared, including arguments. The system prompt and the tools are left
out, because all rows of an agent share them. The sketches of two sets agree in a hash with a
probability equal to their Jaccard similarity (Broder 1997). An index with bands finds the sketches
that agree in all hashes of a band (Indyk and Motwani 1998). The sketches are implemented in
`datasets.sketches`.
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import msgspec
import numpy as np

from agent_pipeline.datasets.sketches import Sketches, choose_bands, split_into_shingles
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.candidates import Candidates, sort_by_judgment
from agent_pipeline.selection.embeddings import format_conversation

DuplicateKind = Literal["exact", "near"]

NEAR = 0.8
BATCH = 32
"""Number of rows that are sketched at a time. With more rows, the words would leave the processor's
cache before they are hashed.
"""

BATCH_CHARACTERS = 64 << 10
"""Number of characters after which a batch ends. Split words take eight times the memory of their
text.
"""

DOUBT = 0.12
"""Maximum error of the estimated similarity. About one pair in a million has a larger error."""

_SEPARATED = bytes(
    ord(" ") if chr(byte) in string.punctuation and chr(byte) != "_" else byte
    for byte in range(256)
).lower()


class Duplicate(msgspec.Struct, frozen=True):
    """A row that is left out because another, equal or similar row represents it.

    Attributes:
        row_id: The row.
        duplicate_of: The row that represents it.
        kind: `exact` if both conversations are identical, or `near`.
        similarity: 1 for identical conversations. Otherwise, the Jaccard similarity of their words.
    """

    row_id: str
    duplicate_of: str
    kind: DuplicateKind
    similarity: float


class Duplicates(msgspec.Struct, frozen=True):
    """All duplicates that were found among the rows.

    Attributes:
        rows: The duplicates, ordered by id.
        similarities: For each row that shares a band of hashes with an earlier row, the highest
            similarity to an earlier row.
    """

    rows: list[Duplicate] = []
    similarities: list[float] = []


@dataclass(frozen=True)
class NearPair:
    """A row, and the earlier row that represents it because both are nearly equal.

    Attributes:
        row: The index of the row.
        stands: The index of the row that represents it.
        similarity: Jaccard similarity of their words.
    """

    row: int
    stands: int
    similarity: float


@dataclass(frozen=True)
class NearPairs:
    """The near-duplicates among texts.

    Attributes:
        pairs: The texts that an earlier text represents.
        similarities: For each text with a candidate, the highest similarity to an earlier text.
    """

    pairs: list[NearPair]
    similarities: list[float]


def find_duplicates(rows: Candidates, near: float | None = NEAR, seed: int = 0) -> Duplicates:
    """Find the exact duplicates and the near-duplicates among rows.

    Among equal rows, the row with the best score is kept, then the earliest, then the first by id.
    A search for near-duplicates holds all texts and an index of their words in memory.

    Args:
        rows: The rows.
        near: Minimum similarity of near-duplicates. None finds only exact duplicates.
        seed: The seed of the hashes.

    Raises:
        SettingsError: the threshold is not above 0 and at most 1.
    """
    if near is not None and not 0 < near <= 1:
        raise SettingsError(
            f"The threshold of near duplicates is {near}: set it to a number above 0 and at most 1."
        )
    ids = rows.table["row_id"]
    standing = sort_by_judgment(rows)
    identities = rows.table["identity"].combine_chunks().dictionary_encode()
    contents = identities.indices.to_numpy()[standing]
    _, first, content = np.unique(contents, return_index=True, return_inverse=True)
    originals = standing[first[content]]
    is_copy = originals != standing
    copy_ids = ids.take(standing[is_copy]).to_pylist()
    original_ids = ids.take(originals[is_copy]).to_pylist()
    by_row = {
        row_id: Duplicate(row_id, original_id, "exact", 1.0)
        for row_id, original_id in zip(copy_ids, original_ids, strict=True)
    }
    similarities: list[float] = []
    if near is not None:
        distinct, texts = standing[np.sort(first)].tolist(), list(rows.texts())
        near_pairs = find_near_pairs([texts[index] for index in distinct], near, seed)
        similarities = near_pairs.similarities
        for pair in near_pairs.pairs:
            row_id = ids[distinct[pair.row]].as_py()
            other_id = ids[distinct[pair.stands]].as_py()
            by_row[row_id] = Duplicate(row_id, other_id, "near", round(pair.similarity, 4))
    # The row that represents an identical row may be a near-duplicate itself. The named row must be
    # a row that is kept.
    named = []
    for duplicate in by_row.values():
        standing_row = by_row.get(duplicate.duplicate_of)
        if standing_row:
            duplicate = msgspec.structs.replace(duplicate, duplicate_of=standing_row.duplicate_of)
        named.append(duplicate)
    return Duplicates(sorted(named, key=lambda duplicate: duplicate.row_id), similarities)


def find_near_pairs(texts: Sequence[str], threshold: float = NEAR, seed: int = 0) -> NearPairs:
    """Find each text that has nearly the same words as an earlier text that is kept.

    Most texts share no band of hashes with any earlier text, which is checked for a batch of texts
    at a time. The candidates of the other texts are compared word by word, so that a false
    candidate does not remove a text.

    Args:
        texts: The texts, in the order in which they are preferred.
        threshold: Minimum Jaccard similarity of texts that count as nearly the same.
        seed: The seed of the hashes.
    """
    sketches = Sketches(threshold, seed)

    @lru_cache(maxsize=50_000)
    def sketch_text(row: int) -> object:
        return sketches.sketch(split_words(texts[row]))

    pairs: list[NearPair] = []
    similarities: list[float] = []
    for start in range(0, len(texts), BATCH):
        batch = [list(set(split_words(text))) for text in texts[start : start + BATCH]]
        flags = sketches.add_sets(batch, start)
        for row, (words, has_candidate) in enumerate(zip(batch, flags, strict=True), start):
            if not has_candidate or not words:
                continue
            sketch = sketches.sketch(words)
            others = sorted(other for other in sketches.index.query(sketch) if other < row)
            if not others:
                continue
            highest, stands = 0.0, row
            for other in others:
                similarity = sketch.jaccard(sketch_text(other))
                if similarity > threshold - DOUBT:
                    similarity = _get_jaccard(words, split_words(texts[other]))
                    if similarity >= threshold and similarity > highest:
                        stands = other
                highest = max(highest, similarity)
            similarities.append(highest)
            if stands != row:
                sketches.index.remove(row)
                pairs.append(NearPair(row, stands, highest))
    return NearPairs(pairs, similarities)


def find_rows_with_candidates(
    texts: Iterable[str], threshold: float = NEAR, seed: int = 0
) -> list[int]:
    """Find the texts that share at least one band of hashes with another text.

    Only these texts can be near-duplicates. Memory holds the index and one batch of texts.

    Args:
        texts: The texts.
        threshold: Minimum Jaccard similarity of texts that count as nearly the same.
        seed: The seed of the hashes.

    Returns:
        The sorted indices of the texts.
    """
    sketches = Sketches(threshold, seed)
    candidates: set[int] = set()
    start = 0
    for batch in _split_into_batches(texts):
        for offset, shares_band in enumerate(sketches.add_sets(batch, start)):
            if shares_band and batch[offset]:
                candidates.add(start + offset)
                candidates.update(sketches.index.query(sketches.sketch(batch[offset])))
        start += len(batch)
    return sorted(candidates)


def _split_into_batches(texts: Iterable[str]) -> Iterator[list[list[bytes]]]:
    """Yield the distinct words of texts in batches.

    A batch contains fewer texts if the texts are long.
    """
    batch: list[list[bytes]] = []
    size = 0
    for text in texts:
        batch.append(list(set(split_words(text))))
        size += len(text)
        if len(batch) == BATCH or size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def split_words(text: str) -> list[bytes]:
    """Return the words of a text in lower case, as UTF-8.

    Punctuation separates words, so the keys and values of compact JSON are words too.
    """
    folded = text if text.isascii() else text.casefold()  # the translation table only folds ASCII
    return folded.encode("utf-8", "surrogatepass").translate(_SEPARATED).split()


def _get_jaccard(words: Iterable[bytes], other_words: Iterable[bytes]) -> float:
    """Return the Jaccard similarity of two sets of words."""
    first, second = frozenset(words), frozenset(other_words)
    both = len(first & second)
    return both / (len(first) + len(second) - both)


@dataclass(frozen=True)
class NearAcrossSplit:
    """A held-out session, and the most similar session of an earlier split.

    The splits are ordered train, select, test.

    Attributes:
        session_id: The held-out session.
        split: Its split.
        other_session_id: The nearest session.
        other_split: The split of the nearest session.
        similarity: Estimated Jaccard similarity of their shingles.
    """

    session_id: str
    split: str
    other_session_id: str
    other_split: str
    similarity: float


@dataclass(frozen=True)
class _SketchedRow:
    """A row that shares a band of hashes with a row of another split."""

    split: int
    session_id: str
    sketch: Any


def find_near_across_splits(
    read: Callable[[], Iterable[Mapping[str, Any]]], threshold: float = NEAR
) -> list[NearAcrossSplit]:
    """Find the held-out rows that are nearly equal to a row of an earlier split.

    The first pass keeps four bytes per band and row in memory. The second pass sketches the rows
    that share a band with a row of another split.

    Args:
        read: Returns the same rows (`session_id`, `split`, `messages`) each time it is called.
        threshold: Minimum estimated Jaccard similarity of the shingles of rows that count as nearly
            the same.

    Returns:
        Each row once, with its nearest row. The most similar rows come first, then the order is by
        id.
    """
    sketches = Sketches(threshold)
    splits_and_sketches = ((row["split"], _sketch_row(sketches, row)) for row in read())
    shares_band = _find_shared_bands(splits_and_sketches, *choose_bands(threshold))
    if not shares_band.any():
        return []
    ordered = sorted(
        (
            _SketchedRow(SPLITS.index(row["split"]), row["session_id"], _sketch_row(sketches, row))
            for row, may_be_near in zip(read(), shares_band, strict=False)
            if may_be_near
        ),
        key=lambda row: (row.split, row.session_id),
    )
    for index, row in enumerate(ordered):
        sketches.index.insert(index, row.sketch)
    nearest = (_find_nearest(row, ordered, sketches, threshold) for row in ordered if row.split)
    return sorted(
        (near for near in nearest if near), key=lambda near: (-near.similarity, near.session_id)
    )


def _find_nearest(
    row: _SketchedRow, ordered: Sequence[_SketchedRow], sketches: Sketches, threshold: float
) -> NearAcrossSplit | None:
    """Return the most similar row of an earlier split, or None.

    If several rows are equally near, the first one is returned.

    Args:
        row: The row.
        ordered: All rows, ordered by split and id.
        sketches: The index of all rows.
        threshold: Minimum estimated similarity of near rows.
    """
    nearest, highest = None, 0.0
    for index in sorted(sketches.index.query(row.sketch)):
        other = ordered[index]
        similarity = row.sketch.jaccard(other.sketch) if other.split < row.split else 0.0
        if similarity > highest:
            nearest, highest = other, similarity
    if nearest is None or highest < threshold:
        return None
    return NearAcrossSplit(
        row.session_id,
        SPLITS[row.split],
        nearest.session_id,
        SPLITS[nearest.split],
        round(highest, 3),
    )


def _sketch_row(sketches: Sketches, row: Mapping[str, Any]) -> Any:
    return sketches.sketch(split_into_shingles(format_conversation(row["messages"])))


def _find_shared_bands(
    splits_and_sketches: Iterable[tuple[str, Any]], count: int, width: int
) -> np.ndarray:
    """Find the sketches that share a band of hashes with a sketch of another split.

    Args:
        splits_and_sketches: Each sketch with its split.
        count: The number of bands.
        width: Hashes per band. 32 bits of a hash of these hashes are compared.

    Returns:
        (n,) bool.
    """
    random = np.random.default_rng(0)
    factors = random.integers(1 << 63, size=width, dtype=np.uint64) | np.uint64(1)
    split_bytes, hash_bytes = bytearray(), bytearray()
    for name, sketch in splits_and_sketches:
        split_bytes.append(SPLITS.index(name))
        hashes = np.array(sketch.digest(), np.uint64).reshape(count, width)
        products = (hashes * factors).sum(axis=1) >> np.uint64(32)
        hash_bytes += products.astype(np.uint32).tobytes()
    splits = np.frombuffer(split_bytes, np.uint8)
    is_shared = np.zeros(len(splits), bool)
    for band in np.frombuffer(hash_bytes, np.uint32).reshape(-1, count).T:
        for split in range(1, len(SPLITS)):
            common = np.intersect1d(band[splits == split], band[splits < split])
            is_shared |= (splits <= split) & np.isin(band, common)
    return is_shared
