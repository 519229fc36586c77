"""Comparison of two models on the same tasks: the difference, its p-value, and the smallest
difference that the data can show.

The unit is the task, because turns of a task are alike: one misread policy fails all of them.
Standard errors are those of the linearized ratio of sums over C tasks (Cochran, Sampling
Techniques, 1977, ch. 6), with Student's t of C − 1 degrees of freedom. The test is the exact
sign-flip test (Fisher, The Design of Experiments, 1935, § 21). It is valid at the small error rates
that remain for a single night.

The interval of a mean without bounds, such as a loss, is value ± t × standard error. The interval
of a difference of two shares lies between −1 and 1. It is Newcombe's interval (Improved confidence
intervals for the difference between binomial proportions based on paired data, Statistics in
Medicine 17, 1998, without a continuity correction): the Wilson intervals of both shares are
combined with their correlation. The more alike the turns of a task are, the fewer trials they count
as: the number of trials in Wilson's interval is the effective number, p (1 − p) / se² (Kish, Survey
Sampling, 1965), and t replaces the normal quantile.
"""

from collections.abc import Sequence
from math import ceil, sqrt

import msgspec
import numpy as np

from agent_pipeline.shares import wilson as wilson  # other modules import it from here

POWER = 0.8
USUALLY_DIFFERENT = 0.2
"""Minimum share of turns on which two training runs of a small model differ."""
ALIKE_WITHIN_TASK = 0.1
"""Correlation of the differences at two turns of one task.

The simulated models of `benchmarks.promotion` have 0.09 to 0.13.
"""
_MANY = 1e6
"""Number of degrees of freedom that represents an unlimited number of tasks."""
_STEPS = 4000
"""Number of steps into which the sign-flip test divides the sum of the absolute values. Rounding
errors are counted against the candidate.
"""


class Difference(msgspec.Struct, frozen=True):
    """A difference between two models, measured on the same samples.

    Attributes:
        value: The mean of candidate − rival over the samples.
        se: The standard error; None with fewer than two tasks.
        low: The lower end of the two-sided 95 % interval; None with fewer than two tasks.
        high: The upper end of the interval; None with fewer than two tasks.
        samples: The number of samples.
        tasks: The number of tasks.
        by_task: The contribution of each task to `value`.
    """

    value: float
    se: float | None
    low: float | None
    high: float | None
    samples: int
    tasks: int
    by_task: tuple[float, ...] = ()

    @property
    def p(self) -> float:
        """Return the one-sided p-value of the gain, from the sign-flip test over tasks.

        It is the probability of at least this gain if the two models are exchangeable within each
        task.
        """
        return sign_flip(self.by_task)

    @property
    def p_of_a_loss(self) -> float:
        """Return the one-sided p-value of the loss, from the sign-flip test over tasks."""
        return sign_flip([-value for value in self.by_task])

    @property
    def spread(self) -> float:
        """Return the standard error of the difference, or the usual standard error if it is larger.

        The usual standard error is that of two small models that differ on `USUALLY_DIFFERENT` of
        the turns. A smaller standard error on few tasks is luck.
        """
        return max(self.se or 0.0, sqrt(USUALLY_DIFFERENT / self.samples))

    def visible(self, error: float) -> float | None:
        """Return the smallest gain in a share that a test at this error rate detects with 80 %
        power.

        Return None with fewer than two tasks.
        """
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
    """Return the mean difference of two models' scores, or None if there are no samples.

    Args:
        tasks: The task of each sample.
        candidate: The candidate's score of each sample.
        rival: The rival's score of each sample.
        groups: The group of each sample. With groups, the result is the mean over the groups'
            means, so that every group counts equally, regardless of its number of samples.
        weights: The weight of each sample (default 1), for means over tokens.
        shares: Whether all scores are between 0 and 1, so that the interval must lie between −1 and
            1.

    Raises:
        ValueError: `shares` is true and a score is below 0 or above 1.
    """
    if not tasks:
        return None
    if shares and not all(0 <= score <= 1 for scores in (candidate, rival) for score in scores):
        raise ValueError("The confidence interval of a share needs scores from 0 to 1.")
    group_names = groups or ("",) * len(tasks)
    weight = weights or (1.0,) * len(tasks)
    totals: dict[str, float] = {}
    for group, task_weight in zip(group_names, weight, strict=True):
        totals[group] = totals.get(group, 0.0) + task_weight
    gains = dict.fromkeys(tasks, 0.0)
    sizes: dict[tuple[str, str], float] = {}
    means = dict.fromkeys(totals, 0.0)
    for task, group, task_weight, new, old in zip(
        tasks, group_names, weight, candidate, rival, strict=True
    ):
        gain = task_weight * (new - old) / totals[group]
        gains[task] += gain / len(totals)
        means[group] += gain
        sizes[task, group] = sizes.get((task, group), 0.0) + task_weight / totals[group]
    value = sum(gains.values())
    if len(gains) < 2:
        return Difference(value, None, None, None, len(tasks), 1, tuple(gains.values()))
    residuals = dict(gains)
    for (task, group), size in sizes.items():
        residuals[task] -= size * means[group] / len(totals)
    se = sqrt(
        len(gains) / (len(gains) - 1) * sum(residual * residual for residual in residuals.values())
    )
    quantile = t_quantile(len(gains) - 1, 0.975)
    low, high = value - quantile * se, value + quantile * se
    if shares:
        zeros = [0.0] * len(tasks)
        both = [paired(tasks, scores, zeros, groups, weights) for scores in (candidate, rival)]
        trials = _trials_of_alike(tasks, group_names, weight)
        low, high = newcombe(
            value, se, [_Share.of(share, trials, quantile) for share in both if share]
        )
    return Difference(value, se, low, high, len(tasks), len(gains), tuple(gains.values()))


