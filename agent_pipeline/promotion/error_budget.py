"""The yearly error budget for promotions of models that are not better.

The budget is the probability that the decisions of one year promote such a model.

A test at an error rate of 2.5 % every night would promote a model by chance in half of all years.
So all decisions and probation checks of a calendar year share the setting `year_error`.
"""

from collections.abc import Sequence
from math import pi

from agent_pipeline.evaluation.paired import tasks_needed
from agent_pipeline.promotion.ledger import LedgerEntry
from agent_pipeline.promotion.policy import PromotionPolicy

NIGHTS_PER_YEAR = 365
PI_SQUARED = pi**2


def error_of_next_decision(earlier_decisions: int, year_error: float) -> float:
    """Return the error rate that the next decision of a year may use.

    Half of the budget decreases with 6/π²k² for the k-th decision, so that the first nights can
    promote a first champion. The sum of 1/k² over all k is π²/6, so this half is never exceeded.
    The other half is divided evenly among the nights of a year.

    Args:
        earlier_decisions: The number of decisions and probation checks in this year so far.
        year_error: The budget of the year.
    """
    k = earlier_decisions + 1
    falling_share = 6 / (PI_SQUARED * k * k)
    even_share = 1 / NIGHTS_PER_YEAR if k <= NIGHTS_PER_YEAR else 0.0
    return year_error / 2 * (falling_share + even_share)


def count_tasks_for_decision(
    policy: PromotionPolicy, earlier_decisions: int, turns_per_task: float
) -> int:
    """Return the number of held-out tasks that the next decision needs to see the gain sought.

    The number is known before a model is trained. After a decision, the measured spread of the two
    models replaces the usual spread.

    Args:
        policy: The promotion policy, with the gain sought and the yearly budget.
        earlier_decisions: The number of decisions and probation checks in this year so far.
        turns_per_task: The number of compared turns per task.

    Example:
        >>> [count_tasks_for_decision(PromotionPolicy(), 0, turns) for turns in (1, 2, 3)]
        [181, 100, 73]
    """
    error = error_of_next_decision(earlier_decisions, policy.year_error)
    return tasks_needed(None, policy.gain_sought, error, turns_per_task)


def count_decisions_in_year(entries: Sequence[LedgerEntry], time: str) -> int:
    """Return the number of ledger entries that used error budget in the year of `time` (ISO 8601).

    An entry without a p-value is not a test, so it used no budget.
    """
    year = time[:4]
    return sum(entry.when[:4] == year and entry.decision.p_value is not None for entry in entries)
