"""Two models on the same tasks: how much they differ, whether chance can explain it, and what difference could have been seen at all.

Turns of one task are alike (one misread policy fails them all), so the task is the unit. Intervals are Student's t with C − 1 degrees of
freedom for C tasks on the linearized ratio of sums (Cochran, Sampling Techniques, 1977, ch. 6); the test is the exact sign-flip test
(Fisher, The Design of Experiments, 1935, § 21), which holds at the small error rates that many nights leave to one of them.
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
        return None if self.se is None else (_t(self.tasks - 1, 1 - error) + _t(self.tasks - 1, POWER)) * self.spread


def paired(
    tasks: Sequence[str], candidate: Sequence[float], rival: Sequence[float], groups: Sequence[str] = (), weights: Sequence[float] = ()
) -> Difference | None:
    """The mean difference of two models' scores, sample i of both being of task `tasks[i]`; `None` of no samples.

    With `groups`, it is the mean over groups of each group's mean: a group counts as much as any other, however many samples it has.
    `weights` (default 1 each) are for means over tokens.
    """
    if not tasks:
        return None
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
    reach = _t(len(gains) - 1, 0.975) * se
    return Difference(value, se, value - reach, value + reach, len(tasks), len(gains), tuple(gains.values()))


def crossed(
    tasks: Sequence[str],
    seeds: Sequence[str],
    candidate: Sequence[float],
    rival: Sequence[float],
    weights: Sequence[float] = (),
    error: float = 0.05,
) -> Difference | None:
    """The same for two methods that were trained with several seeds, sample i being of task `tasks[i]` and training `seeds[i]`; [`low`,
    `high`] leaves out `error`, and holds for other tasks and other seeds.

    The variances over tasks and over seeds are added: of crossed random effects that is no less than the variance (Owen, The pigeonhole
    bootstrap, 2007). t is the mean of both, weighted by their variances (Cochran and Cox, Experimental Designs, 1957, § 4.14): with
    Satterthwaite's degrees of freedom, two or three seeds called noise a difference in 7 to 9 of 100 comparisons. With one task or one seed
    `se`, `low` and `high` are `None`.
    """
    over = [paired(units, candidate, rival, weights=weights) for units in (tasks, seeds)]
    if over[0] is None or over[1] is None:
        return None
    value, variances = over[0].value, [each.se**2 for each in over if each is not None and each.se is not None]
    if len(variances) < 2:
        return msgspec.structs.replace(over[0], se=None, low=None, high=None)
    total = sum(variances)
    quantiles = [_t(len(set(units)) - 1, 1 - error / 2) for units in (tasks, seeds)]
    reach = sum(t * each for t, each in zip(quantiles, variances, strict=True)) / sqrt(total) if total else 0.0
    return msgspec.structs.replace(over[0], se=sqrt(total), low=value - reach, high=value + reach)


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
    rounding = sum(map(bool, values)) // 2  # what rounding may have moved a sum by: sums that are equal must count
    return float(chances[max(0, sum(each for each in flipped if each > 0) - rounding) :].sum())


def tasks_needed(difference: Difference | None, gain: float, error: float) -> int:
    """How many tasks a test at this error rate needs to find a gain of shares with a chance of 80 %, by the spread of a difference on fewer
    tasks; without one, for tasks of a turn each."""
    tasks, spread = (difference.tasks, difference.spread) if difference else (1, sqrt(USUALLY_DIFFERENT))
    return ceil(tasks * ((_t(_MANY, 1 - error) + _t(_MANY, POWER)) * spread / gain) ** 2)


def _t(degrees: float, quantile: float) -> float:
    from scipy.special import stdtrit

    return float(stdtrit(degrees, quantile))
