"""Structure in a cloud of embedded rows: which stand alone, which belong together, which are far; how a quota is shared out, and how
well chosen rows stand for all.

All of it is linear in the rows, in flat memory. scikit-learn computes each block of distances in one thread, so the same input gives the
same choice on any number of cores.
"""

import warnings
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from agent_pipeline.datasets.mixing import round_by_largest_remainder
from agent_pipeline.errors import DataError

LANDMARKS = 4096
NEIGHBOURS = 5
SPARSEST = 0.03
SAME = 1e-3
"""Distances up to here are 0: embeddings are rounded."""

SMALL = 1_000_000
"""Rows times clusters; up to here exact k-means takes a second, beyond it mini-batches do nearly as well."""

ROWS_A_CLUSTER = 64
"""Mini-batches see a seeded sample of so many rows for each cluster: more move no centre that matters."""

MANY = 2048

RANDOM_DRAWS = 5
ENOUGH_ROWS = 100
"""Below this, three per cent are a row or two, and "alone" says nothing."""


def sample(n: int, size: int, seed: int) -> np.ndarray:
    """Sorted indices of a seeded sample of 0..n-1; all of them where `size` is as large."""
    return (
        np.arange(n)
        if n <= size
        else np.sort(np.random.default_rng(seed).choice(n, size, replace=False))
    )


def neighbourhood(vectors: np.ndarray, seed: int) -> np.ndarray:
    """(n,) each row's mean dot product with its 5 nearest landmarks, itself not counted, rounded.

    Landmarks are all rows, or a seeded sample of them where there are many: the cost stays linear in n.
    """
    from sklearn.neighbors import NearestNeighbors

    landmarks = sample(len(vectors), LANDMARKS, seed)
    if (k := min(NEIGHBOURS, len(landmarks) - 1)) < 1:
        return np.zeros(len(vectors))
    distances, nearest = (
        NearestNeighbors(n_neighbors=k + 1, algorithm="brute")
        .fit(vectors[landmarks])
        .kneighbors(vectors)
    )
    squares = np.einsum("ij,ij->i", vectors, vectors)
    similar = (squares[:, None] + squares[landmarks][nearest] - distances**2) / 2
    # The nearest landmark of a landmark is itself, or a row that is equal to it.
    own = np.isin(np.arange(len(vectors)), landmarks)
    return np.where(own, similar[:, 1:].mean(axis=1), similar[:, :-1].mean(axis=1)).round(5)


def outliers(vectors: np.ndarray, seed: int, keep: int) -> np.ndarray:
    """Indices (sorted) of the 3 % of rows that stand most alone; none of few rows, and never so many that fewer than `keep` are left."""
    n = len(vectors)
    count = min(int(n * SPARSEST), n - keep) if n >= ENOUGH_ROWS else 0
    if count <= 0:
        return np.zeros(0, dtype=int)
    return np.sort(np.argsort(neighbourhood(vectors, seed), kind="stable")[:count])


def cluster(vectors: np.ndarray, k: int, seed: int) -> list[np.ndarray]:
    """The clusters of k-means that have any rows, at most `k`: arrays of row indices, nearest to the centre first (ties: the lowest index),
    in the order of their lowest rows, so that k-means's own numbering does not matter.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    labels, distances = pairwise_distances_argmin_min(
        vectors, _centres(vectors, k, seed).astype(np.float32)
    )
    distances = distances.round(5)
    order = np.lexsort((distances, labels))
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted(groups, key=lambda members: int(members.min()))


def _centres(vectors: np.ndarray, k: int, seed: int) -> np.ndarray:
    """(k, d) centres."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ConvergenceWarning
        )  # fewer distinct vectors than clusters: the caller fills up
        if len(vectors) * k <= SMALL:
            return KMeans(k, random_state=seed, n_init=3).fit(vectors).cluster_centers_
        seen = vectors[sample(len(vectors), ROWS_A_CLUSTER * k, seed)]
        many = (
            k > MANY
        )  # k-means++ takes k passes over its rows: with many centres a random start does as well
        model = MiniBatchKMeans(
            k,
            init="random" if many else "k-means++",
            random_state=seed,
            batch_size=max(2048, 2 * k),
            n_init=1,
            max_iter=3 if many else 10,
            compute_labels=False,
        )
        return model.fit(seen).cluster_centers_


def nearest_distance(vectors: np.ndarray, to: np.ndarray) -> np.ndarray:
    """(n,) Euclidean distance of each row of `vectors` (n, d) to the nearest of `to` (m, d), m ≥ 1."""
    from sklearn.metrics import pairwise_distances_argmin_min

    distances = pairwise_distances_argmin_min(vectors, to)[1]
    return np.where(distances > SAME, distances, 0)


def farthest(vectors: np.ndarray, count: int, chosen: Sequence[int]) -> list[tuple[int, float]]:
    """Up to `count` of the unit vectors (n, d), each the one farthest from all chosen before, with its Euclidean distance.

    This is greedy k-center (Gonzalez 1985). Ends early when every row has the place of a chosen one.
    """
    picks: list[tuple[int, float]] = []
    nearest = nearest_distance(vectors, vectors[list(chosen)])
    while len(picks) < count:
        row = int(nearest.argmax())
        if nearest[row] == 0:
            break
        picks.append((row, float(nearest[row])))
        np.minimum(nearest, nearest_distance(vectors, vectors[row : row + 1]), out=nearest)
    return picks


def apportion(total: int, room: Sequence[int]) -> list[int]:
    """Shares `total` out in proportion to `room`, none above it; sums to min(total, sum of room). Ties: the first."""
    whole = sum(room)
    shares = {index: Fraction(places, whole or 1) for index, places in enumerate(room)}
    return list(round_by_largest_remainder(min(total, whole), shares).values())


def coverage(vectors: np.ndarray, chosen: Sequence[int], seed: int = 0) -> dict[str, float]:
    """Euclidean distances (0 to 2) of all unit vectors (n, d) to the nearest chosen one, against chance: a coreset no nearer to the rest
    than a random one is not worth its trouble.

    `mean_distance`, `p99_distance`: of the chosen; `random_…`: of random choices of the same size, mean of five draws; `gain`: by what
    share our mean is smaller than the random one (negative: worse than chance; 0 where random choices cover everything).

    Raises:
        DataError: nothing is chosen.
    """
    if not len(chosen):
        raise DataError("A coreset without rows covers nothing: choose at least one row.")

    def measured(indices: Sequence[int] | np.ndarray) -> tuple[float, float]:
        distances = nearest_distance(vectors, vectors[indices])
        return float(distances.mean()), float(np.quantile(distances, 0.99))

    ours = measured(chosen)
    chance = np.mean(
        [
            measured(sample(len(vectors), len(chosen), seed + 1 + draw))
            for draw in range(RANDOM_DRAWS)
        ],
        axis=0,
    )
    return {
        "mean_distance": round(ours[0], 5),
        "p99_distance": round(ours[1], 5),
        "random_mean_distance": round(float(chance[0]), 5),
        "random_p99_distance": round(float(chance[1]), 5),
        "gain": round(1 - ours[0] / float(chance[0]), 5) if chance[0] > 1e-3 else 0.0,
    }
