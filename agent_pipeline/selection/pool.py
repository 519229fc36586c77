"""What a strategy is given, and what it gives back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np

from agent_pipeline.errors import DataError

LOSS_RATIO = 0.6


class Reason(StrEnum):
    """Why a row was chosen, or was not: the column `reason` of a coreset. A strategy of the user's may give words of its own."""

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


@dataclass
class Pool:
    """What a strategy chooses `size` rows from: distinct rows, sorted by id, so that nothing depends on the order of the input.

    All sequences are as long as `ids`. `losses` (nats a token) and `scores` (0 to 1) are `None` where unknown; `lengths` are the
    assistant's tokens; `groups` are the strata (the tool that a row calls most). `embed` gives the embeddings, (n, d) float32 of length
    one.
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
        """(n, d) float32."""
        return self.embed()

    @property
    def is_embedded(self) -> bool:
        """Whether anybody asked for the embeddings."""
        return "embeddings" in self.__dict__

    @cached_property
    def known_losses(self) -> np.ndarray:
        """(n,) float64, NaN where there is none."""
        losses = self.losses or [None] * len(self.ids)
        return np.array(
            [loss if loss is not None and math.isfinite(loss) else np.nan for loss in losses],
            dtype=np.float64,
        )

    def with_loss(self, strategy: str) -> np.ndarray:
        """Indices of the rows that have a loss.

        Raises:
            DataError: no row has one.
        """
        indices = np.flatnonzero(~np.isnan(self.known_losses))
        if not len(indices):
            raise DataError(
                f"The coreset strategy '{strategy}' needs a loss for each row and has none: compute the losses first, or choose "
                "'diversity' or 'random'."
            )
        return indices


@dataclass
class Ranking:
    """`picks`: (index, score, reason) from the first choice on; `passed`: reasons of rows that were not picked, where not `otherwise`."""

    otherwise: str = Reason.NOT_PICKED
    picks: list[tuple[int, float | None, str]] = field(default_factory=list)
    passed: dict[int, str] = field(default_factory=dict)

    def take(self, index: int, score: float | None, reason: str) -> None:
        """Pick a row; `score` is what it was picked by."""
        self.picks.append((int(index), None if score is None else float(score), reason))

    def pass_over(self, indices: np.ndarray, reason: str) -> None:
        """Say why rows are not picked."""
        self.passed.update(dict.fromkeys(indices.tolist(), reason))

    @property
    def picked(self) -> list[int]:
        """The indices of the picks, in their order."""
        return [index for index, _, _ in self.picks]


@dataclass(frozen=True)
class Strategy:
    """A way of choosing rows; whether it needs losses, and what the user must know before using it."""

    choose: Callable[[Pool], Ranking]
    needs_losses: bool = False
    warning: str = ""
