"""How well chosen rows stand for all rows, against chance: a coreset no nearer to the rest than a random one is not worth its trouble."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.selection.clusters import nearest_distance, sample
from agent_pipeline.selection.coresets import Choice
from agent_pipeline.selection.embeddings import Embed, conversation_text, embed
from agent_pipeline.sessions.session import tool_calls

if TYPE_CHECKING:
    import numpy as np

RANDOM_DRAWS = 5
QUANTILES = (0.1, 0.5, 0.9, 0.99)


def coverage(rows: Sequence[Mapping[str, Any]], choices: Sequence[Choice], seed: int = 0, vectors: Embed | None = None) -> dict[str, float]:
    """Euclidean distance (0 to 2, rows lie on the unit sphere) of all rows to the nearest chosen one.

    `mean_distance`, `p99_distance`: of `choices`; `random_…`: of random choices of the same size, mean of five draws; `gain`: how much
    smaller our mean is, as a share of the random one (negative: worse than chance; 0 where random choices cover everything).

    Raises `DataError` where nothing is chosen.
    """
    rows = sorted(rows, key=lambda row: row["row_id"])
    placed = (vectors or (lambda texts: embed(texts, seed)))([conversation_text(row["messages"]) for row in rows])
    ids = {choice.row_id for choice in choices if choice.chosen}
    return coverage_of(placed, [index for index, row in enumerate(rows) if row["row_id"] in ids], seed)


def coverage_of(vectors: "np.ndarray", chosen: Sequence[int], seed: int = 0) -> dict[str, float]:
    """The same of embeddings (n, d) and the indices of the chosen rows."""
    import numpy as np

    if not len(chosen):
        raise DataError("The coverage of a coreset without rows can't be told: choose at least one row.")

    def measured(indices: "Sequence[int] | np.ndarray") -> tuple[float, float]:
        distances = nearest_distance(vectors, vectors[indices])
        return float(distances.mean()), float(np.quantile(distances, 0.99))

    ours = measured(chosen)
    chance = np.mean([measured(sample(len(vectors), len(chosen), seed + 1 + draw)) for draw in range(RANDOM_DRAWS)], axis=0)
    return {
        "mean_distance": round(ours[0], 5),
        "p99_distance": round(ours[1], 5),
        "random_mean_distance": round(float(chance[0]), 5),
        "random_p99_distance": round(float(chance[1]), 5),
        "gain": round(1 - ours[0] / float(chance[0]), 5) if chance[0] > 1e-9 else 0.0,
    }


def covered(rows: Sequence[Mapping[str, Any]], choices: Sequence[Choice]) -> dict[str, tuple[int, int]]:
    """`tools` called and `tasks` worked on: how many of them the chosen rows have, of how many that all rows have."""
    ids = {choice.row_id for choice in choices if choice.chosen}
    sets: dict[str, tuple[set[str], set[str]]] = {"tools": (set(), set()), "tasks": (set(), set())}
    for row in rows:
        names = {"tools": {name for name, _ in tool_calls(row["messages"])}, "tasks": {row["task_key"]} if row.get("task_key") else set()}
        for kind, found in names.items():
            sets[kind][1].update(found)
            if row["row_id"] in ids:
                sets[kind][0].update(found)
    return {kind: (len(ours), len(everything)) for kind, (ours, everything) in sets.items()}


def quantiles(values: Sequence[float | None]) -> dict[str, float | None]:
    """p10, p50, p90 and p99 of the numbers among `values`; null where there is none."""
    import numpy as np

    known = [value for value in values if value is not None]
    return {f"p{round(100 * q)}": float(np.quantile(known, q)) if known else None for q in QUANTILES}


def flat(vectors: "np.ndarray", seed: int = 0) -> "np.ndarray":
    """(n, 2): the two directions in which embeddings (n, d) vary most (PCA), for a map."""
    import numpy as np
    from sklearn.decomposition import PCA
    from threadpoolctl import threadpool_limits

    n, d = vectors.shape
    if min(n, d) < 2:
        return np.column_stack([vectors[:, 0], np.zeros(n)]) if n else np.zeros((0, 2))
    with threadpool_limits(1):
        return PCA(2, random_state=seed).fit(vectors[sample(n, 20_000, seed)]).transform(vectors)
