"""The input of a selection strategy (a pool of rows), and its output (a ranking of the rows).

The strategies themselves belong to `strategies`.
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
    """The reason why a row was chosen or left out, as stored in the coreset's column `reason`.

    A user's own strategy may use other words.
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
    Reason.DRAWN: "chosen: drawn at random, so that each tool keeps its share",
    Reason.CLUSTER_CENTRE: "chosen: nearest to the center of its cluster",
    Reason.TYPICAL: "chosen: typical of its cluster",
    Reason.HIGH_LOSS: "chosen: its loss is high",
    Reason.FARTHEST: "chosen: farthest from the rows chosen before",
    Reason.EXACT_DUPLICATE: "left out: identical to another row",
    Reason.NEAR_DUPLICATE: "left out: near-duplicate of another row",
    Reason.CROWDED_CLUSTER: "left out: one of too many near-duplicates of one row",
    Reason.COMMON_PHRASE: (
        "left out: one of too many rows that look planted, because copies share an unusual phrase"
    ),
    Reason.CROWDED_TASK: "left out: one of too many rows of its task",
    Reason.CROWDED_SOURCE: "left out: one of too many rows of its reader",
    Reason.CROWDED_DAY: "left out: one of too many rows of its day",
    Reason.SAME_EMBEDDING: "left out: has the same embedding as a chosen row",
    Reason.OUTLIER: (
        "left out: among the 3 % of rows that are farthest from their nearest neighbors"
    ),
    Reason.NO_LOSS: "has no loss",
    Reason.NOT_PICKED: "left out: the strategy preferred other rows",
}
"""Descriptions of the reasons, shown to users."""


class NoLossError(DataError):
    """Raised if a strategy needs losses, but no row has a loss.

    Attributes:
        strategy: The name of the strategy.
    """

    def __init__(self, strategy: str) -> None:
        self.strategy = strategy
        super().__init__(
            f"The coreset strategy '{strategy}' needs the loss of each row, but the losses were "
            "not computed: compute them first, or choose 'diversity' or 'random'."
        )


@dataclass
class Pool:
    """The distinct rows that a selection strategy chooses from, ordered by id.

    Nothing depends on the order of the input. All sequences have the same length as `ids`.

    Attributes:
        ids: The ids of the rows.
        size: The number of rows to choose.
        embed: Function that returns the embeddings, (n, d) float32, rows of length one.
        losses: Losses in nats per token. None means that a loss is unknown.
        scores: Scores from 0 to 1. None means that a score is unknown.
        lengths: The number of the assistant's tokens.
        groups: The strata of the rows, by the tool that a row calls most.
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
        """Return the embeddings of the rows, (n, d) float32."""
        return self.embed()

    @property
    def is_embedded(self) -> bool:
        """True if the embeddings have already been computed."""
        return "embeddings" in self.__dict__

    @cached_property
    def known_losses(self) -> np.ndarray:
        """Return the losses of the rows: (n,) float64, NaN for an unknown loss."""
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
    """A row that a selection strategy picked.

    Attributes:
        index: The index of the row in the pool.
        score: The number by which the row was picked, or None.
        reason: The reason why the row was picked.
    """

    index: int
    score: float | None
    reason: str


@dataclass
class Ranking:
    """The rows in the order in which a selection strategy prefers them.

    Attributes:
        otherwise: The reason for rows that are neither picked nor passed over.
        picks: The picked rows, best choice first.
        passed: The reasons for the rows that were passed over, by row index.
    """

    otherwise: str = Reason.NOT_PICKED
    picks: list[Pick] = field(default_factory=list)
    passed: dict[int, str] = field(default_factory=dict)

    def take(self, index: int, score: float | None, reason: str) -> None:
        """Add a row to the picked rows, after all rows picked so far.

        Args:
            index: The index of the row.
            score: The number by which the row was picked, or None.
            reason: The reason why the row was picked.
        """
        self.picks.append(Pick(int(index), None if score is None else float(score), reason))

    def pass_over(self, indices: np.ndarray, reason: str) -> None:
        """Record the reason why some rows are not picked."""
        self.passed.update(dict.fromkeys(indices.tolist(), reason))

    @property
    def picked(self) -> list[int]:
        """Return the indices of the picked rows, with the best row first."""
        return [pick.index for pick in self.picks]


@dataclass(frozen=True)
class Strategy:
    """A method for choosing rows.

    Attributes:
        choose: Function that ranks the rows of a pool.
        needs_losses: Whether the pool must have losses.
        warning: A warning for users before they use the strategy.
    """

    choose: Callable[[Pool], Ranking]
    needs_losses: bool = False
    warning: str = ""
