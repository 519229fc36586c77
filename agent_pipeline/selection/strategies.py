"""The strategies: each ranks distinct rows, says why each was taken, and why each of the others was not.

A strategy sees a `Pool` whose rows are distinct and sorted by id, so nothing here depends on the order of the input.
"""

import hashlib
import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from agent_pipeline.errors import DataError
from agent_pipeline.selection.clusters import apportion, cluster, farthest, outliers
from agent_pipeline.selection.embeddings import embed

if TYPE_CHECKING:
    import numpy as np

LOSS_RATIO = 0.6
LOSS_CAP = 0.95
"""Quantile above which a higher loss is no stronger reason: the very highest are often noise no model should learn."""


class Pool:
    """What a strategy chooses from: `ids` (sorted, distinct rows), their `texts`, their `losses` (None: unknown)."""

    def __init__(
        self, ids: list[str], texts: list[str], losses: list[float | None] | None, seed: int, size: int, loss_ratio: float = LOSS_RATIO
    ):
        self.ids, self.texts, self.seed, self.size, self.loss_ratio = ids, texts, seed, size, loss_ratio
        self._losses: list[float | None] = losses or [None] * len(ids)

    @cached_property
    def vectors(self) -> "np.ndarray":
        """(n, d) float32, computed when a strategy first asks."""
        return embed(self.texts, self.seed)

    def with_loss(self, strategy: str) -> list[int]:
        """Indices of rows that have a loss. Raises `DataError` where none has."""
        found = [i for i, loss in enumerate(self._losses) if usable(loss)]
        if not found:
            raise DataError(
                f"The coreset strategy '{strategy}' needs a loss for each row and has none: compute the losses first, or "
                "choose 'diversity' or 'random'."
            )
        return found

    def loss(self, index: int) -> float:
        """The loss of a row that `with_loss` gave."""
        loss = self._losses[index]
        assert loss is not None
        return loss


class Ranking:
    """`picks`: (index, score, reason) from the first choice on; `passed`: reasons of rows not picked, where there is a special one."""

    def __init__(self, otherwise: str):
        self.otherwise = otherwise
        self.picks: list[tuple[int, float, str]] = []
        self.passed: dict[int, str] = {}

    @property
    def picked(self) -> list[int]:
        return [index for index, _, _ in self.picks]


def usable(loss: float | None) -> bool:
    """Null is not zero, and what is not a number is no loss either."""
    return loss is not None and math.isfinite(loss)


def random_rows(pool: Pool) -> Ranking:
    """By a hash of seed and row id: a row's place does not depend on the others, so adding rows changes few choices."""
    ranking = Ranking("its place in the seeded order comes after the last one taken")
    hashes = [hashlib.sha256(f"{pool.seed}\0{row_id}".encode()).digest() for row_id in pool.ids]
    for index in sorted(range(len(hashes)), key=lambda i: (hashes[i], i))[: pool.size]:
        ranking.picks.append((index, int.from_bytes(hashes[index][:6]) / 2**48, "drawn by the seed"))
    return ranking


def diversity(pool: Pool) -> Ranking:
    """One row for each of `size` clusters, the nearest to its centre; what stands most alone is set aside first."""
    import numpy as np

    ranking = Ranking("its cluster has a nearer row to its centre")
    alone = outliers(pool.vectors, pool.seed, keep=pool.size)
    for index in alone.tolist():
        ranking.passed[index] = "outlier: among the 3 % of rows least like their nearest ones"
    left = np.setdiff1d(np.arange(len(pool.ids)), alone)
    labels, distances = cluster(pool.vectors[left], min(pool.size, len(left)), pool.seed)
    for members in _members(labels):
        best = min(members, key=lambda i: (distances[i], i))
        ranking.picks.append((int(left[best]), float(len(members)), f"nearest to the centre of a cluster of {len(members)} rows"))
    # The largest cluster first: cutting the list later keeps what stands for most.
    ranking.picks.sort(key=lambda pick: (-pick[1], pick[0]))
    # Clusters that stayed empty (near-duplicates share one) leave places for what is farthest from all that is chosen.
    for index in farthest(pool.vectors, ranking.picked, left.tolist(), pool.size - len(ranking.picks)):
        ranking.picks.append((index, 1.0, "farthest from the rows chosen before"))
    return ranking


def loss_topk(pool: Pool) -> Ranking:
    """The rows the model finds hardest."""
    ranking = Ranking("its loss is lower than that of every chosen row")
    found = sorted(pool.with_loss("loss_topk"), key=lambda i: (-pool.loss(i), i))
    ranking.passed = _without_loss(pool, found)
    for place, index in enumerate(found[: pool.size], 1):
        ranking.picks.append((index, pool.loss(index), f"loss {pool.loss(index):.3f}, the {place}. highest of {len(found)}"))
    return ranking


def hybrid(pool: Pool) -> Ranking:
    """Every cluster gets its share; `loss_ratio` of all picks are a cluster's hardest rows, the rest its most typical ones."""
    import numpy as np

    ranking = Ranking("its cluster's share went to harder and to more typical rows")
    found = np.array(pool.with_loss("hybrid"))
    ranking.passed = _without_loss(pool, found.tolist())
    size = min(pool.size, len(found))
    cap = float(np.quantile([pool.loss(i) for i in found], LOSS_CAP))
    labels, distances = cluster(pool.vectors[found], min(size, max(2, math.isqrt(len(found))), len(found)), pool.seed)
    groups = _members(labels)
    sizes = [len(members) for members in groups]
    by_loss = apportion(round(pool.loss_ratio * size), sizes, sizes)
    room = [a - b for a, b in zip(sizes, by_loss, strict=True)]
    typical = apportion(size - sum(by_loss), sizes, room)
    for members, hard, near in zip(groups, by_loss, typical, strict=True):
        hardest = sorted(members, key=lambda i: (-min(pool.loss(int(found[i])), cap), distances[i], i))
        for i in hardest[:hard]:
            ranking.picks.append(
                (
                    int(found[i]),
                    pool.loss(int(found[i])),
                    f"loss {pool.loss(int(found[i])):.3f}, among the highest of its cluster of {len(members)} rows",
                )
            )
        nearest = sorted(hardest[hard:], key=lambda i: (distances[i], i))
        for i in nearest[:near]:
            ranking.picks.append((int(found[i]), pool.loss(int(found[i])), f"typical of its cluster of {len(members)} rows"))
    ranking.picks.sort(key=lambda pick: (-pick[1], pick[0]))
    return ranking


STRATEGIES: dict[str, Callable[[Pool], Ranking]] = {
    "hybrid": hybrid,
    "diversity": diversity,
    "loss_topk": loss_topk,
    "random": random_rows,
}
NEED_LOSSES = ("hybrid", "loss_topk")


def _members(labels: "np.ndarray") -> list[list[int]]:
    """Clusters that have members, in the order of their first ones, so that k-means's own numbering does not matter."""
    groups: dict[int, list[int]] = {}
    for index, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(index)
    return list(groups.values())


def _without_loss(pool: Pool, found: list[int]) -> dict[int, str]:
    return dict.fromkeys(set(range(len(pool.ids))) - set(found), "it has no loss: null is not zero")
