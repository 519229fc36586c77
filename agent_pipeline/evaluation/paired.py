"""Two models on the same tasks: how much they differ, whether chance can explain it, and what difference could have been seen at all.

Turns of one task are alike (one misread policy fails them all), so the task is the unit. Standard errors are those of the linearized ratio
of sums over C tasks (Cochran, Sampling Techniques, 1977, ch. 6), with Student's t of C − 1 degrees of freedom. The test is the exact
sign-flip test (Fisher, The Design of Experiments, 1935, § 21), which holds at the small error rates that many nights leave to one of them.

The interval of a mean that has no limits, such as a loss, is value ± t × standard error. The interval of a difference of two shares lies
within −1 and 1. It is Newcombe's (Improved confidence intervals for the difference between binomial proportions based on paired data,
Statistics in Medicine 17, 1998, without a continuity correction): the Wilson intervals of both shares, combined with their correlation.
Turns of a task count as fewer if they are alike: Wilson's number of trials is the effective one, p (1 − p) / se² (Kish, Survey Sampling,
1965), and t stands for the normal quantile.
"""

from collections.abc import Sequence
from math import ceil, sqrt

import msgspec
import numpy as np

POWER = 0.8
USUALLY_DIFFERENT = 0.2
"""Share of turns on which two trainings of a small model differ, at least."""
_MANY = 1e6
"""Degrees of freedom of as many tasks as there may be."""
_STEPS = 4000
"""The sign-flip test counts in this many steps of the values' sum; what rounding to them may change is counted against the candidate."""


class Difference(msgspec.Struct, frozen=True):
    """`value` is the mean of candidate − rival over samples, [`low`, `high`] its two-sided 95 % interval, `se` its standard error.
    `by_task` is what each task adds to `value`. With fewer than two tasks `se`, `low` and `high` are `None`."""

    value: float
    se: float | None
    low: float | None
    high: float | None
    samples: int
    tasks: int
    by_task: tuple[float, ...] = ()

    @property
    def p(self) -> float:
        """The chance of such a gain, or a greater one, where the two models are exchangeable within each task."""
        return sign_flip(self.by_task)

    @property
    def p_of_a_loss(self) -> float:
        """The same for such a loss."""
        return sign_flip([-value for value in self.by_task])

    @property
    def spread(self) -> float:
        """The standard error; of two models that differ on fewer turns than usual, the one that is usual: on few tasks that is luck."""
        return max(self.se or 0.0, sqrt(USUALLY_DIFFERENT / self.samples))

    def visible(self, error: float) -> float | None:
        """The least gain of shares that a test at this error rate finds with a chance of 80 %; `None` with fewer than two tasks."""
        return (
            None
            if self.se is None
            else (t_quantile(self.tasks - 1, 1 - error) + t_quantile(self.tasks - 1, POWER))
            * self.spread
        )


