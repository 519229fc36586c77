"""Embeddings of conversations.

By default, no model is needed: hashed words and word pairs are weighted by rarity and reduced by
SVD, at thousands of rows per second on one core. The messages and calls are embedded, but not the
system prompt and the tools. All rows of an agent share these, so they would make all rows look
alike.

A setting can choose a model instead (`Encoder`): a model of model2vec, of sentence-transformers, or
the base model itself (`engine.hidden_states`). No text is cut at a model's maximum length: the
vector of a long text is the mean of its parts. The table of vectors belongs to `vectors`.
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
MAX_FITTED = 10_000
"""Maximum number of texts from which the directions of the SVD are computed. More texts barely
change the directions, and cost time and memory.
"""

CHUNK = 5_000


class Texts(Protocol):
    """A collection of texts that can be read several times and need not be in memory."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[str]: ...


Embed = Callable[[Texts], np.ndarray]
"""Function that embeds texts as an (n, d) float32 array, whose rows have the length one or zero."""


TFIDF, HIDDEN_STATES = "tfidf", "hidden_states"
PACKAGES = {"model2vec": "model2vec", "sentence-transformers": "sentence_transformers"}
"""Imported packages, by the name of the extra that installs them."""


def format_conversation(messages: Sequence[Message]) -> str:
    """Return a conversation as one text.

    The text has every message except system messages, and calls with their arguments, in order.
    """
    return "\n".join(
        text
        for message in messages
        if message["role"] != "system"
        for text in list_texts(message, names=True)
    )


