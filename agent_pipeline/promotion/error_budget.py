"""The yearly error budget for promotions of models that are not better.

The budget is the probability that the decisions of one year promote such a model.

A test at an error rate of 2.5 % every night would promote a model by chance in half of all years.
So all tests of a calendar year share the setting `year_error`. A test compares the scores of two
models, for a decision or for a probation check. If other facts change, the same test may lead to
several decisions. All of them use the error of the first one, and count as one test.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import takewhile
from math import pi

from agent_pipeline.evaluation.paired import tasks_needed
from agent_pipeline.promotion.ledger import LedgerEntry
from agent_pipeline.promotion.policy import PromotionPolicy

NIGHTS_PER_YEAR = 365
PI_SQUARED = pi**2


def error_of_next_decision(earlier_decisions: int, year_error: float) -> float:
    """Return the error rate that the next test of a year may use.

    Half of the budget decreases with 6/π²k² for the k-th test, so that the first nights can
    promote a first champion. The sum of 1/k² over all k is π²/6, so this half is never exceeded.
    The other half is divided evenly among the nights of a year.

    Args:
        earlier_decisions: The number of tests in this year before this one.
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
        earlier_decisions: The number of tests in this year before this one.
        turns_per_task: The number of compared turns per task.

    Example:
        >>> [count_tasks_for_decision(PromotionPolicy(), 0, turns) for turns in (1, 2, 3)]
        [181, 100, 73]
    """
    error = error_of_next_decision(earlier_decisions, policy.year_error)
    return tasks_needed(None, policy.gain_sought, error, turns_per_task)


def count_tests_in_year(entries: Sequence[LedgerEntry], time: str) -> int:
    """Return the number of tests that were first made in the year of `time` (ISO 8601)."""
    return sum(test.when[:4] == time[:4] for test in _list_tests(entries))


def count_tests_before(entries: Sequence[LedgerEntry], draft: LedgerEntry) -> int:
    """Return the number of tests of a year before the test of a new entry.

    If the ledger has the same test, the number is that of the first entry with this test, and of
    the year of that entry.

    Args:
        entries: The entries of the ledger.
        draft: The new entry. Its allowed error is not used.
    """
    tests = _list_tests(entries)
    first = next((test for test in tests if _is_same_test(test, draft)), draft)
    earlier_tests = takewhile(lambda test: test is not first, tests)
    return sum(test.when[:4] == first.when[:4] for test in earlier_tests)


def _list_tests(entries: Sequence[LedgerEntry]) -> list[LedgerEntry]:
    """Return the first entry of every test.

    An entry without a p-value is not a test. Entries of older versions do not name the tested
    scores, so each of them counts as one test.
    """
    tests: list[LedgerEntry] = []
    tests_by_candidate: dict[str, list[LedgerEntry]] = defaultdict(list)
    for entry in entries:
        same_candidate = tests_by_candidate[entry.candidate]
        if entry.decision.p_value is None:
            continue
        if entry.tested_scores and any(_is_same_test(test, entry) for test in same_candidate):
            continue
        tests.append(entry)
        same_candidate.append(entry)
    return tests


def _is_same_test(test: LedgerEntry, entry: LedgerEntry) -> bool:
    """Return whether a new entry is based on the same test as an earlier entry.

    If an older version wrote the earlier entry, the p-values are compared. With the same p-value
    and the same allowed error, both entries see a gain or neither does, so the second entry adds no
    chance of an error.
    """
    same_models = (test.candidate, test.champion) == (entry.candidate, entry.champion)
    if not same_models or _is_probation_check(test) != _is_probation_check(entry):
        return False
    if test.tested_scores:
        return test.tested_scores == entry.tested_scores
    return test.decision.p_value == entry.decision.p_value


def _is_probation_check(entry: LedgerEntry) -> bool:
    """Return whether an entry with a p-value is a probation check."""
    return entry.decision.outcome in ("keep", "roll back")
