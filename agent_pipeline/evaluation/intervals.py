"""Intervals as they stand in a report: of a difference (`paired`), of the area under a curve, of a model's own share."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np

from agent_pipeline.evaluation.paired import Difference, paired, t_quantile, wilson, within

ERROR = 0.05


def reported(
    difference: Difference | None, of_shares: bool = True, error: float = ERROR
) -> dict[str, Any] | None:
    """A difference as JSON: `difference`, its 95 % interval [`low`, `high`], `samples`, `tasks`, and

    - `p`: the two-sided chance of so large a difference between exchangeable models;
    - `beyond_noise`: whether the interval excludes 0 and `p` is at most `error`;
    - `least_visible`: the least difference of shares that 80 % of evaluations of this size would find; None for what is not a share.
    """
    if difference is None:
        return None
    low, high = difference.low, difference.high
    p = None if low is None else min(1.0, 2 * min(difference.p, difference.p_of_a_loss))
    return {
        "difference": difference.value,
        "low": low,
        "high": high,
        "p": p,
        "beyond_noise": low is not None
        and high is not None
        and p is not None
        and (low > 0 or high < 0)
        and p <= error,
        "least_visible": difference.visible(ERROR / 2) if of_shares else None,
        "samples": difference.samples,
        "tasks": difference.tasks,
    }


def shown(value: float, low: float | None, high: float | None, form: str = "+.3f") -> str:
    """`+0.125 [+0.010, +0.240]`: a figure with its interval, where it has one."""
    return (
        f"{value:{form}}"
        if low is None or high is None
        else f"{value:{form}} [{low:{form}}, {high:{form}}]"
    )


def jackknife(
    tasks: Sequence[str],
    statistic: Callable[[np.ndarray], float],
    bounds: tuple[float, float] | None = None,
) -> Difference | None:
    """A difference that is not a mean (of two areas under curves): `statistic` of the samples that a boolean mask leaves.

    It is computed without one task after the other; the tasks' pseudo-values (Tukey, 1958) are compared with 0 as means are. None where the
    statistic is none (nan) for some mask. With `bounds`, the least and the greatest value that is possible, the interval lies within them.
    """
    names, member = np.unique(np.asarray(tasks), return_inverse=True)
    count, whole = len(names), statistic(np.ones(len(tasks), dtype=bool))
    without = (
        np.array([statistic(member != task) for task in range(count)]) if count > 1 else np.zeros(1)
    )
    if not (math.isfinite(whole) and np.isfinite(without).all()):
        return None
    pseudo = whole + (count - 1) * (
        without.mean() - without
    )  # around the statistic itself: the jackknife's own mean differs by its bias
    found = paired([str(name) for name in names], pseudo.tolist(), [0.0] * count)
    if bounds and found and found.se is not None:
        low, high = within(whole, found.se, t_quantile(count - 1, 0.975), count, *bounds)
        found = msgspec.structs.replace(found, low=low, high=high)
    return found


def share_interval(tasks: Sequence[str], values: Sequence[float]) -> tuple[float, float]:
    """Wilson's 95 % interval of a share. Turns of a task count as fewer the more alike they are, down to one a task where all agree."""
    share, turns = sum(values) / len(values), len(values)
    found = paired(tasks, values, [0.0] * turns)
    worth = float(len(set(tasks)))
    if 0 < share < 1 and found and found.se:
        worth = min(max(share * (1 - share) / found.se**2, 1.0), turns)
    return wilson(share, worth, 1.959964)