def paired(
    tasks: Sequence[str],
    candidate: Sequence[float],
    rival: Sequence[float],
    groups: Sequence[str] = (),
    weights: Sequence[float] = (),
    shares: bool = False,
) -> Difference | None:
    """The mean difference of two models' scores, sample i of both being of task `tasks[i]`; `None` of no samples.

    With `groups`, it is the mean over groups of each group's mean: a group counts as much as any other, however many samples it has.
    `weights` (default 1 each) are for means over tokens. `shares` says that all scores are between 0 and 1, and so the interval must lie
    within −1 and 1.

    Raises:
        ValueError: `shares`, and a score is below 0 or above 1.
    """
    if not tasks:
        return None
    if shares and not all(0 <= score <= 1 for scores in (candidate, rival) for score in scores):
        raise ValueError("A score that is no share cannot have the interval of a share.")
    of = groups or ("",) * len(tasks)
    weight = weights or (1.0,) * len(tasks)
    totals: dict[str, float] = {}
    for group, each in zip(of, weight, strict=True):
        totals[group] = totals.get(group, 0.0) + each
    gains = dict.fromkeys(tasks, 0.0)
    sizes: dict[tuple[str, str], float] = {}
    means = dict.fromkeys(totals, 0.0)
    for task, group, each, new, old in zip(tasks, of, weight, candidate, rival, strict=True):
        gain = each * (new - old) / totals[group]
        gains[task] += gain / len(totals)
        means[group] += gain
        sizes[task, group] = sizes.get((task, group), 0.0) + each / totals[group]
    value = sum(gains.values())
    if len(gains) < 2:
        return Difference(value, None, None, None, len(tasks), 1, tuple(gains.values()))
    residuals = dict(gains)
    for (task, group), size in sizes.items():
        residuals[task] -= size * means[group] / len(totals)
    se = sqrt(len(gains) / (len(gains) - 1) * sum(each * each for each in residuals.values()))
    quantile = t_quantile(len(gains) - 1, 0.975)
    low, high = value - quantile * se, value + quantile * se
    if shares:
        zeros = [0.0] * len(tasks)
        both = [paired(tasks, scores, zeros, groups, weights) for scores in (candidate, rival)]
        trials = _trials_of_alike(tasks, of, weight)
        low, high = newcombe(
            value, se, [_Share.of(each, trials, quantile) for each in both if each]
        )
    return Difference(value, se, low, high, len(tasks), len(gains), tuple(gains.values()))


class _Share(msgspec.Struct, frozen=True):
    """A share with its standard error and its Wilson interval."""

    value: float
    se: float
    low: float
    high: float

    @classmethod
    def of(cls, share: Difference, trials_of_alike: float, quantile: float) -> "_Share":
        value, se = min(max(share.value, 0.0), 1.0), share.se or 0.0
        trials = trials_of_alike
        if se and 0 < value < 1:
            trials = min(max(value * (1 - value) / se**2, 1.0), float(share.samples))
        low, high = wilson(value, trials, quantile)
        return cls(value, se, low, high)


def _trials_of_alike(
    tasks: Sequence[str], groups: Sequence[str], weights: Sequence[float]
) -> float:
    """Return how many trials there are if all turns of a task are alike: the number of tasks, or fewer if some weigh more than others."""
    totals: dict[str, float] = {}
    sizes: dict[tuple[str, str], float] = {}
    for task, group, weight in zip(tasks, groups, weights, strict=True):
        totals[group] = totals.get(group, 0.0) + weight
        sizes[group, task] = sizes.get((group, task), 0.0) + weight
    parts = [
        size / totals[group] / len(totals) for (group, _), size in sizes.items() if totals[group]
    ]
    spread = sum(part * part for part in parts)
    return min(float(len(set(tasks))), 1 / spread) if spread else 1.0


def wilson(share: float, trials: float, quantile: float) -> tuple[float, float]:
    """Return the interval of a share that was seen in so many trials (Wilson, 1927). It contains the share, and lies within 0 and 1."""
    square = quantile * quantile
    middle = share + square / (2 * trials)
    half = quantile * sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    low, high = ((middle + side) / (1 + square / trials) for side in (-half, half))
    return min(max(0.0, low), share), max(min(1.0, high), share)


def newcombe(value: float, se: float, shares: Sequence[_Share]) -> tuple[float, float]:
    """Return the interval of `value`, the difference of two shares, with its standard error (Newcombe, 1998)."""
    new, old = shares
    correlation = 0.0
    if new.se and old.se:
        correlation = min(max((new.se**2 + old.se**2 - se**2) / (2 * new.se * old.se), -1.0), 1.0)

    def reach(first: float, second: float) -> float:
        return sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0.0))

    low = value - reach(new.value - new.low, old.high - old.value)
    high = value + reach(new.high - new.value, old.value - old.low)
    return max(low, -1.0), min(high, 1.0)  # rounding alone goes beyond


