"""The sequential test: its false alarms at any time, its interval, and what it finds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.evaluation.sequential import log_capital, run_sequential_test

VALUES = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.25, 1.0]), min_size=1, max_size=30)


def draw_drops(rng: np.random.Generator, other: float, own: float, tasks: int) -> np.ndarray:
    """Drops of `tasks` pairs of one task of the champion and three of the other model."""
    others = (rng.random((tasks, 3)) < other).mean(axis=1)
    return others - (rng.random(tasks) < own)


@given(
    st.floats(0.0, 0.9), st.lists(st.floats(0.01, 1.0), min_size=2, max_size=4), st.integers(1, 3)
)
@settings(max_examples=25, deadline=None)
def test_capital_is_fair(limit: float, weights: list[float], count: int) -> None:
    """Whatever the distribution, the expected capital is at most 1 if the mean is the limit.

    This is why the capital seldom becomes large. All sequences of `count` values are enumerated.
    """
    points = np.linspace(-1.0, limit, len(weights))
    chances = np.asarray(weights) / sum(weights)
    # Mix in the value 1, so that the mean is exactly the limit.
    low = float(chances @ points)
    of_one = (limit - low) / (1 - low)
    points, chances = np.append(points, 1.0), np.append(chances * (1 - of_one), of_one)
    assert chances @ points == pytest.approx(limit)
    expected = 0.0
    for indices in np.ndindex(*[len(points)] * count):
        sequence = points[list(indices)]
        chance = float(np.prod(chances[list(indices)]))
        expected += chance * float(np.exp(log_capital(sequence, limit)[-1]))
    assert expected <= 1 + 1e-9


def test_false_alarms_at_any_time() -> None:
    """Two equally good models: looking after every task raises an alarm in at most 5 % of months.

    A test that is repeated every night with a fixed size would raise it far more often.
    """
    rng = np.random.default_rng(0)
    months = [draw_drops(rng, 0.9, 0.9, 400) for _ in range(400)]
    alarms = sum(log_capital(month, 0.0).max() >= np.log(20) for month in months)
    naive = sum(
        any(
            month[:end].mean() > 1.645 * month[:end].std() / np.sqrt(end)
            for end in range(20, 401, 20)
        )
        for month in months
    )
    assert alarms <= 0.05 * len(months) < naive


def test_ten_points_worse() -> None:
    rng = np.random.default_rng(1)
    tests = [
        run_sequential_test(draw_drops(rng, 0.9, 0.8, 500).tolist(), 0.0, 0.05) for _ in range(20)
    ]
    alarms = sorted(test.alarm_after or 10**6 for test in tests)
    assert alarms[10] < 250 and alarms[-2] <= 500


def test_margin() -> None:
    """A drop within the margin raises no alarm, and its interval is the same."""
    rng = np.random.default_rng(2)
    drops = draw_drops(rng, 0.9, 0.85, 2000).tolist()
    strict, kind = (run_sequential_test(drops, limit, 0.05) for limit in (0.0, 0.05))
    assert strict.alarm_after and not kind.alarm_after
    assert (strict.low, strict.high) == (kind.low, kind.high)
    assert 0 < strict.low < 0.05 < strict.high < 0.12


@given(VALUES)
@settings(max_examples=40, deadline=None)
def test_interval(values: list[float]) -> None:
    """The interval contains the mean, and the test rejects exactly what lies below its low end."""
    test = run_sequential_test(values, 0.0, 0.05)
    assert test.mean is not None and test.low <= test.mean <= test.high
    assert (test.low > 0.001) <= (test.alarm_after is not None) <= (test.low > -0.001)
    assert (test.p_value <= 0.05) == (test.alarm_after is not None)


def test_no_values() -> None:
    test = run_sequential_test([], 0.0, 0.05)
    assert (test.count, test.mean, test.p_value, test.alarm_after) == (0, None, 1.0, None)


def test_values_out_of_range() -> None:
    with pytest.raises(ValueError):
        run_sequential_test([0.0, 1.5], 0.0, 0.05)
