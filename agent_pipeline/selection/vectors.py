"""Embeddings that stay in the lake from night to night, by the hash of the text: a night computes only what is new.

Vectors can be compared only within one space, so the space is kept too (`tables/embedding_space`), and new texts are placed in it. It is
fitted anew, and every vector with it, when there are twice as many texts as it was fitted to: the cost a row stays constant, and it
never describes a small part of what there is. What is kept is a cache, and only of texts that are there now: a forgotten session's vector
goes with it, and a damaged or deleted file is made again.
"""

import json
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from agent_pipeline.errors import DataError
from agent_pipeline.lake import Lake
from agent_pipeline.selection.embeddings import DIMENSIONS, Space, fit
from agent_pipeline.traces.partitions import PartitionKey
from agent_pipeline.traces.session import sha256_of

if TYPE_CHECKING:
    import numpy as np

FORM = "hashed words 1"
"""What the vectors are made by: raise the number when `embeddings` changes, and the kept ones no longer count."""

GROWTH = 2
SPACE, VECTORS = "embedding_space", "embeddings"


class KeptEmbeddings:
    """Embeds texts (it is an `Embed`), keeping vectors in the lake. `counts` says how many were `computed`, and how many were `kept` from
    before this object was made; `fitted`, how often a space was."""

    def __init__(self, lake: Lake, key: PartitionKey | None, seed: int = 0, dimensions: int = DIMENSIONS) -> None:
        self._lake, self._key = lake, key
        self._origin = {"form": FORM, "seed": seed, "dimensions": dimensions}
        self._seed, self._dimensions = seed, dimensions
        self.counts: Counter[str] = Counter()
        self._counted: set[str] = set()

    def __call__(self, texts: Sequence[str]) -> "np.ndarray":
        """(n, d) float32 of length one, or zero for texts without words; keeps exactly these texts' vectors."""
        import numpy as np

        names = [sha256_of(text) for text in texts]
        distinct = dict(zip(names, texts, strict=True))
        space, origin = self._space(distinct)
        known = {name: vector for name, vector in self._vectors(origin).items() if name in distinct}
        new = dict.fromkeys(name for name in distinct if name not in known)
        if new:
            known |= zip(new, space.vectors([distinct[name] for name in new]), strict=True)
        self.counts.update("computed" if name in new else "kept" for name in distinct if name not in self._counted)
        self._counted.update(distinct)
        if new or self.counts["stored"] != len(known):
            self._store_vectors(known, origin)
            self.counts["stored"] = len(known)
        return np.array([known[name] for name in names], dtype=np.float32).reshape(len(names), space.dimensions)

    def _space(self, texts: dict[str, str]) -> tuple[Space, dict[str, Any]]:
        """The kept space, or a new one; and its origin, by which vectors say that they are of it."""
        kept, found = self._read(SPACE)
        if kept is not None and found.items() >= self._origin.items() and len(texts) < GROWTH * max(int(found["fitted_to"]), 1):
            return _space_of(kept), found
        self.counts["fitted"] += 1
        # Sorted, so that the space does not depend on the order in which rows come.
        space = fit([texts[name] for name in sorted(texts)], self._seed, self._dimensions)
        origin = self._origin | {"fitted_to": len(texts), "texts": sha256_of(sorted(texts))}
        self._write(SPACE, _space_table(space), origin)
        return space, origin

    def _vectors(self, origin: dict[str, Any]) -> "dict[str, np.ndarray]":
        import numpy as np

        kept, found = self._read(VECTORS)
        if kept is None or found != origin or not len(kept):
            return {}
        values = kept["vector"].combine_chunks().flatten().to_numpy()
        self.counts["stored"] = len(kept)
        return dict(zip(kept["text_sha256"].to_pylist(), np.reshape(values, (len(kept), -1)), strict=True))

    def _store_vectors(self, vectors: "dict[str, np.ndarray]", origin: dict[str, Any]) -> None:
        import numpy as np

        names = sorted(vectors)
        values = np.array([vectors[name] for name in names], dtype=np.float32)
        width = values.shape[1] if len(names) else 1
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
        self._write(VECTORS, pa.table({"text_sha256": pa.array(names, pa.string()), "vector": column}), origin)

    def _read(self, asset: str) -> tuple[pa.Table | None, dict[str, Any]]:
        try:
            file = self._lake.open(asset, self._key)
            metadata = file.schema_arrow.metadata or {}
            return file.read(), json.loads(metadata.get(b"agent_pipeline", b"{}"))
        except (DataError, pa.ArrowException):
            return None, {}

    def _write(self, asset: str, table: pa.Table, origin: dict[str, Any]) -> None:
        schema = table.schema.with_metadata({"agent_pipeline": json.dumps(origin, sort_keys=True)})
        self._lake.stage(asset, self._key, table.cast(schema).to_batches(), schema).commit()


def _space_table(space: Space) -> pa.Table:
    import numpy as np

    count = len(space.directions)
    columns = np.ascontiguousarray(space.directions.T).reshape(-1)
    directions = pa.FixedSizeListArray.from_arrays(pa.array(columns), max(count, 1)) if count else pa.array([], pa.list_(pa.float32(), 1))
    return pa.table({"column": pa.array(space.columns), "weight": pa.array(space.weights), "directions": directions})


def _space_of(table: pa.Table) -> Space:
    import numpy as np

    if not len(table):
        return Space(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros((0, 0)))
    directions = np.reshape(table["directions"].combine_chunks().flatten().to_numpy(), (len(table), -1)).T
    return Space(table["column"].to_numpy(), table["weight"].to_numpy(), np.ascontiguousarray(directions))