def within(
    value: float, se: float, quantile: float, units: int, least: float = -1.0, most: float = 1.0
) -> tuple[float, float]:
    """Return the interval of a value between `least` and `most` with a standard error over so many units.

    For statistics that are not a difference of two shares of turns, such as a difference of areas under curves. The value is seen as a
    share of the way from `least` to `most`; the interval is Wilson's, with the effective number of trials.
    """
    way = most - least
    share = min(max((value - least) / way, 0.0), 1.0)
    variance = (se / way) ** 2
    if not variance and 0 < share < 1:
        return value, value
    trials = (
        max(share * (1 - share) / variance, 1.0) if variance and 0 < share < 1 else float(units)
    )
    low, high = wilson(share, trials, quantile)
    return max(min(least + way * low, value), least), min(max(least + way * high, value), most)


def crossed(
    tasks: Sequence[str],
    seeds: Sequence[str],
    candidate: Sequence[float],
    rival: Sequence[float],
    weights: Sequence[float] = (),
    error: float = 0.05,
    bounds: tuple[float, float] | None = None,
) -> Difference | None:
    """The same for two methods that were trained with several seeds, sample i being of task `tasks[i]` and training `seeds[i]`; [`low`,
    `high`] leaves out `error`, and holds for other tasks and other seeds.

    The variances over tasks and over seeds are added: of crossed random effects that is no less than the variance (Owen, The pigeonhole
    bootstrap, 2007). t is the mean of both, weighted by their variances (Cochran and Cox, Experimental Designs, 1957, § 4.14): with
    Satterthwaite's degrees of freedom, two or three seeds called noise a difference in 7 to 9 of 100 comparisons. With one task or one seed
    `se`, `low` and `high` are `None`. `bounds` are the least and the greatest value that is possible (`None`: there are none); the interval
    is cut off there.
    """
    over = [paired(units, candidate, rival, weights=weights) for units in (tasks, seeds)]
    if over[0] is None or over[1] is None:
        return None
    value, variances = (
        over[0].value,
        [each.se**2 for each in over if each is not None and each.se is not None],
    )
    if len(variances) < 2:
        return msgspec.structs.replace(over[0], se=None, low=None, high=None)
    total = sum(variances)
    quantiles = [t_quantile(len(set(units)) - 1, 1 - error / 2) for units in (tasks, seeds)]
    reach = (
        sum(t * each for t, each in zip(quantiles, variances, strict=True)) / sqrt(total)
        if total
        else 0.0
    )
    low, high = value - reach, value + reach
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return msgspec.structs.replace(over[0], se=sqrt(total), low=low, high=high)


def sign_flip(values: Sequence[float]) -> float:
    """The share of all choices of signs for which the sum of the values is at least what it is: an exact one-sided p value."""
    total = sum(map(abs, values))
    steps = [round(_STEPS * value / total) for value in values] if total else []
    if not (flipped := [each for each in steps if each]):
        return 1.0
    chances = np.zeros(sum(map(abs, flipped)) + 1)  # of each sum of the values whose sign is +
    chances[0] = 1.0
    for size in map(abs, flipped):
        chances /= 2
        chances[size:] += chances[:-size].copy()
    rounding = (
        sum(map(bool, values)) // 2
    )  # what rounding may have moved a sum by: sums that are equal must count
    return float(chances[max(0, sum(each for each in flipped if each > 0) - rounding) :].sum())


def tasks_needed(difference: Difference | None, gain: float, error: float) -> int:
    """How many tasks a test at this error rate needs to find a gain of shares with a chance of 80 %, by the spread of a difference on fewer
    tasks; without one, for tasks of a turn each."""
    tasks, spread = (
        (difference.tasks, difference.spread) if difference else (1, sqrt(USUALLY_DIFFERENT))
    )
    return ceil(
        tasks * ((t_quantile(_MANY, 1 - error) + t_quantile(_MANY, POWER)) * spread / gain) ** 2
    )


def t_quantile(degrees: float, quantile: float) -> float:
    """Return a quantile of Student's t."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, quantile))
