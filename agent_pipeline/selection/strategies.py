"""The strategies: each ranks distinct rows, says why each was taken, and why each of the others was not.

What is known of them, and when to use which, is in docs/selection.md. `registry` finds them by name.
"""

import hashlib
from typing import TYPE_CHECKING

from agent_pipeline.errors import DataError
from agent_pipeline.selection.clusters import Clusters, apportion, cluster, outliers, sample
from agent_pipeline.selection.kcenter import farthest
from agent_pipeline.selection.pool import Pool, Ranking

if TYPE_CHECKING:
    import numpy as np

LOSS_CAP = 0.95
"""Quantile above which a higher loss is no stronger reason: the very highest are often noise no model should learn."""

NEAR = 0.9
"""deita: rows with a higher cosine similarity to a chosen one add little (Liu et al. 2024)."""

FACILITY_LANDMARKS, FACILITY_MISS = 2048, 0.1
"""facility_location: landmarks that stand for all rows, and how far from greedy a pick may be in expectation, as a share."""

NO_LOSS = "it has no loss: null is not zero"
NO_SCORE = "it has no score: null is not zero"
FAR = "farthest from the rows chosen before"


def random_rows(pool: Pool) -> Ranking:
    """Stratified by group; within one by a hash of seed and row id: a row's place does not depend on the others, so that adding rows
    changes few choices."""
    ranking = Ranking("its place in the seeded order comes after the last one taken")
    strata: dict[str, list[int]] = {}
    for index in range(len(pool.ids)):
        strata.setdefault(pool.groups[index] if pool.groups else "", []).append(index)
    sizes = [len(strata[name]) for name in sorted(strata)]
    for name, share in zip(sorted(strata), apportion(pool.size, sizes, sizes), strict=True):
        places = sorted((_place(pool, index), index) for index in strata[name])
        reason = f"drawn by the seed among {len(places)} rows" + (f" of {name}" if name else "")
        for place, index in places[:share]:
            ranking.take(index, place, reason)
    ranking.picks.sort(key=lambda pick: (pick[1], pick[0]))
    return ranking


def diversity(pool: Pool) -> Ranking:
    """One row for each of `size` clusters, the nearest to its centre; rows judged bad, and those that stand most alone, are set aside
    first."""
    ranking = Ranking("its cluster has a nearer row to its centre")
    left, groups = _clusters(pool, ranking)
    for members in groups.members:
        ranking.take(left[members[0]], len(members), f"nearest to the centre of a cluster of {len(members)} rows")
    # The largest cluster first: cutting the list later keeps what stands for most.
    ranking.picks.sort(key=lambda pick: (-(pick[1] or 0), pick[0]))
    return _fill(pool, ranking, left)


def hybrid(pool: Pool) -> Ranking:
    """The clusters of `diversity`; `loss_ratio` of the picks are their clusters' hardest rows (losses capped at p95) or, without losses,
    the best judged ones; the others are the nearest to their centres."""
    import numpy as np

    ranking = Ranking("its cluster's share went to harder, better judged or more typical rows")
    if pool.losses is not None:
        known, values, word, lacking = pool.with_loss("hybrid"), pool.known_losses, "loss", NO_LOSS
        worth = np.minimum(values, np.quantile(values[known], LOSS_CAP))
    else:
        known, values, word, lacking = pool.with_score("hybrid"), pool.known_scores, "score", NO_SCORE
        worth = values
    ranking.pass_over(np.flatnonzero(np.isnan(values)), lacking)
    left, groups = _clusters(pool, ranking, known)
    # Where the best of a cluster gains most over its typical row comes first: a place by loss is wasted on a cluster of equals.
    ordered = sorted(groups.members, key=lambda members: (-(worth[left[members]].max() - worth[left[members[0]]]), members.min()))
    size = min(pool.size, len(left))
    sizes = [len(members) for members in ordered]
    spare = apportion(size - len(sizes), [each - 1 for each in sizes], [each - 1 for each in sizes])
    quotas = [1 + more for more in spare]
    by_worth = apportion(round(pool.loss_ratio * size), quotas, quotas)
    for members, quota, first in zip(ordered, quotas, by_worth, strict=True):
        rows = left[members]
        best = rows[np.lexsort((np.arange(len(rows)), -worth[rows]))]
        for row in best[:first]:
            ranking.take(row, values[row], f"{word} {values[row]:.3f}, among the highest of its cluster of {len(rows)} rows")
        rest = rows[~np.isin(rows, best[:first])]
        for row in rest[: quota - first]:
            ranking.take(row, values[row], f"typical of its cluster of {len(rows)} rows")
    ranking.picks.sort(key=lambda pick: (-(pick[1] or 0), pick[0]))
    return ranking


def loss_topk(pool: Pool) -> Ranking:
    """The rows the model finds hardest."""
    import numpy as np

    ranking = Ranking("its loss is lower than that of every chosen row")
    losses = pool.known_losses
    found = pool.with_loss("loss_topk")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), NO_LOSS)
    for place, index in enumerate(_highest(losses, found)[: pool.size], 1):
        ranking.take(index, losses[index], f"loss {losses[index]:.3f}, the {place}. highest of {len(found)}")
    return ranking