def embed(texts: Texts, seed: int = 0, dimensions: int = DIMENSIONS) -> np.ndarray:
    """Embed texts without a model.

    The directions are fitted to all texts. If there are many texts, the texts with the lowest
    seeded hashes are used. The order of the texts does not matter. Equal texts get equal vectors.
    Only vectors from the same call can be compared.

    Args:
        texts: The texts.
        seed: The seed of the hashes and of the SVD.
        dimensions: Maximum number of dimensions.

    Returns:
        (n, d ≤ `dimensions`) float32, rows of length one, or zero for a text without words.
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
    fitted = sorted({text for _, text in heapq.nsmallest(MAX_FITTED, hashed)})
    if not fitted:
        return np.zeros((len(texts), 1), dtype=np.float32)
    # Texts are counted in parts, because counting takes more memory than the counts.
    parts = [fitted[start : start + CHUNK] for start in range(0, len(fitted), CHUNK)]
    counts = vstack([_count_words(part) for part in parts])
    # The time of the SVD depends on the number of columns, and few texts fill few columns.
    columns = np.unique(counts.indices)
    if not len(columns):
        return np.zeros((len(texts), 1), dtype=np.float32)
    weighted, tfidf = counts[:, columns], TfidfTransformer(sublinear_tf=True)
    del counts, fitted
    weighted = tfidf.fit(weighted).transform(weighted, copy=False)
    # Sums of floats depend on the number of threads. If all texts are equal, there is no variance.
    with threadpool_limits(1), np.errstate(invalid="ignore"):
        components = max(min(dimensions, *(size - 1 for size in weighted.shape)), 1)
        svd = TruncatedSVD(components, random_state=seed).fit(weighted)
    del weighted
    directions = svd.components_.astype(np.float32).T
    vectors = np.zeros((len(texts), directions.shape[1]), dtype=np.float32)
    unread = iter(texts)
    for start in range(0, len(texts), CHUNK):
        projected = tfidf.transform(_count_words(islice(unread, CHUNK))[:, columns]) @ directions
        # Sums of floats differ between machines. Rounding gives the same vectors on every machine.
        vectors[start : start + CHUNK] = normalize(projected).round(5)
    return vectors


def _count_words(texts: Iterable[str]) -> Any:
    """Return (n, 2^17) sparse counts of hashed words and word pairs."""
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
    """A model that embeds texts.

    The vector of a text does not depend on other texts.

    Attributes:
        origin: The identity of the model, including the revision. It is stored with the vectors.
        vectors: Function that embeds texts. The first call loads the model.
    """

    origin: dict[str, Any]
    vectors: Callable[[Sequence[str]], np.ndarray]


def check_embeddings(name: str) -> tuple[str, str]:
    """Check the setting that selects an embedding method, and split it into the kind and the model.

    Returns:
        The kind of embeddings, and the folder or name of the model (empty if none is needed).

    Raises:
        SettingsError: there is no such kind, or the package that it needs is not installed.
    """
    kind, _, model = name.partition(":")
    if name in (TFIDF, HIDDEN_STATES):
        return name, ""
    if kind not in PACKAGES or not model:
        kinds = ", ".join(f"{extra}:<folder or name>" for extra in PACKAGES)
        raise SettingsError(
            f"The setting `embeddings` is {name!r}: choose one of {TFIDF}, {HIDDEN_STATES}, "
            f"{kinds}."
        )
    if util.find_spec(PACKAGES[kind]) is None:
        raise SettingsError(
            f"The embeddings {name!r} need the package {kind}, which is not installed: run "
            f"`pip install 'agent-pipeline[{kind}]'`, or choose {TFIDF}."
        )
    return kind, model


def find_encoder(name: str, trust_remote_code: bool = False) -> Encoder:
    """Load the model that a setting such as `model2vec:…` or `sentence-transformers:…` names.

    Raises:
        SettingsError: the setting names no such model, or its package is not installed.
        ModelError: the model cannot be found.
    """
    kind, model = check_embeddings(name)
    if not model:
        raise SettingsError(f"The embeddings {name!r} do not name an embedding model.")
    folder, revision = _find_model(model)

    def vectors(texts: Sequence[str]) -> np.ndarray:
        try:
            loaded = _load(kind, folder, trust_remote_code)
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"The embedding model in {folder} cannot be loaded by {kind} "
                f"({first_line(error)}): give a model that {kind} saved."
            ) from error
        if kind == "model2vec":  # the mean of token vectors has no maximum text length
            encoded = loaded.encode(list(texts), max_length=None, use_multiprocessing=False)
            return scale_to_unit(encoded)
        return _encode_sentences(loaded, texts)

    return Encoder({"form": f"{kind} 1", "revision": revision}, vectors)


def scale_to_unit(vectors: np.ndarray) -> np.ndarray:
    """Scale vectors to length one, with the same rounding as in `embed`.

    Args:
        vectors: (n, d) float.

    Returns:
        (n, d) float32. Zero vectors stay zero.
    """
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: np.ndarray = np.divide(vectors, lengths, out=np.zeros_like(vectors), where=lengths > 0)
    return scaled.astype(np.float32).round(5)


def _find_model(name: str) -> tuple[Path, str]:
    """Return the folder and the revision of a model.

    The revision is the hash of the folder's files, or the hub's commit. The local cache of the hub
    is searched before the hub.
    """
    folder = Path(name).expanduser()
    if folder.is_dir():
        files = (path for path in folder.rglob("*") if path.is_file())
        return folder.resolve(), f"sha256:{sha256_files(folder, files)}"
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ModelError(
            f"The embedding model {name} does not exist: name an existing folder or the id of a "
            "Hugging Face model."
        )
    from huggingface_hub import snapshot_download

    patterns = ["*.json", "*.safetensors", "*.txt", "*.model", "*.py"]
    for local in (True, False):
        try:
            downloaded = snapshot_download(
                name, allow_patterns=patterns, local_files_only=local, etag_timeout=5
            )
        except Exception as error:  # httpx, the hub and the file system each have their own errors
            reason = first_line(error)
        else:
            return Path(downloaded), Path(downloaded).name
    raise ModelError(
        f"The embedding model {name} is not a folder, and could not be downloaded from the "
        f"Hugging Face hub ({reason}): check the name and the network."
    )


def _load(kind: str, folder: Path, trust_remote_code: bool) -> Any:
    if kind == "model2vec":
        from model2vec import StaticModel

        return StaticModel.from_pretrained(str(folder))
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        str(folder), trust_remote_code=trust_remote_code, local_files_only=True
    )


def _encode_sentences(model: Any, texts: Sequence[str]) -> np.ndarray:
    """Embed texts with a model of sentence-transformers.

    If a text is too long for the model, its vector is the mean of its parts, weighted by their
    number of tokens.
    """
    limit = model.max_seq_length
    has_limit = limit and limit < float("inf")
    parts_by_text = [
        list(_split_text(text, model.tokenizer, int(limit)) if has_limit else [(text, 1)])
        for text in texts
    ]
    parts = [part for text_parts in parts_by_text for part in text_parts]
    vectors = scale_to_unit(model.encode([text for text, _ in parts], show_progress_bar=False))
    weights = np.array([tokens for _, tokens in parts], dtype=np.float32)
    starts = np.cumsum([0, *map(len, parts_by_text[:-1])])
    return scale_to_unit(np.add.reduceat(vectors * weights[:, None], starts, axis=0))


def _split_text(text: str, tokenizer: Any, limit: int) -> Iterator[tuple[str, int]]:
    """Yield the pieces of a text that fit into a model, each with its number of tokens.

    Args:
        text: The text.
        tokenizer: The model's tokenizer.
        limit: Maximum number of tokens that the model accepts, including special tokens.
    """
    size = limit - tokenizer.num_special_tokens_to_add()
    encoded = tokenizer(
        text, add_special_tokens=False, return_offsets_mapping=True, truncation=False, verbose=False
    )
    offsets = encoded["offset_mapping"]
    if len(offsets) <= size:
        yield text, max(len(offsets), 1)
        return
    for start in range(0, len(offsets), size):
        part = offsets[start : start + size]
        yield text[part[0][0] : part[-1][1]], len(part)
