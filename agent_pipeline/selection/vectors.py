"""A model's embeddings, kept in the lake from night to night by the hash of the text: a night computes only what is new.

Only the texts that are there now are kept, by the embeddings that were last asked for: a forgotten session's vector goes with it. The table
is a cache, and a damaged or deleted one is made again.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.embeddings import Encoder
from agent_pipeline.sessions.session import encode_json, hash_json
from agent_pipeline.storage.lake import Lake

VECTORS = "embeddings"
OLD_SPACE = "embedding_space"
"""A table of older lakes, which nothing reads any more."""


def keep_vectors(
    lake: Lake, key: PartitionKey, encoder: Encoder, texts: Sequence[str]
) -> dict[str, Any]:
    """Put exactly these texts' vectors into the lake; `origin` says of which model they are, `computed` and `kept` how many were new."""
    distinct = {hash_json(text): text for text in texts}
    stored = _read(lake, key, encoder.origin)
    known = {name: stored[name] for name in distinct if name in stored}
    if new := [name for name in distinct if name not in stored]:
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


def kept_vectors(
    lake: Lake, key: PartitionKey, origin: dict[str, Any], texts: Iterable[str]
) -> np.ndarray:
    """(n, d) float32 of length one: the vectors of texts that `keep_vectors` put into the lake."""
    stored = _read(lake, key, origin)
    return np.array([stored[hash_json(text)] for text in texts], dtype=np.float32)


def _read(lake: Lake, key: PartitionKey, origin: dict[str, Any]) -> dict[str, np.ndarray]:
    """The vectors of this origin that are kept, by the hash of their text."""
    try:
        file = lake.open(VECTORS, key)
        if json.loads((file.schema_arrow.metadata or {}).get(b"agent_pipeline", b"{}")) != origin:
            return {}
        table = file.read()
    except (DataError, pa.ArrowException):
        return {}
    values = table["vector"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
    return dict(zip(table["text_sha256"].to_pylist(), values, strict=True))
