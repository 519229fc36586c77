"""Conversations as vectors: by default without a model, hashed words and word pairs, weighted by rarity, reduced by SVD.

Thousands of rows a second on one core. What is embedded is what was *said and done*: the system prompt and the tools are the same in
every row of an agent and would make all rows look alike.

By setting, a model places the texts instead (`Encoder`): one of model2vec, one of sentence-transformers, or the base model itself
(`engine.hidden_states`). No text is cut to a model's length: a long one is the mean of its parts.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib import util
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xxhash

from agent_pipeline.errors import ModelError, SettingsError, first_line
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.transcript import list_texts
from agent_pipeline.storage.filesystem import sha256_files

DIMENSIONS = 64
HASH_BITS = 17
FITTED_ON = 10_000
"""Texts that a space is fitted to: more change the directions little, and cost time and memory. (Of 6,000, an eighth did as well as all:
of the seven nearest of a session as many were trials of its task.)"""

CHUNK = 5_000


class Texts(Protocol):
    """Texts that can be read several times; they need not lie in memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


Embed = Callable[[Texts], np.ndarray]
"""Texts to (n, d) float32, rows of length one (or zero)."""


TFIDF, HIDDEN_STATES = "tfidf", "hidden_states"
PACKAGES = {"model2vec": "model2vec", "sentence-transformers": "sentence_transformers"}
"""Kinds of models by the extra that installs them, and what is imported."""


def conversation_text(messages: Sequence[Message]) -> str:
    """What was said and done as one text: every message but the system's, calls with their arguments, in order."""
    return "\n".join(
        text
        for message in messages
        if message["role"] != "system"
        for text in list_texts(message, names=True)
    )


