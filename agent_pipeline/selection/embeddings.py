"""Conversations as vectors, without a model: hashed words and word pairs, weighted by rarity, reduced by SVD.

Thousands of rows a second on one core. What is embedded is what was *said and done*: the system prompt and the tools are the same in
every row of an agent and would make all rows look alike.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_pipeline.traces.session import Message

if TYPE_CHECKING:
    import numpy as np

DIMENSIONS = 64
HASH_BITS = 17
FITTED_ON = 20_000
"""Texts, a seeded sample of them, that a space is fitted to: more change the directions little and cost as much each."""

CHUNK = 5_000

Embed = Callable[[Sequence[str]], "np.ndarray"]
"""Texts to (n, d) float32, rows of length one (or zero)."""


def conversation_text(messages: Sequence[Message]) -> str:
    """A conversation as one text: every message but the system's, calls with their arguments, in order."""
    parts = []
    for message in messages:
        if message["role"] == "system":
            continue
        parts.append(message.get("content") or "")
        parts += [f"{call['function']['name']} {call['function']['arguments']}" for call in message.get("tool_calls") or ()]
    return "\n".join(parts)


@dataclass(frozen=True)
class Space:
    """Directions fitted to some texts, in which these and others are placed.

    `columns` (c,) are the hashed features that occur, sorted; `weights` (c,) how rare each is; `directions` (d, c).
    """

    columns: "np.ndarray"
    weights: "np.ndarray"
    directions: "np.ndarray"

    @property
    def dimensions(self) -> int:
        return max(len(self.directions), 1)

    def vectors(self, texts: Sequence[str]) -> "np.ndarray":
        """(n, d) float32, rows of length one, or zero for a text without a known word. A text's vector depends on no other text."""
        import numpy as np
        from sklearn.preprocessing import normalize

        found = np.zeros((len(texts), self.dimensions), dtype=np.float32)
        if not len(self.directions):
            return found
        for start in range(0, len(texts), CHUNK):
            counts = _counts(texts[start : start + CHUNK])[:, self.columns]
            np.log(counts.data, out=counts.data)
            counts.data += 1
            counts.data *= self.weights[counts.indices]
            # Sums of floats differ by machine: rounding gives every machine the same vectors.
            found[start : start + CHUNK] = normalize(normalize(counts) @ self.directions.T).round(5)
        return found


def fit(texts: Sequence[str], seed: int = 0, dimensions: int = DIMENSIONS) -> Space:
    """The space of these texts (of a seeded sample, if there are many), of at most `dimensions`; give the texts in a defined order."""
    import numpy as np
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer
    from threadpoolctl import threadpool_limits

    if len(texts) > FITTED_ON:
        texts = [texts[i] for i in np.sort(np.random.default_rng(seed).choice(len(texts), FITTED_ON, replace=False)).tolist()]
    nothing = np.zeros(0)
    if not texts:
        return Space(nothing.astype(np.int64), nothing, np.zeros((0, 0)))
    counts = _counts(texts)
    # The SVD's cost is that of its columns, and few texts fill few of them.
    columns = np.unique(counts.indices)
    if not len(columns):
        return Space(nothing.astype(np.int64), nothing, np.zeros((0, 0)))
    tfidf = TfidfTransformer(sublinear_tf=True)
    weighted = tfidf.fit_transform(counts[:, columns])
    # Sums of floats depend on how many threads share them: one.
    with threadpool_limits(1), np.errstate(invalid="ignore"):  # texts all alike have no variance to explain
        svd = TruncatedSVD(max(min(dimensions, *(size - 1 for size in weighted.shape)), 1), random_state=seed).fit(weighted)
    return Space(columns.astype(np.int64), tfidf.idf_.astype(np.float64), svd.components_.astype(np.float32))


def embed(texts: Sequence[str], seed: int = 0, dimensions: int = DIMENSIONS) -> "np.ndarray":
    """(n, d) float32 in the space of these texts: compare only vectors of one call. Equal texts get equal vectors."""
    return fit(texts, seed, dimensions).vectors(texts)


def _counts(texts: Sequence[str]) -> Any:
    """(n, 2^17) sparse counts of hashed words and word pairs."""
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(n_features=1 << HASH_BITS, ngram_range=(1, 2), norm=None, alternate_sign=False, token_pattern=r"\w+")
    return words.transform(texts)
