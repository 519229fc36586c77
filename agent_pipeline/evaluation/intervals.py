"""Differences and shares with their confidence intervals, in the form that reports use.

The intervals of differences of means are computed in `paired`. This module has the form of a
difference in a report, the differences of statistics that are not means, and the interval of one
model's share.
"""

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from agent_pipeline.evaluation.paired import Difference, paired, t_quantile, within
from agent_pipeline.shares import wilson

ERROR = 0.05
NORMAL_QUANTILE_OF_95 = 1.959964
"""The two-sided 95 % quantile of the normal distribution."""


class ReportedDifference(msgspec.Struct, frozen=True):
    """A difference between two models in a report.

    Older reports lack the fields that have a default.

    Attributes:
        difference: The mean difference.
        low: The lower end of its 95 % interval; `None` with fewer than two tasks.
        high: The upper end of the interval.
        samples: The number of samples.
        tasks: The number of tasks.
        p: The two-sided p-value: the probability of such a difference between exchangeable models.
        beyond_noise: Whether the interval excludes 0 and `p` is at most the error.
        least_visible: The smallest difference of shares that an evaluation of this size detects
            with 80 % power; `None` if the figure is not a share.
    """

    difference: float
    low: float | None
    high: float | None
    samples: int
    tasks: int
    p: float | None = None
    beyond_noise: bool = False
    least_visible: float | None = None


def report_difference(
    difference: Difference | None, of_shares: bool = True, error: float = ERROR
) -> ReportedDifference | None:
    """Convert a difference into the form that reports use.

    Args:
        difference: The difference; `None` if there are no samples.
        of_shares: Whether it is a difference of shares.
        error: The error rate at which a difference counts as beyond noise.
    """
    if difference is None:
        return None
    low, high = difference.low, difference.high
    p_value: float | None = None
    beyond_noise = False
    if low is not None and high is not None:
        p_value = min(1.0, 2 * min(difference.p, difference.p_of_a_loss))
        beyond_noise = (low > 0 or high < 0) and p_value <= error
    return ReportedDifference(
        difference=difference.value,
        low=low,
        high=high,
        samples=difference.samples,
        tasks=difference.tasks,
        p=p_value,
        beyond_noise=beyond_noise,
        least_visible=difference.visible(ERROR / 2) if of_shares else None,
    )


def shown(value: float, low: float | None, high: float | None, form: str = "+.3f") -> str:
    """Return a figure as text, with its interval if it has one.

    Example:
        >>> shown(0.125, 0.01, 0.24)
        '+0.125 [+0.010, +0.240]'
    """
    if low is None or high is None:
        return f"{value:{form}}"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def jackknife(
    tasks: Sequence[str],
    statistic: Callable[[np.ndarray], float],
    bounds: tuple[float, float] | None = None,
) -> Difference | None:
    """Return a difference that is not a mean, such as a difference between two areas under curves,
    with its interval.

    The statistic is computed again and again, each time without one of the tasks. The resulting
    pseudo-values of the tasks (Tukey, 1958) are compared with 0, like means.

    Args:
        tasks: The task of each sample.
        statistic: A function that returns the statistic of the samples that a boolean mask (shape:
            samples) selects.
        bounds: The smallest and the largest possible value. The interval lies between them.

    Returns:
        The difference; `None` if the statistic is nan for some mask.
    """
    names, task_of_sample = np.unique(np.asarray(tasks), return_inverse=True)
    task_count = len(names)
    whole = statistic(np.ones(len(tasks), dtype=bool))
    without = np.zeros(1)
    if task_count > 1:
        without = np.array([statistic(task_of_sample != task) for task in range(task_count)])
    if not (math.isfinite(whole) and np.isfinite(without).all()):
        return None
    # The interval is centered on the statistic itself, because the jackknife's own mean is biased.
    pseudo_values = whole + (task_count - 1) * (without.mean() - without)
    difference = paired([str(name) for name in names], pseudo_values.tolist(), [0.0] * task_count)
    if bounds and difference and difference.se is not None:
        quantile = t_quantile(task_count - 1, 0.975)
        low, high = within(whole, difference.se, quantile, task_count, *bounds)
        difference = msgspec.structs.replace(difference, low=low, high=high)
    return difference


def share_interval(tasks: Sequence[str], values: Sequence[float]) -> tuple[float, float]:
    """Return Wilson's 95 % interval of a share.

    The more alike the turns of a task are, the fewer trials they count as. If all turns of each
    task agree, every task counts as one trial.
    """
    share, turns = sum(values) / len(values), len(values)
    difference = paired(tasks, values, [0.0] * turns)
    effective_trials = float(len(set(tasks)))
    if 0 < share < 1 and difference and difference.se:
        effective_trials = min(max(share * (1 - share) / difference.se**2, 1.0), turns)
    return wilson(share, effective_trials, NORMAL_QUANTILE_OF_95)