def loss_band(pool: Pool) -> Ranking:
    """Seeded choice among rows whose loss lies between two percentiles: neither known already nor hopeless. Too few: the nearest to it."""
    import numpy as np

    low, high = pool.loss_band
    ranking = Ranking("in the band, but its place in the seeded order comes after the last one taken")
    losses = pool.known_losses
    found = pool.with_loss("loss_band")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), NO_LOSS)
    bounds = np.quantile(losses[found], [low, high])
    away = np.maximum(bounds[0] - losses, losses - bounds[1]).clip(min=0)
    ranking.pass_over(found[away[found] > 0], f"its loss is outside the percentiles {100 * low:g} to {100 * high:g}")
    places = [_place(pool, index) for index in range(len(pool.ids))]
    for index in sorted(found.tolist(), key=lambda i: (away[i], places[i]))[: pool.size]:
        where = "outside, but nearest to" if away[index] else "between"
        ranking.take(index, losses[index], f"loss {losses[index]:.3f}, {where} the percentiles {100 * low:g} and {100 * high:g}")
    return ranking


def k_center(pool: Pool) -> Ranking:
    """Exact greedy farthest point: the first is the row nearest the middle."""
    ranking = Ranking("a chosen row is nearer to it than the last pick was to those before")
    picks, radii = farthest(pool.embeddings, pool.size)
    for index, radius in zip(picks, radii, strict=True):
        ranking.take(index, radius, f"at distance {radius:.3f}, {FAR}" if radius else "nearest to the middle of all rows")
    return _fill_equal(pool, ranking)


def hybrid_classic(pool: Pool) -> Ranking:
    """`loss_ratio` of the picks are the highest losses of all, the others the farthest from what is chosen."""
    import numpy as np

    ranking = Ranking("neither its loss nor its distance to the chosen rows is high enough")
    losses = pool.known_losses
    found = pool.with_loss("hybrid_classic")
    ranking.pass_over(np.flatnonzero(np.isnan(losses)), NO_LOSS)
    size = min(pool.size, len(found))
    for index in _highest(losses, found)[: round(pool.loss_ratio * size)]:
        ranking.take(index, losses[index], f"loss {losses[index]:.3f}, among the highest")
    return _fill(pool, ranking, found)


def facility_location(pool: Pool) -> Ranking:
    """Greedy maximum of Σ over landmarks of the similarity to the nearest chosen row, each pick the best of a seeded sample.

    Sampling gives 1 − 1/e − 0.1 of the maximum in expectation (Mirzasoleiman et al. 2015) at a cost linear in the rows; the landmarks
    are all rows, or a seeded sample of them: never an n × n matrix.
    """
    import numpy as np
    from threadpoolctl import threadpool_limits

    ranking = Ranking("chosen rows are near enough to what it stands for")
    vectors, n = pool.embeddings, len(pool.ids)
    landmarks = np.ascontiguousarray(vectors[sample(n, max(FACILITY_LANDMARKS, 2 * pool.size), pool.seed)].T)
    best = np.full(landmarks.shape[1], -1.0, dtype=np.float32)
    looked_at = max(1, int(np.ceil(n / pool.size * np.log(1 / FACILITY_MISS))))
    free = np.random.default_rng(pool.seed).permutation(n)
    rng = np.random.default_rng([pool.seed, 1])
    with threadpool_limits(1):
        for _ in range(min(pool.size, n)):
            places = rng.choice(len(free), min(looked_at, len(free)), replace=False)
            gains = np.zeros(len(places))
            for start in range(0, len(places), 1024):
                part = places[start : start + 1024]
                gains[start : start + len(part)] = np.maximum(vectors[free[part]] @ landmarks - best, 0).sum(axis=1).round(3)
            won = int(np.lexsort((free[places], -gains))[0])
            row, gain = int(free[places[won]]), gains[won] / len(best)
            ranking.take(row, gain, f"adds {gain:.4f} to the mean similarity of all rows to their nearest chosen one")
            np.maximum(best, vectors[row] @ landmarks, out=best)
            free[places[won]] = free[-1]
            free = free[:-1]
    return ranking


def deita(pool: Pool) -> Ranking:
    """By quality × complexity from the best on, past rows too like a chosen one (Liu et al. 2024).

    Quality is the judges' score, complexity the logarithm of the assistant's tokens: both were a language model's opinion there.
    """
    import numpy as np

    ranking = Ranking("its quality × complexity is lower than that of every chosen row")
    scores = pool.known_scores
    found = pool.with_score("deita")
    ranking.pass_over(np.flatnonzero(np.isnan(scores)), NO_SCORE)
    worth = scores * np.log1p(np.asarray(pool.lengths, dtype=np.float64))
    alike: list[int] = []
    chosen = np.zeros((0, pool.embeddings.shape[1]), dtype=np.float32)
    ordered = _highest(worth, found)
    size = min(pool.size, len(ordered))
    for start in range(0, len(ordered), 512):
        rows = ordered[start : start + 512]
        block = pool.embeddings[rows]
        close = (block @ chosen.T).max(axis=1) > NEAR if len(chosen) else np.zeros(len(rows), dtype=bool)
        among = block @ block.T > NEAR
        kept: list[int] = []
        for place, row in enumerate(rows.tolist()):
            if len(ranking.picks) == size:
                break
            if close[place] or among[place, kept].any():
                alike.append(row)
                continue
            kept.append(place)
            ranking.take(row, worth[row], f"quality × complexity {worth[row]:.3f}, unlike the rows chosen before")
        if len(ranking.picks) == size:
            break
        chosen = np.concatenate([chosen, block[kept]])
    ranking.pass_over(np.array(alike, dtype=int), f"a chosen row is like it (cosine above {NEAR})")
    for row in alike[: size - len(ranking.picks)]:
        ranking.take(row, worth[row], f"quality × complexity {worth[row]:.3f}; like a chosen row, but places were left")
    return ranking