class _Share(msgspec.Struct, frozen=True):
    """A share with its standard error and its Wilson confidence interval."""

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
    """Return the effective number of trials if all turns of each task are alike.

    It is the number of tasks, or less if some tasks weigh more than others.
    """
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


def newcombe(value: float, se: float, shares: Sequence[_Share]) -> tuple[float, float]:
    """Return Newcombe's interval (1998) of a difference of two shares.

    Args:
        value: The difference.
        se: The standard error of the difference.
        shares: The two shares, the candidate's first.
    """
    new, old = shares
    correlation = 0.0
    if new.se and old.se:
        correlation = min(max((new.se**2 + old.se**2 - se**2) / (2 * new.se * old.se), -1.0), 1.0)

    def reach(first: float, second: float) -> float:
        return sqrt(max(first**2 - 2 * correlation * first * second + second**2, 0.0))

    low = value - reach(new.value - new.low, old.high - old.value)
    high = value + reach(new.high - new.value, old.value - old.low)
    return max(low, -1.0), min(high, 1.0)  # only rounding exceeds the bounds


def within(
    value: float, se: float, quantile: float, units: int, least: float = -1.0, most: float = 1.0
) -> tuple[float, float]:
    """Return the interval of a mean of bounded values that is not a difference between two shares
    of turns.

    An example is a difference of areas under curves. The value is treated as a share of the way
    from `least` to `most`. The interval is Wilson's, with the effective number of trials.

    Args:
        value: The value.
        se: The standard error of the value.
        quantile: The quantile of the t distribution.
        units: The number of units, such as tasks.
        least: The lower bound of the value.
        most: The upper bound of the value.
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
    """Return the mean difference between two methods that were each trained with several seeds.

    The interval `low` to `high` excludes the true difference with probability `error`, for other
    tasks and other seeds. With only one task or one seed, `se`, `low` and `high` are None.

    The variances over tasks and over seeds are added. The sum is not smaller than the variance of
    crossed random effects (Owen, The pigeonhole bootstrap, 2007). t is the mean of both quantiles,
    weighted by their variances (Cochran and Cox, Experimental Designs, 1957, § 4.14). With
    Satterthwaite's degrees of freedom instead, noise is called a difference in 7 to 9 of 100
    comparisons with two or three seeds.

    Args:
        tasks: The task of each sample.
        seeds: The training seed of each sample.
        candidate: The candidate's score of each sample.
        rival: The rival's score of each sample.
        weights: The weight of each sample (default 1).
        error: The error rate of the interval.
        bounds: The smallest and the largest possible value, at which the interval is cut off; None
            if there are no bounds.
    """
    over = [paired(units, candidate, rival, weights=weights) for units in (tasks, seeds)]
    if over[0] is None or over[1] is None:
        return None
    value, variances = (
        over[0].value,
        [share.se**2 for share in over if share is not None and share.se is not None],
    )
    if len(variances) < 2:
        return msgspec.structs.replace(over[0], se=None, low=None, high=None)
    total = sum(variances)
    quantiles = [t_quantile(len(set(units)) - 1, 1 - error / 2) for units in (tasks, seeds)]
    reach = (
        sum(t * variance for t, variance in zip(quantiles, variances, strict=True)) / sqrt(total)
        if total
        else 0.0
    )
    low, high = value - reach, value + reach
    if bounds:
        low, high = max(low, bounds[0]), min(high, bounds[1])
    return msgspec.structs.replace(over[0], se=sqrt(total), low=low, high=high)


def sign_flip(values: Sequence[float]) -> float:
    """Return the exact one-sided p-value of a sum: the share of all sign choices whose sum is at
    least as large.
    """
    total = sum(map(abs, values))
    steps = [round(_STEPS * value / total) for value in values] if total else []
    if not (flipped := [step for step in steps if step]):
        return 1.0
    chances = np.zeros(sum(map(abs, flipped)) + 1)  # probability by sum of positive values
    chances[0] = 1.0
    for size in map(abs, flipped):
        chances /= 2
        chances[size:] += chances[:-size].copy()
    rounding = (
        sum(map(bool, values)) // 2
    )  # maximum change of a sum by rounding, so that equal sums count
    return float(chances[max(0, sum(step for step in flipped if step > 0) - rounding) :].sum())


def tasks_needed(
    difference: Difference | None, gain: float, error: float, turns_per_task: float = 1.0
) -> int:
    """Return the number of tasks that a test at this error rate needs to detect a gain in a share
    with 80 % power.

    The spread is estimated from `difference`. If it is None, two models that differ on the usual
    share of the turns are assumed, with the usual correlation between the turns of a task.

    Args:
        difference: A difference on fewer tasks, from which the spread is estimated.
        gain: The gain to detect.
        error: The error rate of the test.
        turns_per_task: The number of compared turns per task, at least 1, if there is no
            difference yet.
    """
    if difference:
        tasks, spread = difference.tasks, difference.spread
    else:
        alike_turns = 1 + (turns_per_task - 1) * ALIKE_WITHIN_TASK
        tasks, spread = 1, sqrt(USUALLY_DIFFERENT * alike_turns / turns_per_task)
    return ceil(
        tasks * ((t_quantile(_MANY, 1 - error) + t_quantile(_MANY, POWER)) * spread / gain) ** 2
    )


def t_quantile(degrees: float, quantile: float) -> float:
    """Return a quantile of Student's t distribution."""
    from scipy.special import stdtrit

    return float(stdtrit(degrees, quantile))
