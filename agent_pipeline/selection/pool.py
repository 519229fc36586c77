"""The input and the output of a strategy: a pool of rows, and a ranking of them.

The strategies themselves are in `strategies`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from agent_pipeline.errors import DataError

LOSS_RATIO = 0.6


class Reason(StrEnum):
    """Why a row was chosen, or was not: the column `reason` of a coreset.

    A strategy of the user's may give words of its own.
    """

    ALL_FIT = "all_fit"
    DRAWN = "drawn"
    CLUSTER_CENTRE = "cluster_centre"
    TYPICAL = "typical"
    HIGH_LOSS = "high_loss"
    FARTHEST = "farthest"
    EXACT_DUPLICATE = "exact_duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    CROWDED_CLUSTER = "crowded_cluster"
    COMMON_PHRASE = "common_phrase"
    CROWDED_TASK = "crowded_task"
    CROWDED_SOURCE = "crowded_source"
    CROWDED_DAY = "crowded_day"
    SAME_EMBEDDING = "same_embedding"
    OUTLIER = "outlier"
    NO_LOSS = "no_loss"
    NOT_PICKED = "not_picked"


DESCRIPTIONS: dict[str, str] = {
    Reason.ALL_FIT: "chosen: there are no more rows than target_size",
    Reason.DRAWN: "chosen: drawn by the seed, each tool its share",
    Reason.CLUSTER_CENTRE: "chosen: nearest to the centre of its cluster",
    Reason.TYPICAL: "chosen: typical of its cluster",
    Reason.HIGH_LOSS: "chosen: its loss is high",
    Reason.FARTHEST: "chosen: farthest from the rows chosen before",
    Reason.EXACT_DUPLICATE: "identical to another row",
    Reason.NEAR_DUPLICATE: "near-duplicate of another row",
    Reason.CROWDED_CLUSTER: "one of too many near-duplicates of one row",
    Reason.COMMON_PHRASE: "one of too many rows that look planted: copies share an unusual phrase",
    Reason.CROWDED_TASK: "one of too many rows of its task",
    Reason.CROWDED_SOURCE: "one of too many rows of its reader",
    Reason.CROWDED_DAY: "one of too many rows of its day",
    Reason.SAME_EMBEDDING: "has the embedding of a chosen row",
    Reason.OUTLIER: "among the 3 % of rows least like their nearest ones",
    Reason.NO_LOSS: "has no loss (None is not zero)",
    Reason.NOT_PICKED: "the strategy preferred other rows",
}
"""The reasons as a person reads them."""


class NoLossError(DataError):
    """A strategy needs losses, and no row has a loss.

    Attributes:
        strategy: The name of the strategy.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        super().__init__(
            f"The coreset strategy '{strategy}' needs a loss for each row and has none: compute "
            "the losses first, or choose 'diversity' or 'random'."
        )


@dataclass
class Pool:
    """The distinct rows that a strategy chooses from, sorted by id.

    Nothing depends on the order of the input. All sequences are as long as `ids`.

    Attributes:
        ids: The ids of the rows.
        size: The number of rows to choose.
        embed: Returns the embeddings, (n, d) float32 of length one.
        losses: Nats per token; None if a loss is unknown.
        scores: 0 to 1; None if a score is unknown.
        lengths: The number of the assistant's tokens.
        groups: The strata (the tool that a row calls most).
        seed: The seed of every random choice.
        loss_ratio: The share of rows that are picked by their loss.
    """

    ids: Sequence[str]
    size: int
    embed: Callable[[], np.ndarray]
    losses: Sequence[float | None] | None = None
    scores: Sequence[float | None] | None = None
    lengths: Sequence[int] = ()
    groups: Sequence[str] = ()
    seed: int = 0
    loss_ratio: float = LOSS_RATIO

    @cached_property
    def embeddings(self) -> np.ndarray:
        """The embeddings, (n, d) float32."""
        return self.embed()

    @property
    def is_embedded(self) -> bool:
        """Whether the embeddings were needed."""
        return "embeddings" in self.__dict__

    @cached_property
    def known_losses(self) -> np.ndarray:
        """The losses, (n,) float64, NaN if a loss is unknown."""
        losses = self.losses or [None] * len(self.ids)
        known = [math.nan if loss is None or not math.isfinite(loss) else loss for loss in losses]
        return np.array(known, dtype=np.float64)

    def list_with_loss(self, strategy: str) -> np.ndarray:
        """Return the indices of the rows that have a loss.

        Raises:
            NoLossError: no row has a loss.
        """
        indices = np.flatnonzero(~np.isnan(self.known_losses))
        if not len(indices):
            raise NoLossError(strategy)
        return indices


@dataclass(frozen=True)
class Pick:
    """A row that a strategy picked.

    Attributes:
        index: The index of the row in the pool.
        score: What the row was picked by, if there is such a number.
        reason: Why the row was picked.
    """

    index: int
    score: float | None
    reason: str


@dataclass
class Ranking:
    """The choice of a strategy.

    Attributes:
        otherwise: The reason of the rows that are neither picked nor passed over.
        picks: The picked rows, the first choice first.
        passed: The reason by the index of each row that was passed over.
    """

    otherwise: str = Reason.NOT_PICKED
    picks: list[Pick] = field(default_factory=list)
    passed: dict[int, str] = field(default_factory=dict)

    def take(self, index: int, score: float | None, reason: str) -> None:
        """Pick a row next.

        Args:
            index: The index of the row.
            score: What the row was picked by.
            reason: Why the row was picked.
        """
        self.picks.append(Pick(int(index), None if score is None else float(score), reason))

    def pass_over(self, indices: np.ndarray, reason: str) -> None:
        """Note why rows are not picked."""
        self.passed.update(dict.fromkeys(indices.tolist(), reason))

    @property
    def picked(self) -> list[int]:
        """The indices of the picked rows, the first choice first."""
        return [pick.index for pick in self.picks]


@dataclass(frozen=True)
class Strategy:
    """A way of choosing rows.

    Attributes:
        choose: Ranks the rows of a pool.
        needs_losses: Whether the pool must have losses.
        warning: What a user must know before using the strategy.
    """

    choose: Callable[[Pool], Ranking]
    needs_losses: bool = False
    warning: str = ""
