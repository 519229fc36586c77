"""Structure in a set of embedded rows: outliers, clusters, distant rows, and coverage.

The time of each function is linear in the number of rows, and memory stays constant. scikit-learn
computes each block of distances in one thread, so the same input gives the same choice on any
number of cores. Computing vectors belongs to `embeddings`.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from agent_pipeline.datasets.mixing import round_by_largest_remainder
from agent_pipeline.errors import DataError

MAX_LANDMARKS = 4096
NEIGHBOURS = 5
OUTLIER_SHARE = 0.03
SAME_DISTANCE = 1e-3
"""Distance up to which two vectors count as equal, because embeddings are rounded."""

MAX_EXACT = 1_000_000
"""Product of rows and clusters up to which exact k-means is used. Exact k-means then takes about a
second. For larger products, mini-batches give nearly the same quality.
"""

ROWS_PER_CLUSTER = 64
"""Number of rows per cluster in the seeded sample for mini-batches. More rows barely change the
cluster centers.
"""

MANY_CLUSTERS = 2048

RANDOM_DRAWS = 5
MIN_ROWS_WITH_OUTLIERS = 100
"""Minimum number of rows for an outlier search. Three percent of fewer rows would be only one or
two rows.
"""


def draw_sample(n: int, size: int, seed: int) -> np.ndarray:
    """Draw a seeded sample of the numbers from 0 to n - 1.

    Args:
        n: How many numbers there are to draw from.
        size: The size of the sample. If there are not more numbers, all are drawn.
        seed: The seed.

    Returns:
        (min(n, size),) int, sorted.
    """
    if n <= size:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, size, replace=False))


def measure_neighbourhood(vectors: np.ndarray, seed: int) -> np.ndarray:
    """Return the similarity of each row to its nearest rows.

    The rows are compared with landmarks: all rows, or a seeded sample if there are many. The time
    therefore stays linear in n.

    Args:
        vectors: (n, d) float.
        seed: The seed of the sample.

    Returns:
        (n,) the rounded mean dot product of each row with its 5 nearest landmarks, excluding the
        row itself.
    """
    from sklearn.neighbors import NearestNeighbors

    landmarks = draw_sample(len(vectors), MAX_LANDMARKS, seed)
    neighbours = min(NEIGHBOURS, len(landmarks) - 1)
    if neighbours < 1:
        return np.zeros(len(vectors))
    distances, nearest = (
        NearestNeighbors(n_neighbors=neighbours + 1, algorithm="brute")
        .fit(vectors[landmarks])
        .kneighbors(vectors)
    )
    squares = np.einsum("ij,ij->i", vectors, vectors)
    similar = (squares[:, None] + squares[landmarks][nearest] - distances**2) / 2
    # The nearest landmark of a landmark is itself, or an equal row.
    is_landmark = np.isin(np.arange(len(vectors)), landmarks)
    of_landmarks, of_others = similar[:, 1:].mean(axis=1), similar[:, :-1].mean(axis=1)
    similarities: np.ndarray = np.where(is_landmark, of_landmarks, of_others).round(5)
    return similarities


def find_outliers(vectors: np.ndarray, seed: int, keep: int) -> np.ndarray:
    """Find the 3 % of the rows that are least similar to their nearest rows.

    If there are few rows, none of them counts as an outlier.

    Args:
        vectors: (n, d) float.
        seed: The seed of the sample of landmarks.
        keep: Minimum number of rows that must remain.

    Returns:
        (outliers,) int, the indices of the outliers, sorted.
    """
    n = len(vectors)
    count = min(int(n * OUTLIER_SHARE), n - keep) if n >= MIN_ROWS_WITH_OUTLIERS else 0
    if count <= 0:
        return np.zeros(0, dtype=int)
    return np.sort(np.argsort(measure_neighbourhood(vectors, seed), kind="stable")[:count])


def cluster(vectors: np.ndarray, k: int, seed: int) -> list[np.ndarray]:
    """Cluster rows by k-means.

    Args:
        vectors: (n, d) float32.
        k: The number of centers.
        seed: The seed of k-means.

    Returns:
        The row indices of each non-empty cluster. Within a cluster, the row nearest to the center
        comes first, then the lowest index. Clusters are ordered by their lowest row, so k-means's
        own numbering does not matter.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    labels, distances = pairwise_distances_argmin_min(
        vectors, _find_centres(vectors, k, seed).astype(np.float32)
    )
    distances = distances.round(5)
    order = np.lexsort((distances, labels))
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    return sorted(groups, key=lambda members: int(members.min()))


