"""Intervals as reports show them."""

import numpy as np
import pytest

from agent_pipeline.evaluation.decision import auc
from agent_pipeline.evaluation.intervals import jackknife, reported, share_interval
from agent_pipeline.evaluation.paired import paired


def test_a_clear_difference_is_beyond_noise_and_none_is_not():
    tasks = [f"t{i // 2}" for i in range(40)]
    clear = reported(paired(tasks, [1.0] * 38 + [0.0, 0.0], [0.0] * 40))
    assert clear["difference"] == pytest.approx(0.95) and clear["beyond_noise"] and clear["tasks"] == 20
    rng = np.random.default_rng(1)
    base, adapter = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    assert not reported(paired(tasks, adapter, base))["beyond_noise"]
    assert not reported(paired(tasks, base, base))["beyond_noise"]


def test_a_few_tasks_that_all_improved_are_no_proof():
    few = reported(paired(["a", "b", "c"], [1.0] * 3, [0.0] * 3))
    assert few["low"] > 0 and few["p"] == pytest.approx(0.25) and not few["beyond_noise"]
    assert reported(paired([f"t{i}" for i in range(6)], [1.0] * 6, [0.0] * 6))["beyond_noise"]


def test_no_interval_of_a_difference_of_shares_goes_beyond_1_and_that_of_losses_may():
    right, wrong = [1.0] * 41 + [0.0] * 2, [0.0] * 43
    tasks = [str(task) for task in range(43)]
    assert reported(paired(tasks, right, wrong))["high"] == 1.0 == -reported(paired(tasks, wrong, right))["low"]
    assert reported(paired(tasks, right, wrong), of_shares=False)["high"] > 1


def test_one_task_has_a_difference_but_no_interval():
    one = reported(paired(["a", "a"], [1, 0], [0, 0]))
    assert (one["difference"], one["low"], one["high"], one["p"], one["beyond_noise"]) == (0.5, None, None, None, False)
    assert reported(paired([], [], [])) is None


@pytest.mark.parametrize("tasks", [6, 12, 18])
def test_noise_is_called_a_difference_in_at_most_one_of_twenty_evaluations(tasks):
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(600):
        chances = np.repeat(rng.uniform(0, 1, tasks), 3)
        answers = (rng.uniform(size=(2, 3 * tasks)) < chances).astype(float)
        false += reported(paired([f"{i // 3:02}" for i in range(3 * tasks)], *answers.tolist()))["beyond_noise"]
    assert false / 600 <= 0.065


def test_the_least_visible_difference_is_the_planned_one_of_as_many_turns():
    half = [1.0, -1.0] * 3 + [0.0] * 49
    seen = reported(paired([f"t{i}" for i in range(55)], half, [0.0] * 55))["least_visible"]
    assert 0.165 <= seen <= 0.18  # 55 turns, a fifth of which differ: 17 points


def test_any_statistic_has_an_interval_by_leaving_tasks_out():
    rng = np.random.default_rng(3)
    called = np.arange(60) % 2 == 0
    base, adapter = rng.uniform(size=60), rng.uniform(size=60) + called

    def gain(left):
        return auc(adapter[left], called[left]) - auc(base[left], called[left])

    found = reported(jackknife([f"t{i // 3}" for i in range(60)], gain))
    assert found["beyond_noise"] and found["low"] < found["difference"] < found["high"]
    assert found["difference"] == pytest.approx(gain(called | True))
    assert jackknife(["a", "a", "b"], lambda left: auc(np.arange(3)[left], np.array([True, False, False])[left])) is None


def test_the_jackknife_of_a_mean_is_the_interval_of_the_mean():
    values = np.random.default_rng(5).normal(size=30)
    tasks = [f"t{i // 3}" for i in range(30)]
    ours, theirs = jackknife(tasks, lambda left: float(values[left].mean())), paired(tasks, values.tolist(), [0.0] * 30)
    assert (ours.value, ours.low, ours.high) == pytest.approx((theirs.value, theirs.low, theirs.high))


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
