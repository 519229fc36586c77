"""A cache in the lake of a model's embeddings, by the hash of the text.

With the cache, a night computes only the vectors of new texts. The table contains only vectors of
the current texts by the last used embeddings, so the vector of a forgotten session is removed
together with the session. A damaged or deleted table is created again. Computing vectors belongs to
`embeddings`.
"""

import json
from collections.abc import Iterable, Sequence

import numpy as np
import pyarrow as pa

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.embeddings import Encoder
from agent_pipeline.sessions.session import encode_json, hash_json
from agent_pipeline.storage.lake import Lake

VECTORS = "embeddings"
OLD_SPACE = "embedding_space"
"""Name of a table that older lakes contain and that is no longer read."""


def store_vectors(
    lake: Lake, key: PartitionKey, encoder: Encoder, texts: Sequence[str]
) -> dict[str, object]:
    """Store the vectors of the given texts in the lake, and remove all other vectors.

    Args:
        lake: The lake.
        key: The agent.
        encoder: The model.
        texts: The texts.

    Returns:
        `origin` (the model's identity), and `computed` and `kept` (the numbers of new and old
        vectors).
    """
    distinct = {hash_json(text): text for text in texts}
    stored = _read(lake, key, encoder.origin)
    known = {name: stored[name] for name in distinct if name in stored}
    new = [name for name in distinct if name not in stored]
    if new:
        known |= zip(new, encoder.vectors([distinct[name] for name in new]), strict=True)
    if new or len(stored) > len(known):
        names = sorted(known)
        values = np.array([known[name] for name in names], dtype=np.float32)
        column = pa.FixedSizeListArray.from_arrays(
            pa.array(values.reshape(-1)), values.shape[1] if names else 1
        )
        table = pa.table({"text_sha256": pa.array(names, pa.string()), "vector": column})
        schema = table.schema.with_metadata({"agent_pipeline": encode_json(encoder.origin)})
        lake.stage(VECTORS, key, table.cast(schema).to_batches(), schema).commit()
    return {"origin": encoder.origin, "computed": len(new), "kept": len(distinct) - len(new)}


def read_vectors(
    lake: Lake, key: PartitionKey, origin: dict[str, object], texts: Iterable[str]
) -> np.ndarray:
    """Read the vectors that `store_vectors` stored for the given texts.

    Args:
        lake: The lake.
        key: The agent.
        origin: The model's identity.
        texts: The texts.

    Returns:
        (n, d) float32, rows of length one.
    """
    stored = _read(lake, key, origin)
    return np.array([stored[hash_json(text)] for text in texts], dtype=np.float32)


def _read(lake: Lake, key: PartitionKey, origin: dict[str, object]) -> dict[str, np.ndarray]:
    """Return the vectors that are stored for a model, by the hash of their text."""
    try:
        file = lake.open(VECTORS, key)
        if json.loads((file.schema_arrow.metadata or {}).get(b"agent_pipeline", b"{}")) != origin:
            return {}
        table = file.read()
    except (DataError, pa.ArrowException):
        return {}
    values = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    return dict(zip(table["text_sha256"].to_pylist(), values, strict=True))
