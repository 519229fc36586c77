"""The strategies by name: each ranks distinct rows, and says why each row was taken or was not.

Ours, those of installed packages (entry points of the group `agent_pipeline.strategies`), and dotted paths. docs/selection.md says what is
known of ours, and when to use which.
"""

import hashlib

import numpy as np

from agent_pipeline.errors import SettingsError
from agent_pipeline.plugins import load_plugin
from agent_pipeline.selection.clusters import apportion, cluster, farthest, outliers
from agent_pipeline.selection.pool import Pool, Ranking, Reason, Strategy

LOSS_CAP = 0.95
"""Quantile above which a higher loss is not a stronger reason: the very highest are often noise no model should learn."""


def random_rows(pool: Pool) -> Ranking:
    """Stratified by group; within one by a hash of seed and row id.

    A row's place does not depend on the others, so adding rows changes few choices.
    """
    ranking = Ranking()
    strata: dict[str, list[int]] = {}
    for index in range(len(pool.ids)):
        strata.setdefault(pool.groups[index] if pool.groups else "", []).append(index)
    sizes = [len(strata[name]) for name in sorted(strata)]
    for name, share in zip(sorted(strata), apportion(pool.size, sizes), strict=True):
        for place, index in sorted((_place(pool, index), index) for index in strata[name])[:share]:
            ranking.take(index, place, Reason.DRAWN)
    ranking.picks.sort(key=lambda pick: (pick[1], pick[0]))
    return ranking


def diversity(pool: Pool) -> Ranking:
    """One row for each of `size` clusters, the nearest to its centre; the rows that stand most alone are set aside first.

    The score of a pick is the size of its cluster.
    """
    ranking = Ranking()
    rows, clusters = _clusters(pool, ranking)
    for members in clusters:
        ranking.take(rows[members[0]], len(members), Reason.CLUSTER_CENTRE)
    # The largest cluster first: cutting the list later keeps what stands for most.
    ranking.picks.sort(key=lambda pick: (-(pick[1] or 0), pick[0]))
    return _fill(pool, ranking, rows)


def hybrid(pool: Pool) -> Ranking:
    """The clusters of `diversity`; `loss_ratio` of the picks are their clusters' rows of the highest losses (capped at their 95th
    percentile), the others are the nearest to their centres. The score of a pick is its loss."""
    ranking = Ranking()
    losses, known = pool.known_losses, pool.with_loss("hybrid")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), Reason.NO_LOSS)
    capped = np.minimum(losses, np.quantile(losses[known], LOSS_CAP))
    among, clusters = _clusters(pool, ranking, known)
    # First the cluster whose hardest row exceeds its typical row most: a place by loss is wasted on a cluster of equals.
    ordered = sorted(
        clusters,
        key=lambda members: (
            -(capped[among[members]].max() - capped[among[members[0]]]),
            members.min(),
        ),
    )
    size = min(pool.size, len(among))
    room = [len(members) - 1 for members in ordered]
    quotas = [1 + more for more in apportion(size - len(ordered), room)]
    by_loss = apportion(round(pool.loss_ratio * size), quotas)
    for members, quota, hardest in zip(ordered, quotas, by_loss, strict=True):
        rows = among[members]
        hard = rows[np.lexsort((np.arange(len(rows)), -capped[rows]))][:hardest]
        for row in hard:
            ranking.take(row, losses[row], Reason.HIGH_LOSS)
        for row in rows[~np.isin(rows, hard)][: quota - hardest]:
            ranking.take(row, losses[row], Reason.TYPICAL)
    ranking.picks.sort(key=lambda pick: (-(pick[1] or 0), pick[0]))
    return ranking


def loss_topk(pool: Pool) -> Ranking:
    """The rows of the highest losses, which are their scores."""
    ranking = Ranking()
    losses, known = pool.known_losses, pool.with_loss("loss_topk")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), Reason.NO_LOSS)
    for index in known[np.lexsort((known, -losses[known]))][: pool.size]:
        ranking.take(index, losses[index], Reason.HIGH_LOSS)
    return ranking


STRATEGIES: dict[str, Strategy] = {
    "hybrid": Strategy(hybrid, needs_losses=True),
    "diversity": Strategy(diversity),
    "loss_topk": Strategy(
        loss_topk,
        needs_losses=True,
        warning="it picks what is strange: with 2 % of noise in the rows, a third of its picks were noise; 'diversity' sets noise aside",
    ),
    "random": Strategy(random_rows),
}


def strategy(name: str) -> Strategy:
    """The strategy of a name: one of ours, an entry point's, or `package.module:function` (a `Strategy`, or a function of a `Pool`).

    Raises:
        SettingsError: there is none, or it cannot be loaded.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    loaded = load_plugin(name, "coreset strategy", "agent_pipeline.strategies", STRATEGIES)
    if isinstance(loaded, Strategy):
        return loaded
    if not callable(loaded):
        raise SettingsError(
            f"The coreset strategy '{name}' is a {type(loaded).__name__}: give a function of a Pool."
        )
    return Strategy(loaded)


def _clusters(
    pool: Pool, ranking: Ranking, among: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """The rows that do not stand alone, and their clusters, one for each place."""
    rows = np.arange(len(pool.ids)) if among is None else among
    vectors = (
        pool.embeddings if len(rows) == len(pool.ids) else pool.embeddings[rows]
    )  # of all rows no copy is made
    alone = rows[outliers(vectors, pool.seed, keep=pool.size)]
    ranking.pass_over(alone, Reason.OUTLIER)
    rows = np.setdiff1d(rows, alone)
    return rows, cluster(pool.embeddings[rows], min(pool.size, len(rows)), pool.seed)


def _fill(pool: Pool, ranking: Ranking, rows: np.ndarray) -> Ranking:
    """Clusters that stayed empty leave places for the rows that are farthest from all chosen ones.

    Rows that have the embedding of a chosen row are passed over, even where a place is left: they would teach the same.
    """
    if (places := min(pool.size, len(rows)) - len(ranking.picks)) > 0:
        index_of = {row: index for index, row in enumerate(rows.tolist())}
        for index, distance in farthest(
            pool.embeddings[rows], places, [index_of[row] for row in ranking.picked]
        ):
            ranking.take(rows[index], distance, Reason.FARTHEST)
    if len(ranking.picks) < pool.size:
        ranking.pass_over(np.setdiff1d(rows, ranking.picked), Reason.SAME_EMBEDDING)
    return ranking


def _place(pool: Pool, index: int) -> float:
    """Uniform in [0, 1) by a hash of the seed and the row's id."""
    return (
        int.from_bytes(hashlib.sha256(f"{pool.seed}\0{pool.ids[index]}".encode()).digest()[:6])
        / 2**48
    )
