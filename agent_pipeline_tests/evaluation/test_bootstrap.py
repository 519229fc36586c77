"""Intervals of a difference."""

import numpy as np
import pytest

from agent_pipeline.evaluation.bootstrap import paired_bootstrap


def test_a_clear_difference_is_beyond_noise_and_none_is_not():
    tasks = [f"t{i // 2}" for i in range(40)]
    clear = paired_bootstrap(tasks, [0.0] * 40, [1.0] * 38 + [0.0, 0.0])
    assert clear.difference == pytest.approx(0.95) and clear.beyond_noise and clear.tasks == 20
    rng = np.random.default_rng(1)
    base, adapter = rng.integers(0, 2, 40), rng.integers(0, 2, 40)
    assert not paired_bootstrap(tasks, base, adapter).beyond_noise
    assert paired_bootstrap(tasks, base, base).difference == 0


def test_turns_of_one_task_are_not_counted_as_independent():
    gains = [1.0, 0.0] * 10
    alone = paired_bootstrap([f"t{i}" for i in range(20)], [0.0] * 20, gains)
    crowded = paired_bootstrap([f"t{i % 4}" for i in range(20)], [0.0] * 20, gains)
    assert crowded.high - crowded.low > alone.high - alone.low


def test_it_is_seeded():
    arguments = ([f"t{i}" for i in range(12)], [0.0] * 12, [0.1 * i * i for i in range(12)])
    assert paired_bootstrap(*arguments, seed=3) == paired_bootstrap(*arguments, seed=3) != paired_bootstrap(*arguments, seed=4)


def test_one_task_has_a_difference_but_no_interval():
    one = paired_bootstrap(["a", "a"], [0, 0], [1, 0])
    assert (one.difference, one.low, one.high, one.beyond_noise) == (0.5, None, None, False)
    assert paired_bootstrap([], [], []) is None


def test_weights_count_a_row_as_often_as_it_has_tokens():
    assert paired_bootstrap(["a", "b"], [1.0, 1.0], [2.0, 5.0], weights=[3, 1]).difference == pytest.approx(1.75)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for trial in range(200):
        gains = np.repeat(rng.normal(0.3, 1, 30), 3) + rng.normal(0, 0.2, 90)
        found = paired_bootstrap([f"{i // 3:02}" for i in range(90)], np.zeros(90), gains, draws=500, seed=trial)
        hits += found.low <= 0.3 <= found.high
    assert 0.88 <= hits / 200 <= 0.99