def _find_centres(vectors: np.ndarray, k: int, seed: int) -> Any:
    """Return the (k, d) cluster centers of (n, d) vectors."""
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        # If there are fewer distinct vectors than clusters, the caller fills up the choice.
        warnings.simplefilter("ignore", ConvergenceWarning)
        if len(vectors) * k <= MAX_EXACT:
            return KMeans(k, random_state=seed, n_init=3).fit(vectors).cluster_centers_
        seen = vectors[draw_sample(len(vectors), ROWS_PER_CLUSTER * k, seed)]
        # k-means++ needs k passes over its rows. With many centers, a random start is equally good.
        has_many = k > MANY_CLUSTERS
        model = MiniBatchKMeans(
            k,
            init="random" if has_many else "k-means++",
            random_state=seed,
            batch_size=max(2048, 2 * k),
            n_init=1,
            max_iter=3 if has_many else 10,
            compute_labels=False,
        )
        return model.fit(seen).cluster_centers_


def measure_nearest(vectors: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return the Euclidean distance of each row to the nearest target.

    Args:
        vectors: (n, d) float.
        targets: (m, d) float, m ≥ 1.

    Returns:
        (n,) float.
    """
    from sklearn.metrics import pairwise_distances_argmin_min

    distances = pairwise_distances_argmin_min(vectors, targets)[1]
    return np.where(distances > SAME_DISTANCE, distances, 0)


def find_farthest(
    vectors: np.ndarray, count: int, chosen: Sequence[int]
) -> list[tuple[int, float]]:
    """Find rows one after another, so that each row is the farthest from all rows found before it.

    This is greedy k-center (Gonzalez 1985). The search ends early if every remaining row equals a
    chosen row.

    Args:
        vectors: (n, d) float, unit vectors.
        count: Maximum number of rows.
        chosen: The indices of the rows that are already chosen.

    Returns:
        The index of each row, and its Euclidean distance to the rows chosen before it.
    """
    picks: list[tuple[int, float]] = []
    nearest = measure_nearest(vectors, vectors[list(chosen)])
    while len(picks) < count:
        row = int(nearest.argmax())
        if nearest[row] == 0:
            break
        picks.append((row, float(nearest[row])))
        np.minimum(nearest, measure_nearest(vectors, vectors[row : row + 1]), out=nearest)
    return picks


def apportion(total: int, room: Sequence[int]) -> list[int]:
    """Divide `total` among groups in proportion to the `room` of each group.

    No part is larger than its room, and ties go to the first part. The parts add up to `total`, or
    to the sum of `room` if that is smaller.
    """
    whole = sum(room)
    shares = {index: Fraction(size, whole or 1) for index, size in enumerate(room)}
    return list(round_by_largest_remainder(min(total, whole), shares).values())


@dataclass(frozen=True)
class Coverage:
    """The distances of all rows to the chosen rows, compared with random choices of equal size.

    Distances are Euclidean, 0 to 2. The figures of random choices are means of five draws.

    Attributes:
        mean_distance: Mean distance of a row to the nearest chosen row.
        p99_distance: 99th percentile of these distances.
        random_mean_distance: Mean distance to the nearest row of a random choice.
        random_p99_distance: 99th percentile of these distances.
        gain: The share by which the mean distance is smaller than for random choices. It is
            negative if the choice is worse than chance, and 0 if random choices cover everything.
    """

    mean_distance: float
    p99_distance: float
    random_mean_distance: float
    random_p99_distance: float
    gain: float


def measure_coverage(vectors: np.ndarray, chosen: Sequence[int], seed: int = 0) -> Coverage:
    """Measure how well the chosen rows cover all rows.

    A coreset is not worth its effort if it is no nearer to the other rows than a random choice.

    Args:
        vectors: (n, d) float, unit vectors.
        chosen: The indices of the chosen rows.
        seed: The seed of the random choices.

    Raises:
        DataError: no row is chosen.
    """
    if not len(chosen):
        raise DataError(
            "The coverage of a coreset cannot be computed without rows: choose at least one row."
        )

    def measure(indices: Sequence[int] | np.ndarray) -> tuple[float, float]:
        distances = measure_nearest(vectors, vectors[indices])
        return float(distances.mean()), float(np.quantile(distances, 0.99))

    mean, p99 = measure(chosen)
    draws = [
        measure(draw_sample(len(vectors), len(chosen), seed + 1 + draw))
        for draw in range(RANDOM_DRAWS)
    ]
    random_mean, random_p99 = (float(value) for value in np.mean(draws, axis=0))
    return Coverage(
        mean_distance=round(mean, 5),
        p99_distance=round(p99, 5),
        random_mean_distance=round(random_mean, 5),
        random_p99_distance=round(random_p99, 5),
        gain=round(1 - mean / random_mean, 5) if random_mean > SAME_DISTANCE else 0.0,
    )
