"""How well chosen rows stand for all rows, against chance: a coreset no nearer to the rest than a random one is not worth its trouble."""

from collections.abc import Sequence
from typing import Any

from agent_pipeline.errors import DataError
from agent_pipeline.selection.clusters import nearest_distance
from agent_pipeline.selection.coresets import Choice, select
from agent_pipeline.selection.embeddings import conversation_text, embed

RANDOM_DRAWS = 5


def coverage(rows: Sequence[dict[str, Any]], choices: Sequence[Choice], seed: int = 0) -> dict[str, float]:
    """Mean Euclidean distance (0 to 2, rows lie on the unit sphere) of all rows to the nearest chosen one.

    `mean_distance`: of `choices`; `random_mean_distance`: of random choices of the same size, mean of five draws; `gain`: how much
    smaller ours is, as a share of the random one (negative: worse than chance; 0 where random choices cover everything).

    Raises `DataError` where nothing is chosen.
    """
    rows = sorted(rows, key=lambda row: row["row_id"])
    chosen = {choice.row_id for choice in choices if choice.chosen}
    if not chosen:
        raise DataError("The coverage of a coreset without rows can't be told: choose at least one row.")
    vectors = embed([conversation_text(row["messages"]) for row in rows], seed)

    def distance(ids: set[str]) -> float:
        return float(nearest_distance(vectors, vectors[[i for i, row in enumerate(rows) if row["row_id"] in ids]]).mean())

    drawn = [{choice.row_id for choice in select(rows, "random", len(chosen), draw) if choice.chosen} for draw in range(RANDOM_DRAWS)]
    ours, chance = distance(chosen), sum(map(distance, drawn)) / RANDOM_DRAWS
    return {
        "mean_distance": round(ours, 5),
        "random_mean_distance": round(chance, 5),
        "gain": round(1 - ours / chance, 5) if chance > 1e-9 else 0.0,
    }
