"""What a strategy is given, and what it gives back."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from agent_pipeline.errors import DataError

if TYPE_CHECKING:
    import numpy as np

LOSS_RATIO = 0.6
MIN_SCORE = 0.5


@dataclass
class Pool:
    """What a strategy chooses `size` rows from: distinct rows, sorted by id, so that nothing depends on the order of the input.

    All sequences are as long as `ids`. `losses`, `scores` (0 to 1, the judges') and their entries are null where unknown; `lengths` are
    the assistant's tokens; `groups` the strata (an agent's rows by the tool they use most). `embed` gives the embeddings (n, d), `wanted`
    those of the wanted examples (m, d) in the same space, both float32 of length one, when first asked.
    """

    ids: Sequence[str]
    size: int
    embed: "Callable[[], np.ndarray]"
    losses: Sequence[float | None] | None = None
    scores: Sequence[float | None] | None = None
    lengths: Sequence[int] = ()
    groups: Sequence[str] = ()
    wanted: "Callable[[], np.ndarray] | None" = None
    seed: int = 0
    loss_ratio: float = LOSS_RATIO
    min_score: float = MIN_SCORE
    loss_band: tuple[float, float] = (0.25, 0.75)

    @cached_property
    def embeddings(self) -> "np.ndarray":
        """(n, d) float32."""
        return self.embed()

    @cached_property
    def known_losses(self) -> "np.ndarray":
        """(n,) float64, NaN where there is none."""
        return _numbers(self.losses, len(self.ids))

    @cached_property
    def known_scores(self) -> "np.ndarray":
        """(n,) float64, NaN where there is none."""
        return _numbers(self.scores, len(self.ids))

    def with_loss(self, strategy: str) -> "np.ndarray":
        """Indices of rows that have a loss. Raises `DataError` where none has."""
        lacking = f"The coreset strategy '{strategy}' needs a loss for each row and has none: compute the losses first"
        return _there(self.known_losses, lacking)

    def with_score(self, strategy: str) -> "np.ndarray":
        """Indices of rows that were judged with a score. Raises `DataError` where none was."""
        lacking = f"The coreset strategy '{strategy}' needs judged rows and none has a score: judge them first"
        return _there(self.known_scores, lacking)


@dataclass
class Ranking:
    """`picks`: (index, gain, reason) from the first choice on; `passed`: reasons of rows not picked, where not `otherwise`."""

    otherwise: str
    picks: list[tuple[int, float | None, str]] = field(default_factory=list)
    passed: dict[int, str] = field(default_factory=dict)

    def take(self, index: int, gain: float | None, reason: str) -> None:
        self.picks.append((int(index), None if gain is None else float(gain), reason))

    def pass_over(self, indices: "np.ndarray", reason: str) -> None:
        self.passed.update(dict.fromkeys(indices.tolist(), reason))

    @property
    def picked(self) -> list[int]:
        return [index for index, _, _ in self.picks]


Choose = Callable[[Pool], Ranking]


@dataclass(frozen=True)
class Strategy:
    """A way of choosing rows: what it needs beside the rows, and what the user must know before using it."""

    choose: Choose
    needs_losses: bool = False
    needs_wanted: bool = False
    warning: str = ""


def _numbers(values: Sequence[float | None] | None, n: int) -> "np.ndarray":
    """Null is not zero, and what is no number is no loss either."""
    import numpy as np

    if values is None:
        return np.full(n, np.nan)
    return np.array([value if value is not None and math.isfinite(value) else np.nan for value in values], dtype=np.float64)


def _there(values: "np.ndarray", lacking: str) -> "np.ndarray":
    import numpy as np

    found = np.flatnonzero(~np.isnan(values))
    if not len(found):
        raise DataError(f"{lacking}, or choose 'diversity' or 'random'.")
    return found
