"""How well chosen rows stand for all rows, against chance: a coreset no nearer to the rest than a random one is not worth its trouble."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_pipeline.errors import DataError
from agent_pipeline.selection.clusters import nearest_distance, sample

if TYPE_CHECKING:
    import numpy as np

RANDOM_DRAWS = 5


def coverage(vectors: "np.ndarray", chosen: Sequence[int], seed: int = 0) -> dict[str, float]:
    """Euclidean distances (0 to 2) of all unit vectors (n, d) to the nearest chosen one.

    `mean_distance`, `p99_distance`: of the chosen; `random_…`: of random choices of the same size, mean of five draws; `gain`: by what
    share our mean is smaller than the random one (negative: worse than chance; 0 where random choices cover everything).

    Raises:
        DataError: nothing is chosen.
    """
    import numpy as np

    if not len(chosen):
        raise DataError("A coreset without rows covers nothing: choose at least one row.")

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
        "gain": round(1 - ours[0] / float(chance[0]), 5) if chance[0] > 1e-3 else 0.0,
    }