def embed(texts: Texts, seed: int = 0, dimensions: int = DIMENSIONS) -> np.ndarray:
    """(n, d ≤ `dimensions`) float32, rows of length one, or zero for a text without words: compare only vectors of one call.

    The directions are fitted to all texts (of many, to those of the lowest seeded hashes), whatever their order. Equal texts get equal
    vectors.
    """
    from scipy.sparse import vstack
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.preprocessing import normalize
    from threadpoolctl import threadpool_limits

    hashed = (
        (xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"), seed), text)
        for text in texts
    )
    fitted = sorted({text for _, text in heapq.nsmallest(FITTED_ON, hashed)})
    # In parts: counting takes more memory than the counts.
    counts = (
        vstack([_counts(fitted[start : start + CHUNK]) for start in range(0, len(fitted), CHUNK)])
        if fitted
        else None
    )
    # The SVD's cost is that of its columns, and few texts fill few of them.
    if counts is None or not len(columns := np.unique(counts.indices)):
        return np.zeros((len(texts), 1), dtype=np.float32)
    weighted, tfidf = counts[:, columns], TfidfTransformer(sublinear_tf=True)
    del counts, fitted
    weighted = tfidf.fit(weighted).transform(weighted, copy=False)
    # Sums of floats depend on how many threads share them: one.
    with (
        threadpool_limits(1),
        np.errstate(invalid="ignore"),
    ):  # texts all alike have no variance to explain
        svd = TruncatedSVD(
            max(min(dimensions, *(size - 1 for size in weighted.shape)), 1), random_state=seed
        ).fit(weighted)
    del weighted
    directions = svd.components_.astype(np.float32).T
    found, unread = np.zeros((len(texts), directions.shape[1]), dtype=np.float32), iter(texts)
    for start in range(0, len(texts), CHUNK):
        placed = tfidf.transform(_counts(islice(unread, CHUNK))[:, columns]) @ directions
        # Sums of floats differ by machine: rounding gives every machine the same vectors.
        found[start : start + CHUNK] = normalize(placed).round(5)
    return found


def _counts(texts: Iterable[str]) -> Any:
    """(n, 2^17) sparse counts of hashed words and word pairs."""
    from sklearn.feature_extraction.text import HashingVectorizer

    words = HashingVectorizer(
        n_features=1 << HASH_BITS,
        ngram_range=(1, 2),
        norm=None,
        alternate_sign=False,
        token_pattern=r"\w+",
    )
    return words.transform(texts)


@dataclass(frozen=True)
class Encoder:
    """A model that places texts. `origin` says which, to the revision, and goes with every vector that is kept of it; `vectors` loads the
    model when it is first asked. A text's vector depends on no other text."""

    origin: dict[str, Any]
    vectors: Callable[[Sequence[str]], np.ndarray]


def check_embeddings(name: str) -> tuple[str, str]:
    """The kind of embeddings that a setting names, and the folder or name of its model (empty where it needs none).

    Raises:
        SettingsError: there is no such kind, or the package that it needs is not installed.
    """
    kind, _, model = name.partition(":")
    if name in (TFIDF, HIDDEN_STATES):
        return name, ""
    if kind not in PACKAGES or not model:
        kinds = ", ".join(f"{each}:<folder or name>" for each in PACKAGES)
        raise SettingsError(
            f"There are no embeddings {name!r}: choose {TFIDF}, {HIDDEN_STATES}, {kinds}."
        )
    if util.find_spec(PACKAGES[kind]) is None:
        raise SettingsError(
            f"The embeddings {name!r} need the package {kind}, which is not installed: run `pip install 'agent-pipeline[{kind}]'`, or "
            f"choose {TFIDF}."
        )
    return kind, model


def encoder(name: str, trust_remote_code: bool = False) -> Encoder:
    """The model of a setting `model2vec:…` or `sentence-transformers:…`.

    Raises:
        SettingsError: the setting names no such model, or its package is not installed.
        ModelError: the model is not there.
    """
    kind, model = check_embeddings(name)
    if not model:
        raise SettingsError(f"The embeddings {name!r} are not those of a model of their own.")
    folder, revision = _model_folder(model)

    def vectors(texts: Sequence[str]) -> np.ndarray:
        try:
            loaded = _load(kind, folder, trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"The embedding model in {folder} is none that {kind} can load ({first_line(error)}): give one that it saved."
            ) from error
        if kind == "model2vec":  # the mean of the tokens' vectors, which knows no longest text
            return unit(loaded.encode(list(texts), max_length=None, use_multiprocessing=False))
        return _sentences(loaded, texts)

    return Encoder({"form": f"{kind} 1", "revision": revision}, vectors)


def unit(vectors: np.ndarray) -> np.ndarray:
    """(n, d) float32, rows of length one, or zero where they were; rounded as `embed` rounds."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (
        np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
        .astype(np.float32)
        .round(5)
    )


def _model_folder(name: str) -> tuple[Path, str]:
    """Where a model is, and which it is: the hash of its folder's files, or the hub's commit; from the hub's cache, where it is there."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return (
            folder.resolve(),
            f"sha256:{sha256_files(folder, (path for path in folder.rglob('*') if path.is_file()))}",
        )
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"The embedding model {name} is not there: give an existing folder or the id of a Hugging Face model."
        )
    from huggingface_hub import snapshot_download

    files = ["*.json", "*.safetensors", "*.txt", "*.model", "*.py"]
    for local in (True, False):
        try:
            found = Path(
                snapshot_download(
                    name, allow_patterns=files, local_files_only=local, etag_timeout=5
                )
            )
        except (
            Exception
        ) as error:  # httpx, the hub and the file system each have their own family of errors
            reason = first_line(error)
        else:
            return found, found.name
    raise ModelError(
        f"The embedding model {name} is not a folder, and the Hugging Face hub gave nothing ({reason}): check name and network."
    )


def _load(kind: str, folder: Path, trust_remote_code: bool) -> Any:
    if kind == "model2vec":
        from model2vec import StaticModel

        return StaticModel.from_pretrained(str(folder))
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        str(folder), trust_remote_code=trust_remote_code, local_files_only=True
    )


def _sentences(model: Any, texts: Sequence[str]) -> np.ndarray:
    """By a model of sentence-transformers: a text that is longer than it takes is the mean of its parts, by their tokens."""
    limit = model.max_seq_length
    parts = [
        list(
            _parts(text, model.tokenizer, int(limit))
            if limit and limit < float("inf")
            else [(text, 1)]
        )
        for text in texts
    ]
    found = unit(
        model.encode([part for each in parts for part, _ in each], show_progress_bar=False)
    )
    weights = np.array([weight for each in parts for _, weight in each], dtype=np.float32)
    starts = np.cumsum([0, *map(len, parts[:-1])])
    return unit(np.add.reduceat(found * weights[:, None], starts, axis=0))


def _parts(text: str, tokenizer: Any, limit: int) -> Iterator[tuple[str, int]]:
    """A text in parts that a model takes whole, and the tokens of each."""
    size = limit - tokenizer.num_special_tokens_to_add()
    places = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )["offset_mapping"]
    if len(places) <= size:
        yield text, max(len(places), 1)
        return
    for start in range(0, len(places), size):
        part = places[start : start + size]
        yield text[part[0][0] : part[-1][1]], len(part)
