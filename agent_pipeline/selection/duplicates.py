"""Duplicates: exact, and near by MinHash LSH (rensa).

What is compared is what was said and done: the system prompt and the tools, the same in all rows of an agent, are left out; calls with
their arguments count. Two sets' sketches agree in a hash with the chance that is their Jaccard similarity (Broder 1997); an index by bands
finds those that agree in all hashes of a band (Indyk and Motwani 1998).
"""

import string
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np
import pyarrow.compute as pc

from agent_pipeline.datasets.sketches import Sketches, choose_bands, split_into_shingles
from agent_pipeline.datasets.splits import SPLITS
from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.embeddings import conversation_text

Kind = Literal["exact", "near"]
Pair = tuple[int, int, float]
"""A row, the row that stands for it, and their similarity."""

NEAR = 0.8
BATCH = 32
"""Rows sketched at a time: the words of more leave the processor's cache before they are hashed."""

BATCH_CHARACTERS = 64 << 10
"""A batch ends with the text that makes it this long: words take eight times the memory of their text."""

DOUBT = 0.12
"""The estimated similarity is off by more than this about once in a million pairs."""

_SEPARATED = bytes(
    ord(" ") if chr(byte) in string.punctuation and chr(byte) != "_" else byte
    for byte in range(256)
).lower()


class Duplicate(msgspec.Struct, frozen=True):
    """`row_id` says what the row `duplicate_of` says. `similarity`: 1 for exact, the Jaccard similarity of their words for near."""

    row_id: str
    duplicate_of: str
    kind: Kind
    similarity: float


class Duplicates(msgspec.Struct, frozen=True):
    """`rows` that others stand for, sorted by id; `similarities`: of each row that shares a band of hashes with rows before it, the highest
    similarity to one of them."""

    rows: list[Duplicate] = []
    similarities: list[float] = []


def duplicates(rows: Candidates, near: float | None = NEAR, seed: int = 0) -> Duplicates:
    """Duplicates among `rows`.

    Of rows alike the better judged stands, then the earlier, then the first by id. `near` is a threshold, `None` for not looking; exact
    duplicates are always found. Looking for near ones holds all texts, and an index of their words.

    Raises:
        SettingsError: the threshold is not above 0 and at most 1.
    """
    if near is not None and not 0 < near <= 1:
        raise SettingsError(
            f"The threshold of near duplicates is {near}: set it above 0 and at most 1."
        )
    ids, scores, began = (rows.table[name] for name in ("row_id", "score", "began"))
    unjudged_last, undated_last = (
        pc.fill_null(each, float("inf")).to_numpy() for each in (pc.negate(scores), began)
    )
    standing = np.lexsort((undated_last, unjudged_last))  # the last decides first
    contents = (
        rows.table["identity"].combine_chunks().dictionary_encode().indices.to_numpy()[standing]
    )
    _, first, content = np.unique(contents, return_index=True, return_inverse=True)
    original = standing[first[content]]
    copies = original != standing
    exact = zip(
        ids.take(standing[copies]).to_pylist(), ids.take(original[copies]).to_pylist(), strict=True
    )
    stands_for = {name: Duplicate(name, of, "exact", 1.0) for name, of in exact}
    similarities: list[float] = []
    if near is not None:
        distinct, texts = standing[np.sort(first)].tolist(), list(rows.texts())
        pairs, similarities = near_pairs([texts[place] for place in distinct], near, seed)
        for index, of, similarity in pairs:
            name, other = (ids[distinct[each]].as_py() for each in (index, of))
            stands_for[name] = Duplicate(name, other, "near", round(similarity, 4))
    # The row that stands for an identical one may be a near-duplicate itself: what is named is a row that stands.
    named = [
        msgspec.structs.replace(each, duplicate_of=stands_for[each.duplicate_of].duplicate_of)
        if each.duplicate_of in stands_for
        else each
        for each in stands_for.values()
    ]
    return Duplicates(sorted(named, key=lambda each: each.row_id), similarities)


def near_pairs(
    texts: Sequence[str], threshold: float = NEAR, seed: int = 0
) -> tuple[list[Pair], list[float]]:
    """Each text whose words are like those of an earlier text that stands; and the highest similarity of each text that had a candidate.

    Most texts share no band of hashes with any earlier one, which is found a batch of texts at a time. The others' candidates are compared
    word by word, so that a false candidate removes nothing.
    """
    sketches = Sketches(threshold, seed)

    @lru_cache(maxsize=50_000)
    def sketch_of(row: int) -> Any:
        return sketches.sketch(words_of(texts[row]))

    pairs: list[Pair] = []
    highest: list[float] = []
    for start in range(0, len(texts), BATCH):
        words = [list(set(words_of(text))) for text in texts[start : start + BATCH]]
        flags = sketches.add_sets(words, start)
        for place in (place for place, flag in enumerate(flags) if flag and words[place]):
            row, sketch = start + place, sketches.sketch(words[place])
            others = sorted(other for other in sketches.index.query(sketch) if other < row)
            if not others:
                continue
            best, of = 0.0, row
            for other in others:
                similarity = sketch.jaccard(sketch_of(other))
                if similarity > threshold - DOUBT:
                    similarity = _jaccard(
                        frozenset(words[place]), frozenset(words_of(texts[other]))
                    )
                    of = other if similarity >= threshold and similarity > best else of
                best = max(best, similarity)
            highest.append(best)
            if of != row:
                sketches.index.remove(row)
                pairs.append((row, of, best))
    return pairs, highest


