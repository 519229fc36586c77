"""Structure in a cloud of embedded rows: which rows are alone, which belong together, and how a quota is shared out."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

LANDMARKS = 1000
NEIGHBOURS = 5
SPARSEST = 0.03
SMALL = 1_000_000
"""Rows times clusters; up to here exact k-means takes a second, beyond it mini-batches do nearly as well."""

ENOUGH_ROWS = 100
"""Below this, three per cent are a row or two, and "alone" says nothing."""


def neighbourhood(vectors: "np.ndarray", seed: int) -> "np.ndarray":
    """(n,) float32: each row's mean cosine similarity to its 5 nearest landmarks, itself not counted.

    Landmarks are all rows, or a seeded sample of them where there are many: the cost stays linear in n.
    """
    import numpy as np

    n = len(vectors)
    landmarks = np.arange(n) if n <= LANDMARKS else np.sort(np.random.default_rng(seed).choice(n, LANDMARKS, replace=False))
    found = np.zeros(n, dtype=np.float32)
    for start in range(0, n, 2048):
        similar = vectors[start : start + 2048] @ vectors[landmarks].T
        similar[np.arange(start, start + len(similar))[:, None] == landmarks[None, :]] = -np.inf
        k = min(NEIGHBOURS, len(landmarks) - 1)
        found[start : start + len(similar)] = np.partition(similar, -k, axis=1)[:, -k:].mean(axis=1) if k > 0 else 0.0
    return found


def outliers(vectors: "np.ndarray", seed: int, keep: int) -> "np.ndarray":
    """Indices (sorted) of the 3 % of rows that stand most alone; none of few rows, and never so many that fewer than `keep` are left."""
    import numpy as np

    n = len(vectors)
    count = min(int(n * SPARSEST), n - keep) if n >= ENOUGH_ROWS else 0
    return np.sort(np.argsort(neighbourhood(vectors, seed), kind="stable")[: max(count, 0)])


def cluster(vectors: "np.ndarray", k: int, seed: int) -> tuple["np.ndarray", "np.ndarray"]:
    """k-means: (n,) int labels, (n,) float distances to the own centroid. Some of the k clusters may stay empty."""
    import warnings

    import numpy as np
    from sklearn.cluster import KMeans, MiniBatchKMeans
    from sklearn.exceptions import ConvergenceWarning
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than clusters: the caller fills up
        if len(vectors) * k <= SMALL:
            fitted = KMeans(k, random_state=seed, n_init=3).fit(vectors)
        else:
            fitted = MiniBatchKMeans(k, random_state=seed, batch_size=2048, n_init=1).fit(vectors)
        labels = fitted.predict(vectors)
    return labels, np.linalg.norm(vectors - fitted.cluster_centers_[labels], axis=1).round(5)


def farthest(vectors: "np.ndarray", chosen: Sequence[int], allowed: Sequence[int], count: int) -> list[int]:
    """`count` of `allowed`, one after the other the one farthest from everything chosen so far (ties: the lowest index)."""
    import numpy as np

    candidates = np.array(sorted(set(allowed) - set(chosen)), dtype=int)
    if not len(candidates) or count <= 0:
        return []
    near = nearest_distance(vectors[candidates], vectors[list(chosen)]) if len(chosen) else np.full(len(candidates), np.inf)
    found: list[int] = []
    for _ in range(min(count, len(candidates))):
        best = int(near.argmax())
        found.append(int(candidates[best]))
        near = np.minimum(near, np.linalg.norm(vectors[candidates] - vectors[candidates[best]], axis=1))
        near[best] = -1.0
    return found


def nearest_distance(vectors: "np.ndarray", to: "np.ndarray") -> "np.ndarray":
    """(n,) Euclidean distance of each row to the nearest of `to` (m, d), m ≥ 1."""
    from sklearn.metrics import pairwise_distances_argmin_min

    return pairwise_distances_argmin_min(vectors, to)[1]


def apportion(total: int, sizes: Sequence[int], room: Sequence[int]) -> list[int]:
    """Shares `total` out in proportion to `sizes`, none above its `room`; sums to min(total, sum of room).

    Whole parts first, then one each to the largest remainders; what did not fit goes round again.
    """
    shares = [0] * len(sizes)
    while (left := min(total, sum(room)) - sum(shares)) > 0:
        open_ = [i for i in range(len(sizes)) if shares[i] < room[i]]
        weight = sum(sizes[i] for i in open_)
        exact = {i: left * sizes[i] / weight for i in open_}
        for i in open_:
            shares[i] += min(int(exact[i]), room[i] - shares[i])
        left = min(total, sum(room)) - sum(shares)
        for i in sorted(open_, key=lambda i: (int(exact[i]) - exact[i], i)):
            if left and shares[i] < room[i]:
                shares[i] += 1
                left -= 1
    return shares
