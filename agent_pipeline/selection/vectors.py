"""Embeddings that stay in the lake from night to night, by the hash of the text: a night computes only what is new.

Vectors can be compared only within one space, so the space is kept too (`tables/embedding_space`), and new texts are placed in it. It is
fitted anew, and every vector with it, when there are twice as many texts as it was fitted to: the cost a row stays constant, and it
never describes a small part of what there is. A model's vectors (`Encoder`) are of one space as they are. What is kept is a cache, and only
of texts that are there now, by the embeddings that were last asked for: a forgotten session's vector goes with it, and a damaged or deleted
file is made again.
"""

import json
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.embeddings import DIMENSIONS, Embed, Encoder, Space, fit
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.lake import Lake

if TYPE_CHECKING:
    import numpy as np

FORM = "hashed words 2"
"""What the vectors are made by: raise the number when `embeddings` changes, and the kept ones no longer count."""

GROWTH = 2
SPACE, VECTORS = "embedding_space", "embeddings"


class KeptEmbeddings:
    """Embeds texts (it is an `Embed`), keeping vectors in the lake. `counts` says how many were `computed`, and how many were `kept` from
    before this object was made; `fitted`, how often a space was."""

    def __init__(
        self, lake: Lake, key: PartitionKey | None, seed: int = 0, dimensions: int = DIMENSIONS, encoder: Encoder | None = None
    ) -> None:
        self._lake, self._key, self._encoder = lake, key, encoder
        self._origin = {"form": FORM, "seed": seed, "dimensions": dimensions}
        self._seed, self._dimensions = seed, dimensions
        self.counts: Counter[str] = Counter()

    def __call__(self, texts: Sequence[str]) -> "np.ndarray":
        """(n, d) float32 of length one, or zero for texts without words; keeps exactly these texts' vectors."""
        names = [sha256_of(text) for text in texts]
        distinct = dict(zip(names, texts, strict=True))
        place, origin = (self._encoder.vectors, self._encoder.origin) if self._encoder else self._space(distinct)
        kept = kept_vectors(self._lake, self._key, origin)
        self.counts["stored"] = len(kept)
        known = {name: vector for name, vector in kept.items() if name in distinct}
        new = [name for name in distinct if name not in known]
        if new:
            known |= zip(new, place([distinct[name] for name in new]), strict=True)
        self.counts.update(computed=len(new), kept=len(distinct) - len(new))
        if new or self.counts["stored"] != len(known):
            self._store_vectors(known, origin)
            self.counts["stored"] = len(known)
        return found_among(known, names)

    def _space(self, texts: dict[str, str]) -> tuple[Embed, dict[str, Any]]:
        """The kept space, or a new one; and its origin, by which vectors say that they are of it."""
        kept, found = _read(self._lake, SPACE, self._key)
        if kept is not None and found.items() >= self._origin.items() and len(texts) < GROWTH * max(int(found["fitted_to"]), 1):
            return _space_of(kept).vectors, found
        self.counts["fitted"] += 1
        # Sorted, so that the space does not depend on the order in which rows come.
        space = fit([texts[name] for name in sorted(texts)], self._seed, self._dimensions)
        origin = self._origin | {"fitted_to": len(texts), "texts": sha256_of(sorted(texts))}
        self._write(SPACE, _space_table(space), origin)
        return space.vectors, origin

    def _store_vectors(self, vectors: "dict[str, np.ndarray]", origin: dict[str, Any]) -> None:
        import numpy as np

        names = sorted(vectors)
        values = np.array([vectors[name] for name in names], dtype=np.float32)
        width = values.shape[1] if len(names) else 1
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), width)
        self._write(VECTORS, pa.table({"text_sha256": pa.array(names, pa.string()), "vector": column}), origin)

    def _write(self, asset: str, table: pa.Table, origin: dict[str, Any]) -> None:
        schema = table.schema.with_metadata({"agent_pipeline": json.dumps(origin, sort_keys=True)})
        self._lake.stage(asset, self._key, table.cast(schema).to_batches(), schema).commit()


class WorkersEmbeddings:
    """Embeds texts (it is an `Embed`) by a model that another process runs: `make` has it put the vectors of all texts into the lake when
    the first are asked for, and returns their `origin` with the numbers `computed` and `kept`."""

    def __init__(self, lake: Lake, key: PartitionKey | None, make: Callable[[], dict[str, Any]]) -> None:
        self._lake, self._key, self._make = lake, key, make
        self._vectors: dict[str, np.ndarray] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, texts: Sequence[str]) -> "np.ndarray":
        """(n, d) float32 of length one."""
        if not self._vectors:
            made = self._make()
            self.counts.update(computed=made["computed"], kept=made["kept"])
            self._vectors = kept_vectors(self._lake, self._key, made["origin"])
        return found_among(self._vectors, [sha256_of(text) for text in texts])


def kept_vectors(lake: Lake, key: PartitionKey | None, origin: dict[str, Any]) -> "dict[str, np.ndarray]":
    """The vectors of this origin that are kept, by the hash of their text."""
    import numpy as np

    kept, found = _read(lake, VECTORS, key)
    if kept is None or found != origin or not len(kept):
        return {}
    values = kept["vector"].combine_chunks().flatten().to_numpy()
    return dict(zip(kept["text_sha256"].to_pylist(), np.reshape(values, (len(kept), -1)), strict=True))


def found_among(vectors: "dict[str, np.ndarray]", names: Sequence[str]) -> "np.ndarray":
    """(n, d) float32: the vectors of these hashes."""
    import numpy as np

    width = len(next(iter(vectors.values()))) if vectors else 1
    return np.array([vectors[name] for name in names], dtype=np.float32).reshape(len(names), width)


def _read(lake: Lake, asset: str, key: PartitionKey | None) -> tuple[pa.Table | None, dict[str, Any]]:
    try:
        file = lake.open(asset, key)
        metadata = file.schema_arrow.metadata or {}
        return file.read(), json.loads(metadata.get(b"agent_pipeline", b"{}"))
    except (DataError, pa.ArrowException):
        return None, {}


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