def rows_with_candidates(texts: Iterable[str], threshold: float = NEAR, seed: int = 0) -> list[int]:
    """Return the numbers of the texts that share a band of hashes with another one: only these can be near-duplicates.

    Memory holds the index and a batch of texts.
    """
    sketches = Sketches(threshold, seed)
    candidates: set[int] = set()
    start = 0
    for batch in _batches_of_words(texts):
        for offset, shares in enumerate(sketches.add_sets(batch, start)):
            if shares and batch[offset]:
                candidates.add(start + offset)
                candidates.update(sketches.index.query(sketches.sketch(batch[offset])))
        start += len(batch)
    return sorted(candidates)


def _batches_of_words(texts: Iterable[str]) -> Iterator[list[list[bytes]]]:
    """Yield the different words of texts in batches of few texts, or of fewer long ones."""
    batch: list[list[bytes]] = []
    size = 0
    for text in texts:
        batch.append(list(set(words_of(text))))
        size += len(text)
        if len(batch) == BATCH or size > BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def words_of(text: str) -> list[bytes]:
    """The words of a text in lower case, as UTF-8. Punctuation separates: the keys and values of JSON without blanks are words too."""
    folded = text if text.isascii() else text.casefold()  # of ASCII the table makes lower case
    return folded.encode("utf-8", "surrogatepass").translate(_SEPARATED).split()


def _jaccard(a: frozenset[bytes], b: frozenset[bytes]) -> float:
    both = len(a & b)
    return both / (len(a) + len(b) - both)


class NearAcrossSplit(NamedTuple):
    """A held-out session and the session nearest to it of a split before its own (`train`, `select`, `test`), with their similarity."""

    session_id: str
    split: str
    other_session_id: str
    other_split: str
    similarity: float


def near_across_splits(
    read: Callable[[], Iterable[Mapping[str, Any]]], threshold: float = NEAR
) -> list[NearAcrossSplit]:
    """Held-out rows (`session_id`, `split`, `messages`) that are nearly a row of another split: the most alike first, then by id.

    `threshold` is the estimated Jaccard similarity of their shingles, from which on rows are alike. Each row is named once, with its
    nearest. `read` opens the same rows anew each time: the first reading leaves four bytes a band of each row in memory, the second
    sketches those that share a band with a row of another split.
    """
    sketches = Sketches(threshold)
    shared = _share_a_band_across(
        ((row["split"], _sketch(sketches, row)) for row in read()), choose_bands(threshold)
    )
    ordered = sorted(
        (
            (SPLITS.index(row["split"]), row["session_id"], _sketch(sketches, row))
            for row, may_be_near in zip(read() if shared.any() else (), shared, strict=False)
            if may_be_near
        ),
        key=lambda row: row[:2],
    )
    for number, (_, _, sketch) in enumerate(ordered):
        sketches.index.insert(number, sketch)

    def nearest() -> Iterator[NearAcrossSplit]:
        for split, session_id, sketch in ordered:
            # Numbers are in the order of split and id: of two as near, the first is named.
            others = (
                number
                for number in (sketches.index.query(sketch) if split else ())
                if ordered[number][0] < split
            )
            similarity, number = max(
                ((sketch.jaccard(ordered[number][2]), -number) for number in others),
                default=(0.0, 0),
            )
            if similarity >= threshold:
                other_split, other_id, _ = ordered[-number]
                yield NearAcrossSplit(
                    session_id, SPLITS[split], other_id, SPLITS[other_split], round(similarity, 3)
                )

    return sorted(nearest(), key=lambda each: (-each.similarity, each.session_id))


def _sketch(sketches: Sketches, row: Mapping[str, Any]) -> Any:
    return sketches.sketch(split_into_shingles(conversation_text(row["messages"])))


def _share_a_band_across(sketches: Iterable[tuple[str, Any]], shape: tuple[int, int]) -> np.ndarray:
    """(n,) bool: which of the sketches, each with its split, share a band's hashes (32 bits of their hash) with one of another split."""
    count, width = shape
    factors = np.random.default_rng(0).integers(1 << 63, size=width, dtype=np.uint64) | np.uint64(1)
    splits, hashed = bytearray(), bytearray()
    for name, sketch in sketches:
        splits.append(SPLITS.index(name))
        hashes = np.array(sketch.digest(), np.uint64).reshape(count, width)
        hashed += ((hashes * factors).sum(axis=1) >> np.uint64(32)).astype(np.uint32).tobytes()
    of, found = np.frombuffer(splits, np.uint8), np.zeros(len(splits), bool)
    for band in np.frombuffer(hashed, np.uint32).reshape(-1, count).T:
        for split in range(1, len(SPLITS)):
            found |= (of <= split) & np.isin(
                band, np.intersect1d(band[of == split], band[of < split])
            )
    return found
