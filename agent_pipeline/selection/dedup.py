"""Duplicates: exact, near (MinHash LSH by rensa) and semantic (embeddings and a nearest-neighbour index by usearch).

What is compared is what was said and done: the system prompt and the tools, the same in all rows of an agent, are left out, and calls with
their arguments are in. Of rows alike the better judged stands, then the earlier; every other names the row that stands for it.
"""

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.embeddings import conversation_text, embed
from agent_pipeline.selection.minhash import Sketches
from agent_pipeline.sessions.session import is_learnt, sha256_of

if TYPE_CHECKING:
    import numpy as np

Kind = Literal["exact", "near", "semantic"]

NEAR = 0.8
SEMANTIC = 0.95
BATCH = 32
"""Rows sketched at a time: the words of more leave the processor's cache before they are hashed."""

DOUBT = 0.12

_SEPARATED = bytes(ord(" ") if chr(byte) in string.punctuation and chr(byte) != "_" else byte for byte in range(256)).lower()


class Duplicate(msgspec.Struct, frozen=True):
    """`row_id` says what `of` says already. `similarity`: 1 for exact, the Jaccard similarity of their words for near, the cosine of
    their embeddings for semantic."""

    row_id: str
    of: str
    kind: Kind
    similarity: float


class Duplicates(msgspec.Struct, frozen=True):
    """`found`: rows that others stand for, exact or near, sorted by id; `semantic`: rows only reported.

    `similarities`: for each kind the similarity of each row to the nearest of those that come before it in the order of keeping, as far
    as it was looked at (near: rows that share a band of hashes with one).
    """

    found: list[Duplicate]
    semantic: list[Duplicate]
    similarities: dict[str, list[float]]


def duplicates(
    rows: Sequence[Mapping[str, Any]],
    near: float | None = NEAR,
    semantic: float | None = None,
    vectors: "Callable[[list[str]], np.ndarray] | None" = None,
    seed: int = 0,
) -> Duplicates:
    """Duplicates among `rows` (`row_id`, `messages`, and where known `score` and `created_at`); the same whatever their order.

    `near` and `semantic` are thresholds, null for not looking; exact duplicates are always found. `vectors` embeds texts as unit vectors.

    Raises:
        SettingsError: a threshold is not above 0 and at most 1.
    """
    for name, threshold in (("near", near), ("semantic", semantic)):
        if threshold is not None and not 0 < threshold <= 1:
            raise SettingsError(f"The threshold of {name} duplicates is {threshold}: set it above 0 and at most 1.")
    ordered = sorted(rows, key=_standing)
    first: dict[str, str] = {}
    found: list[Duplicate] = []
    ids, texts = [], []
    for row in ordered:
        stands = first.setdefault(identity(row), row["row_id"])
        if stands != row["row_id"]:
            found.append(Duplicate(row["row_id"], stands, "exact", 1.0))
            continue
        ids.append(row["row_id"])
        texts.append(conversation_text(row["messages"]))
    similarities: dict[str, list[float]] = {}
    gone: set[int] = set()
    if near is not None:
        pairs, similarities["near"] = near_pairs(texts, near, seed)
        gone = {index for index, _, _ in pairs}
        found += [Duplicate(ids[index], ids[of], "near", round(similar, 4)) for index, of, similar in pairs]
    alike: list[Duplicate] = []
    if semantic is not None:
        left = [index for index in range(len(ids)) if index not in gone]
        kept = [texts[index] for index in left]
        pairs, similarities["semantic"] = semantic_pairs(vectors(kept) if vectors else embed(kept, seed), semantic)
        alike = [Duplicate(ids[left[index]], ids[left[of]], "semantic", round(similar, 4)) for index, of, similar in pairs]
    stands_for = {duplicate.row_id: duplicate.of for duplicate in found}
    # A row's stand-in may be a near-duplicate itself; what is named is a row that is there.
    settled = [msgspec.structs.replace(each, of=stands_for.get(each.of, each.of)) for each in found]
    return Duplicates(sorted(settled, key=lambda each: each.row_id), sorted(alike, key=lambda each: each.row_id), similarities)


def identity(row: Mapping[str, Any]) -> str:
    """sha256 (hex) of what was said and done: all messages but the system's, without the ids of calls, which differ by chance; and of
    which turns are learnt."""
    return sha256_of([_said(message) for message in row["messages"] if message["role"] != "system"])


