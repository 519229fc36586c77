"""How sure a difference between two models is, when both answered the same questions.

Turns of one task are alike (one misread policy fails them all), so whole tasks are drawn, not turns: a cluster bootstrap,
paired because both models are judged on the same draw. Source: Efron & Tibshirani, An Introduction to the Bootstrap, 1993,
ch. 13.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """`difference` = mean(adapter − base) over samples, with the percentile interval [`low`, `high`] over draws of tasks.

    With fewer than two tasks nothing can be drawn: `low` and `high` are None.
    """

    difference: float
    low: float | None
    high: float | None
    samples: int
    tasks: int

    @property
    def beyond_noise(self) -> bool:
        """Whether the whole interval lies on one side of zero."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)


def paired_bootstrap(
    tasks: Sequence[str],
    base: Sequence[float],
    adapter: Sequence[float],
    weights: Sequence[float] | None = None,
    draws: int = 2000,
    level: float = 0.95,
    seed: int = 0,
) -> Interval | None:
    """The interval of the weighted mean of `adapter − base`; sample i belongs to task `tasks[i]`; None for no samples.

    `weights` (default 1 each) are for means over tokens: a row's loss counts as often as it has tokens.
    """
    import numpy as np

    if not tasks:
        return None
    weight = np.ones(len(tasks)) if weights is None else np.asarray(weights, dtype=float)
    names, member = np.unique(np.asarray(tasks), return_inverse=True)
    gain = np.bincount(member, weight * (np.asarray(adapter, dtype=float) - np.asarray(base, dtype=float)))
    size = np.bincount(member, weight)
    difference = float(gain.sum() / size.sum())
    if len(names) < 2:
        return Interval(difference, None, None, len(tasks), len(names))
    drawn = np.random.default_rng(seed).multinomial(len(names), np.full(len(names), 1 / len(names)), size=draws)
    low, high = np.quantile((drawn @ gain) / (drawn @ size), [(1 - level) / 2, (1 + level) / 2])
    return Interval(difference, float(low), float(high), len(tasks), len(names))
