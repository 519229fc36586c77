"""The yearly error budget: each test is paid once, however often it is decided on."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from agent_pipeline.promotion.decision import Decision
from agent_pipeline.promotion.error_budget import (
    count_tests_before,
    count_tests_in_year,
    error_of_next_decision,
)
from agent_pipeline.promotion.ledger import LedgerEntry

BUDGET = 0.05


def make_entry(
    test: int, year: int, is_older: bool = False, p_value: float | None = None
) -> LedgerEntry:
    """Return an entry about a test. A test has scores and a p-value of its own."""
    return LedgerEntry(
        number=1,
        when=f"{year}-03-01T02:00:00+00:00",
        who="run",
        candidate=f"candidate {test % 3}",
        champion=None,
        evaluator="e",
        decision=Decision(
            outcome="hold",
            p_value=test / 100 if p_value is None else p_value,
            allowed_error=0.0,
            more_tasks=0,
            figures=(),
            reasons=(),
        ),
        tested_scores="" if is_older else f"scores {test}",
    )


LOOKS = st.lists(st.tuples(st.integers(1, 8), st.integers(0, 1)), max_size=40)


@given(looks=LOOKS, older=st.integers(0, 10))
def test_sum_of_errors(looks: list[tuple[int, int]], older: int) -> None:
    """The errors of the tests of a year never exceed its budget, and a test keeps its error.

    The first entries are those of an older version, each of which counts as a test.
    """
    entries: list[LedgerEntry] = []
    errors: dict[int, float] = {}
    first_years: dict[int, int] = {}
    older_counts: dict[int, int] = defaultdict(int)
    year = 2025
    for index, (test, more) in enumerate(looks):
        year = min(year + more, 2027)
        entry = make_entry(test, year, is_older=index < older)
        if index < older:
            error = error_of_next_decision(older_counts[year], BUDGET)
            older_counts[year] += 1
            errors.setdefault(test, error)
        else:
            error = error_of_next_decision(count_tests_before(entries, entry), BUDGET)
            assert error == errors.setdefault(test, error)
        first_years.setdefault(test, year)
        entries.append(entry)
    for some_year in set(first_years.values()):
        tests = [test for test, first_year in first_years.items() if first_year == some_year]
        assert sum(errors[test] for test in tests) <= BUDGET
        assert len(tests) <= count_tests_in_year(entries, f"{some_year}-12-31")


@given(st.lists(st.integers(1, 8), max_size=20))
def test_repeated_tests_spend_nothing(tests: list[int]) -> None:
    entries = [make_entry(test, 2026) for test in tests]
    assert count_tests_in_year(entries, "2026-12-31") == len(set(tests))
    assert count_tests_in_year(entries, "2027-01-01") == 0
    assert count_tests_before(entries, make_entry(9, 2026)) == len(set(tests))


def test_same_p_value_of_other_scores() -> None:
    """A test of this version is known by its scores, so an equal p-value does not make it old."""
    entries = [make_entry(1, 2026, p_value=1.0)]
    assert count_tests_before(entries, make_entry(4, 2026, p_value=1.0)) == 1
    assert count_tests_before(entries, make_entry(1, 2026, p_value=1.0)) == 0


@pytest.mark.parametrize("is_older", [True, False])
def test_check_of_a_champion_is_another_test_than_its_decision(is_older: bool) -> None:
    decided = make_entry(1, 2026, is_older)
    checked = make_entry(1, 2026)
    kept = replace(checked.decision, outcome="keep")
    checked = replace(checked, decision=kept)
    assert count_tests_before([decided], checked) == 1