def longest(pool: Pool) -> Ranking:
    """The most assistant tokens (Zhao et al. 2024)."""
    import numpy as np

    ranking = Ranking("the assistant says less in it than in every chosen row")
    lengths = np.asarray(pool.lengths, dtype=np.float64)
    for index in _highest(lengths, np.arange(len(pool.ids)))[: pool.size]:
        ranking.take(index, lengths[index], f"{int(lengths[index])} tokens of the assistant")
    return ranking


def targeted(pool: Pool) -> Ranking:
    """In turn for each wanted example the nearest row that is left (RDS+, Ivison et al. 2025)."""
    import numpy as np
    from threadpoolctl import threadpool_limits

    wanted = pool.wanted() if pool.wanted else ()
    if not len(wanted):
        raise DataError("The coreset strategy 'targeted' needs wanted examples (rows of the select split): give some, or choose another.")
    ranking = Ranking("nearer rows were left for every wanted example")
    most = min(pool.size, len(pool.ids))
    queues, similar = [], []
    with threadpool_limits(1):
        for example in wanted:
            near = (pool.embeddings @ example).round(5)
            part = np.argpartition(-near, most - 1)[:most]
            order = part[np.lexsort((part, -near[part]))]
            queues.append(order)
            similar.append(near[order])
    taken: set[int] = set()
    at = [0] * len(queues)
    while len(taken) < most:
        for number, queue in enumerate(queues):
            while at[number] < most and int(queue[at[number]]) in taken:
                at[number] += 1
            if at[number] < most and len(taken) < most:
                row = int(queue[at[number]])
                taken.add(row)
                ranking.take(row, similar[number][at[number]], f"the nearest left to wanted example {number + 1}")
    return ranking


def _clusters(pool: Pool, ranking: Ranking, among: "np.ndarray | None" = None) -> "tuple[np.ndarray, Clusters]":
    """Rows that pass the judgment gate and the density filter, and their clusters, one for each place."""
    import numpy as np

    left = np.arange(len(pool.ids)) if among is None else among
    bad = left[pool.known_scores[left] < pool.min_score]
    if len(left) - len(bad) >= 1:
        ranking.pass_over(bad, f"its score is below {pool.min_score:g}")
        left = np.setdiff1d(left, bad)
    alone = left[outliers(pool.embeddings[left], pool.seed, keep=pool.size)]
    ranking.pass_over(alone, "outlier: among the 3 % of rows least like their nearest ones")
    left = np.setdiff1d(left, alone)
    return left, cluster(pool.embeddings[left], min(pool.size, len(left)), pool.seed)


def _fill(pool: Pool, ranking: Ranking, allowed: "np.ndarray") -> Ranking:
    """Clusters that stayed empty (near-duplicates share one) leave places for what is farthest from all that is chosen."""
    import numpy as np

    want = min(pool.size, len(allowed)) - len(ranking.picks)
    if want <= 0:
        return ranking
    place = {row: index for index, row in enumerate(allowed.tolist())}
    picks, radii = farthest(pool.embeddings[allowed], want, [place[row] for row in ranking.picked])
    for index, radius in zip(picks, radii, strict=True):
        ranking.take(allowed[index], radius, FAR if radius else "nearest to the middle of all rows")
    return _fill_equal(pool, ranking, np.asarray(allowed))


def _fill_equal(pool: Pool, ranking: Ranking, allowed: "np.ndarray | None" = None) -> Ranking:
    """Rows whose embedding is a chosen row's are passed over, though a place be left: they would teach the same."""
    import numpy as np

    if len(ranking.picks) < pool.size:
        rows = np.arange(len(pool.ids)) if allowed is None else allowed
        ranking.pass_over(np.setdiff1d(rows, ranking.picked), "at distance 0 from a chosen row")
    return ranking


def _highest(values: "np.ndarray", among: "np.ndarray") -> "np.ndarray":
    """Indices `among` by falling value (ties: the lowest index)."""
    import numpy as np

    return among[np.lexsort((among, -values[among]))]


def _place(pool: Pool, index: int) -> float:
    """Uniform in [0, 1) by a hash of the seed and the row's id."""
    return int.from_bytes(hashlib.sha256(f"{pool.seed}\0{pool.ids[index]}".encode()).digest()[:6]) / 2**48