def _said(message: Mapping[str, Any]) -> list[Any]:
    calls = [[call["function"]["name"], call["function"]["arguments"]] for call in message.get("tool_calls") or ()]
    return [message["role"], message.get("content") or "", calls, is_learnt(message)]


def _standing(row: Mapping[str, Any]) -> tuple[float, float, str]:
    """The better judged first (unjudged last), then the earlier (undated last), then by id."""
    score, time = row.get("score"), row.get("created_at")
    when = time.timestamp() if isinstance(time, datetime) else float("inf")
    return (float("inf") if score is None else -score, when, row["row_id"])


def near_pairs(texts: Sequence[str], threshold: float = NEAR, seed: int = 0) -> tuple[list[tuple[int, int, float]], list[float]]:
    """(row, row that stands for it, Jaccard similarity of their words) for every text like an earlier one that stands; and the highest
    similarity of each text that had a candidate.

    Most rows share no band of hashes with any earlier one, which is found in bulk, a batch of rows at a time. The others' candidates are
    compared word by word, so that a false candidate removes nothing.
    """
    index = Sketches(threshold, seed)

    @lru_cache(maxsize=50_000)
    def candidate(row: int) -> Any:
        return index.of(_words(texts[row]))

    pairs: list[tuple[int, int, float]] = []
    highest: list[float] = []
    for start in range(0, len(texts), BATCH):
        words = [_words(text) for text in texts[start : start + BATCH]]
        flags = index.add_sets(words, start)
        for place in (place for place, flag in enumerate(flags) if flag and words[place]):
            row, sketch = start + place, index.of(words[place])
            others = [other for other in index.like(sketch) if other < row]
            if not others:
                continue
            best, of = 0.0, row
            for other in others:
                similar = sketch.jaccard(candidate(other))
                # The estimate is off by more than this about once in a million pairs.
                if similar > threshold - DOUBT:
                    similar = _jaccard(frozenset(words[place]), frozenset(_words(texts[other])))
                    of = other if similar >= threshold and similar > best else of
                best = max(best, similar)
            highest.append(best)
            if of != row:
                index.remove(row)
                pairs.append((row, of, best))
    return pairs, highest


def _words(text: str) -> list[bytes]:
    """Words in lower case, as UTF-8. Punctuation separates: the keys and values of JSON without blanks are words too."""
    folded = text if text.isascii() else text.casefold()  # of ASCII the table makes lower case
    return folded.encode("utf-8", "surrogatepass").translate(_SEPARATED).split()


def _jaccard(a: frozenset[bytes], b: frozenset[bytes]) -> float:
    both = len(a & b)
    return both / (len(a) + len(b) - both)


def semantic_pairs(
    vectors: "np.ndarray", threshold: float = SEMANTIC, neighbours: int = 16
) -> tuple[list[tuple[int, int, float]], list[float]]:
    """(row, earlier row, cosine) for every unit vector whose nearest earlier one, among its 16 nearest, is at least `threshold` like it;
    and the cosine of each row to its nearest other one.

    The index is exact up to 10,000 rows, and HNSW beyond: approximate, and far from n × n.
    """
    import numpy as np
    from usearch.compiled import MetricKind
    from usearch.index import Index, search

    n = len(vectors)
    if n < 2:
        return [], []
    k = min(neighbours, n)
    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    if n <= 10_000:
        matches = search(vectors, vectors, k, MetricKind.Cos, exact=True)
    else:
        index = Index(ndim=vectors.shape[1], metric="cos", dtype="f32", connectivity=16, expansion_add=64, expansion_search=64)
        index.add(np.arange(n), vectors, threads=1)  # with several threads the graph depends on which one was first
        matches = index.search(vectors, k)
    keys, similar = np.asarray(matches.keys).astype(np.int64), 1 - np.asarray(matches.distances)
    rows = np.arange(n)[:, None]
    nearest = np.where(keys == rows, -1.0, similar).max(axis=1)
    earlier = np.where(keys < rows, similar, -1.0)
    best = earlier.argmax(axis=1)
    cosine = earlier[np.arange(n), best]
    pairs = [(row, int(keys[row, best[row]]), float(cosine[row])) for row in np.flatnonzero(cosine >= threshold - 1e-6).tolist()]
    return pairs, nearest.clip(-1, 1).astype(float).tolist()


def reasons(found: Iterable[Duplicate]) -> dict[str, str]:
    """Row id → why it is not needed, in words."""
    return {
        each.row_id: f"identical to row {each.of}"
        if each.kind == "exact"
        else f"near-duplicate of row {each.of} (similarity {each.similarity:.2f})"
        for each in found
    }
