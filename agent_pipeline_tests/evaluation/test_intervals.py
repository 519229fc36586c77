"""Intervals as reports show them."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtrit

from agent_pipeline.evaluation.call_probability import auc
from agent_pipeline.evaluation.intervals import jackknife, report_difference, share_interval
from agent_pipeline.evaluation.paired import paired, within


def test_a_clear_difference_is_beyond_noise_and_none_is_not():
    tasks = [f"t{i // 2}" for i in range(40)]
    clear = report_difference(paired(tasks, [1.0] * 38 + [0.0, 0.0], [0.0] * 40))
    assert clear.difference == pytest.approx(0.95) and clear.beyond_noise and clear.tasks == 20
    rng = np.random.default_rng(1)
    base, adapter = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    assert not report_difference(paired(tasks, adapter, base)).beyond_noise
    assert not report_difference(paired(tasks, base, base)).beyond_noise


def test_a_few_tasks_that_all_improved_are_no_proof():
    few = report_difference(paired(["a", "b", "c"], [1.0] * 3, [0.0] * 3))
    assert few.low > 0 and few.p == pytest.approx(0.25) and not few.beyond_noise
    assert report_difference(paired([f"t{i}" for i in range(6)], [1.0] * 6, [0.0] * 6)).beyond_noise


SCORES = st.lists(
    st.tuples(
        st.integers(0, 9),
        st.sampled_from("ab"),
        st.booleans(),
        st.booleans(),
        st.sampled_from([0.5, 1, 3]),
    ),
    min_size=1,
)


@given(SCORES, st.booleans(), st.booleans())
def test_interval_of_a_difference_of_shares_is_possible(samples, grouped, weighted):
    """Call recall differed by +0.990 [+0.971, +1.010]."""
    tasks, groups, new, old, weights = map(list, zip(*samples, strict=True))
    difference = paired(
        [str(task) for task in tasks],
        [float(each) for each in new],
        [float(each) for each in old],
        groups=groups if grouped else (),
        weights=weights if weighted else (),
        shares=True,
    )
    assert (difference.low is None) == (len(set(tasks)) == 1)
    if difference.low is not None:
        assert (
            -1 <= difference.low <= difference.value + 1e-12
            and difference.value - 1e-12 <= difference.high <= 1
        )


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1))
def test_interval_of_a_share_is_possible(samples):
    tasks, values = zip(*samples, strict=True)
    low, high = share_interval([str(task) for task in tasks], [float(value) for value in values])
    assert 0 <= low <= sum(values) / len(values) <= high <= 1


@given(st.floats(-1, 1), st.floats(0, 2), st.floats(1, 60), st.integers(2, 50))
def test_interval_within_limits(value, se, quantile, units):
    low, high = within(value, se, quantile, units)
    assert -1 <= low <= value <= high <= 1


def test_recall_that_rose_from_nothing_to_nearly_everything():
    tasks = [str(task) for task in range(100)]
    nearly = paired(tasks, [1.0] * 99 + [0.0], [0.0] * 100, shares=True)
    assert nearly.value == pytest.approx(0.99) and nearly.high <= 1 and 0.92 < nearly.low < 0.97
    assert paired(tasks, [1.0] * 99 + [0.0], [0.0] * 100).high > 1, "a loss may be any number"
    with pytest.raises(ValueError, match="share"):
        paired(tasks, [2.0] * 100, [0.0] * 100, shares=True)


@given(st.tuples(*[st.integers(0, 40)] * 4).filter(lambda table: sum(table) > 1))
def test_interval_of_single_turns_is_newcombes(table):
    """Newcombe's formula on a table of pairs: both right, the candidate alone, its rival alone, neither."""
    both, alone, rival, neither = table
    pairs = (
        [(1.0, 1.0)] * both + [(1.0, 0.0)] * alone + [(0.0, 1.0)] * rival + [(0.0, 0.0)] * neither
    )
    n, (new, old) = len(pairs), zip(*pairs, strict=True)
    found = paired([str(i) for i in range(n)], new, old, shares=True)
    t, p, q = float(stdtrit(n - 1, 0.975)), sum(new) / n, sum(old) / n

    def wilson(share):
        trials = n - 1 if 0 < share < 1 else n
        centre, spread = (
            share + t * t / (2 * trials),
            t * sqrt(share * (1 - share) / trials + t * t / (4 * trials**2)),
        )
        return (centre - spread) / (1 + t * t / trials), (centre + spread) / (1 + t * t / trials)

    (low, high), (low_old, high_old) = wilson(p), wilson(q)
    margins = p * (1 - p) * q * (1 - q)
    phi = (both * neither - alone * rival) / n**2 / sqrt(margins) if margins else 0.0
    down, up = (p - low, high_old - q), (high - p, q - low_old)
    reach = [sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0)) for a, b in (down, up)]
    assert (found.low, found.high) == pytest.approx((p - q - reach[0], p - q + reach[1]), abs=1e-6)


