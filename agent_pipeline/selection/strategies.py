"""The strategies of selection, by name.

A strategy ranks distinct rows, and gives a reason for each row. A name refers to a strategy in this
module, to a strategy of an installed package (entry points of the group
`agent_pipeline.strategies`), or to a dotted path. docs/explanation/selection.md describes when to
use each strategy. The types of a strategy's input and output belong to `pool`.
"""

import hashlib

import numpy as np

from agent_pipeline.errors import SettingsError
from agent_pipeline.plugins import load_plugin
from agent_pipeline.selection.clusters import apportion, cluster, find_farthest, find_outliers
from agent_pipeline.selection.pool import Pick, Pool, Ranking, Reason, Strategy

LOSS_CAP = 0.95
"""Quantile of the losses above which all losses count the same. The highest losses are often noise
that a model should not learn.
"""


def rank_randomly(pool: Pool) -> Ranking:
    """Choose rows at random, so that each group's share is proportional to the group's size.

    The order is a hash of the seed and the row id. A row's position does not depend on other rows,
    so adding rows changes few choices.
    """
    ranking = Ranking()
    strata: dict[str, list[int]] = {}
    for index in range(len(pool.ids)):
        strata.setdefault(pool.groups[index] if pool.groups else "", []).append(index)
    sizes = [len(strata[name]) for name in sorted(strata)]
    for name, share in zip(sorted(strata), apportion(pool.size, sizes), strict=True):
        positions = sorted((_hash_id(pool, index), index) for index in strata[name])
        for position, index in positions[:share]:
            ranking.take(index, position, Reason.DRAWN)
    ranking.picks.sort(key=lambda pick: (pick.score or 0.0, pick.index))
    return ranking


def rank_by_diversity(pool: Pool) -> Ranking:
    """Choose the row that is nearest to the center of each of `size` clusters, without outliers.

    The score of a pick is the size of its cluster.
    """
    ranking = Ranking()
    rows, clusters = _find_clusters(pool, ranking)
    for members in clusters:
        ranking.take(rows[members[0]], len(members), Reason.CLUSTER_CENTRE)
    # The largest cluster comes first, so that a list that is cut later keeps the rows that
    # represent the most rows.
    ranking.picks.sort(key=_sort_by_score)
    return _fill(pool, ranking, rows)


def rank_by_loss_and_diversity(pool: Pool) -> Ranking:
    """Choose rows from the clusters of `rank_by_diversity`, some of them by their loss.

    The share `loss_ratio` of the picks are the rows with the highest losses of their clusters.
    Losses above the 95th percentile count as the 95th percentile. The other picks are the rows
    nearest to their centers. The score of a pick is its loss.
    """
    ranking = Ranking()
    losses, known = pool.known_losses, pool.list_with_loss("hybrid")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), Reason.NO_LOSS)
    capped = np.minimum(losses, np.quantile(losses[known], LOSS_CAP))
    among, clusters = _find_clusters(pool, ranking, known)
    # The cluster in which the hardest row exceeds the typical row most comes first. A pick by loss
    # is wasted on a cluster of equal rows.
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
    ranking.picks.sort(key=_sort_by_score)
    return ranking


def rank_by_loss(pool: Pool) -> Ranking:
    """Choose the rows with the highest losses.

    The score of a pick is its loss.
    """
    ranking = Ranking()
    losses, known = pool.known_losses, pool.list_with_loss("loss_topk")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), Reason.NO_LOSS)
    for index in known[np.lexsort((known, -losses[known]))][: pool.size]:
        ranking.take(index, losses[index], Reason.HIGH_LOSS)
    return ranking


STRATEGIES: dict[str, Strategy] = {
    "hybrid": Strategy(rank_by_loss_and_diversity, needs_losses=True),
    "diversity": Strategy(rank_by_diversity),
    "loss_topk": Strategy(
        rank_by_loss,
        needs_losses=True,
        warning=(
            "it often chooses noise: in a test with 2 % noise, a third of the chosen rows were "
            "noise; 'diversity' avoids noise"
        ),
    ),
    "random": Strategy(rank_randomly),
}


def load_strategy(name: str) -> Strategy:
    """Return the selection strategy with a given name.

    Args:
        name: A name in `STRATEGIES`, of an entry point, or `package.module:name` of a `Strategy` or
            of a function of a `Pool`.

    Raises:
        SettingsError: there is no such strategy, or it cannot be loaded.
    """
    if name in STRATEGIES:
        return STRATEGIES[name]
    loaded = load_plugin(name, "coreset strategy", "agent_pipeline.strategies", STRATEGIES)
    if isinstance(loaded, Strategy):
        return loaded
    if not callable(loaded):
        raise SettingsError(
            f"The coreset strategy '{name}' is of type {type(loaded).__name__}: pass a function "
            "that takes a Pool."
        )
    return Strategy(loaded)


def _sort_by_score(pick: Pick) -> tuple[float, int]:
    """Return the key by which picked rows are sorted.

    The key sorts by score, highest first, and then by index.
    """
    return (-(pick.score or 0), pick.index)


def _find_clusters(
    pool: Pool, ranking: Ranking, among: np.ndarray | None = None
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Cluster the rows that are not outliers, and record that the outliers are not picked.

    Args:
        pool: The rows.
        ranking: The choice so far.
        among: The indices of the rows to cluster. None means all rows.

    Returns:
        The indices of the rows that are not outliers, and the positions of each cluster among these
        rows.
    """
    rows = np.arange(len(pool.ids)) if among is None else among
    has_all = len(rows) == len(pool.ids)  # avoids a copy of all embeddings
    vectors = pool.embeddings if has_all else pool.embeddings[rows]
    outliers = rows[find_outliers(vectors, pool.seed, keep=pool.size)]
    ranking.pass_over(outliers, Reason.OUTLIER)
    rows = np.setdiff1d(rows, outliers)
    return rows, cluster(pool.embeddings[rows], min(pool.size, len(rows)), pool.seed)


def _fill(pool: Pool, ranking: Ranking, rows: np.ndarray) -> Ranking:
    """Fill the ranking with the rows that are farthest from all rows chosen so far.

    There is room if a cluster stayed empty. Rows with the same embedding as a chosen row are passed
    over even if there is room, because they would teach the same.

    Args:
        pool: All rows.
        ranking: The choice so far.
        rows: The indices of the rows that may be chosen.
    """
    room = min(pool.size, len(rows)) - len(ranking.picks)
    if room > 0:
        positions = {row: position for position, row in enumerate(rows.tolist())}
        chosen = [positions[row] for row in ranking.picked]
        for position, distance in find_farthest(pool.embeddings[rows], room, chosen):
            ranking.take(rows[position], distance, Reason.FARTHEST)
    if len(ranking.picks) < pool.size:
        ranking.pass_over(np.setdiff1d(rows, ranking.picked), Reason.SAME_EMBEDDING)
    return ranking


def _hash_id(pool: Pool, index: int) -> float:
    """Return a number in [0, 1) that is a uniform hash of the seed and the row's id."""
    digest = hashlib.sha256(f"{pool.seed}\0{pool.ids[index]}".encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48
