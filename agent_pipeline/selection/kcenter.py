"""Exact greedy farthest point (k-center, Gonzalez 1985), by matrix products instead of a matrix-vector product a pick.

A row's distance to what is chosen only ever falls. So the next picks are sought in a pool of the rows that were farthest: as long as the
pool's farthest row is at least as far as any row outside was, it is the farthest of all. When it no longer is, the distances of all rows
are brought up to date for all picks of the round at once (one matrix product), and a new pool is drawn. The picks are those of the plain
loop, up to ties within rounding.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agent_pipeline.selection.blocks import each_block

if TYPE_CHECKING:
    import numpy as np

SAME = 1e-6
"""Squared distances up to here are 0: float32 can't tell such rows apart."""

POOL = 2048
FEW_PICKS, POOL_SHARE = 64, 16


def farthest(vectors: "np.ndarray", count: int, chosen: Sequence[int] = ()) -> tuple[list[int], list[float]]:
    """Up to `count` rows of `vectors` (n, d), one after the other the one farthest from all chosen before, and how far it was (Euclidean).

    Starts from `chosen`; without it the first pick is the row nearest the mean, at distance 0. Ends early when every row is at distance 0.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    vectors = np.ascontiguousarray(vectors, dtype=np.float32)
    n = len(vectors)
    picks: list[int] = []
    radii: list[float] = []
    if n == 0 or count <= 0:
        return picks, radii
    near = np.full(n, np.inf, dtype=np.float32)
    fresh = list(chosen)
    if not fresh:
        picks, radii = [_middle(vectors)], [0.0]
        fresh = picks[:]
    size = POOL
    while len(picks) < count:
        update(near, vectors, vectors[fresh])
        near[fresh] = -1.0
        with threadpool_limits(1):  # these products are too small to share out
            found, far = _round(near, vectors, count - len(picks), min(size, n))
        if not found:
            break
        picks += found
        radii += far
        fresh = found
        if len(found) < FEW_PICKS:
            size = min(2 * size, max(POOL, n // POOL_SHARE))
    return picks, radii


def update(near: "np.ndarray", vectors: "np.ndarray", to: "np.ndarray") -> None:
    """Lower `near` (n,), squared distances of `vectors` (n, d) to the nearest chosen row, in place, for the newly chosen `to` (m, d)."""
    import numpy as np

    if not len(to):
        return
    half = np.einsum("ij,ij->i", to, to) / 2
    level = bool(np.ptp(half) <= SAME)  # of rows of one length the nearest is the one with the largest product
    columns = np.ascontiguousarray(to.T)

    def work(part: slice) -> None:
        rows = vectors[part]
        product = rows @ columns
        if not level:
            product -= half
        best = product.max(axis=1)
        if level:
            best -= half[0]
        np.minimum(near[part], np.einsum("ij,ij->i", rows, rows) - 2 * best, out=near[part])

    # Few enough products at a time that they are still in the processor's cache when their largest is looked for.
    each_block(len(vectors), work, rows=max(256, 2**19 // max(len(to), 1)))
    np.maximum(near, 0, out=near)
    near[near <= SAME] = 0


def _round(near: "np.ndarray", vectors: "np.ndarray", count: int, size: int) -> tuple[list[int], list[float]]:
    """Picks that are certain from the `size` farthest rows alone; at least one while any row is not at distance 0."""
    import numpy as np

    n = len(near)
    order = np.argpartition(near, n - size) if size < n else np.arange(n)
    pool = np.sort(order[n - size :])
    bar = float(near[order[: n - size]].max()) if size < n else 0.0
    rows, local = vectors[pool], near[pool].copy()
    squares = np.einsum("ij,ij->i", rows, rows)
    found: list[int] = []
    far: list[float] = []
    while len(found) < count:
        best = int(local.argmax())
        if local[best] <= 0 or (found and local[best] <= bar):
            break
        found.append(int(pool[best]))
        far.append(float(np.sqrt(local[best])))
        to, square = rows[best], squares[best]
        np.minimum(local, squares + square - 2 * (rows @ to), out=local)
        local[best] = -1.0
        local[local <= SAME] = np.minimum(local[local <= SAME], 0)
        if len(found) % 16 == 0:  # what fell behind the bar can't be picked in this round
            alive = local > bar
            if 2 * int(alive.sum()) < len(local):
                pool, rows, local, squares = pool[alive], rows[alive], local[alive], squares[alive]
                if not len(local):
                    break
    return found, far


def _middle(vectors: "np.ndarray") -> int:
    """The row nearest the mean of all (ties: the lowest index)."""
    import numpy as np

    away = vectors - vectors.mean(axis=0, dtype=np.float64).astype(np.float32)
    return int(np.einsum("ij,ij->i", away, away).round(6).argmin())