@pytest.mark.parametrize(
    ("p", "q"), [(0.99, 0.01), (0.95, 0.05), (0.9, 0.5), (0.7, 0.6), (0.5, 0.5), (0.98, 0.95)]
)
@pytest.mark.parametrize("tasks", [10, 30])
def test_interval_covers_the_difference_in_nearly_19_of_20_evaluations(p, q, tasks):
    """The t interval covered +0.98 in 18 to 40 of 100 evaluations of ten tasks."""
    rng = np.random.default_rng(0)
    names, covered = [str(i // 2) for i in range(2 * tasks)], 0
    for _ in range(400):
        new, old = (np.repeat(rng.beta(4 * share, 4 * (1 - share), tasks), 2) for share in (p, q))
        scores = [
            (rng.random(2 * tasks) < chances).astype(float).tolist() for chances in (new, old)
        ]
        found = paired(names, *scores, shares=True)
        covered += found.low - 1e-9 <= p - q <= found.high + 1e-9
    assert covered / 400 >= 0.9


def test_one_task_has_a_difference_but_no_interval():
    one = report_difference(paired(["a", "a"], [1, 0], [0, 0]))
    assert (one.difference, one.low, one.high, one.p, one.beyond_noise) == (
        0.5,
        None,
        None,
        None,
        False,
    )
    assert report_difference(paired([], [], [])) is None


@pytest.mark.parametrize("tasks", [6, 12, 18])
def test_noise_is_called_a_difference_in_at_most_one_of_twenty_evaluations(tasks):
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(600):
        chances = np.repeat(rng.uniform(0, 1, tasks), 3)
        answers = (rng.uniform(size=(2, 3 * tasks)) < chances).astype(float)
        false += report_difference(
            paired([f"{i // 3:02}" for i in range(3 * tasks)], *answers.tolist())
        ).beyond_noise
    assert false / 600 <= 0.065


def test_the_least_visible_difference_is_the_planned_one_of_as_many_turns():
    half = [1.0, -1.0] * 3 + [0.0] * 49
    seen = report_difference(paired([f"t{i}" for i in range(55)], half, [0.0] * 55)).least_visible
    assert 0.165 <= seen <= 0.18  # 55 turns, a fifth of which differ: 17 points


def test_any_statistic_has_an_interval_by_leaving_tasks_out():
    rng = np.random.default_rng(3)
    called = np.arange(60) % 2 == 0
    base, adapter = rng.uniform(size=60), rng.uniform(size=60) + called

    def gain(left):
        return auc(adapter[left], called[left]) - auc(base[left], called[left])

    found = report_difference(jackknife([f"t{i // 3}" for i in range(60)], gain))
    assert found.beyond_noise and found.low < found.difference < found.high
    assert found.difference == pytest.approx(gain(called | True))
    assert (
        jackknife(
            ["a", "a", "b"],
            lambda left: auc(np.arange(3)[left], np.array([True, False, False])[left]),
        )
        is None
    )


def test_the_jackknife_of_a_mean_is_the_interval_of_the_mean():
    values = np.random.default_rng(5).normal(size=30)
    tasks = [f"t{i // 3}" for i in range(30)]
    ours, theirs = (
        jackknife(tasks, lambda left: float(values[left].mean())),
        paired(tasks, values.tolist(), [0.0] * 30),
    )
    assert (ours.value, ours.low, ours.high) == pytest.approx(
        (theirs.value, theirs.low, theirs.high)
    )


def test_the_interval_of_a_share_is_wilsons_and_counts_alike_turns_once():
    from scipy.stats import binomtest

    values = [1.0] * 15 + [0.0] * 5
    theirs = binomtest(15, 20).proportion_ci(method="wilson")
    low, high = share_interval([f"t{i}" for i in range(20)], values)
    assert (low, high) == pytest.approx((theirs.low, theirs.high), abs=0.01)
    assert share_interval([f"t{i // 5}" for i in range(20)], values)[0] < low
    assert share_interval(["a", "b", "c"], [1.0] * 3)[0] < 0.5


def test_the_area_under_the_curve_is_scikit_learns():
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(4)
    scores, positive = rng.integers(0, 8, 50) / 8, rng.uniform(size=50) < 0.4
    assert auc(scores, positive) == pytest.approx(roc_auc_score(positive, scores))
