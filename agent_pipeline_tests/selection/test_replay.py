"""Replay: exact ratios, uniform buffers."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from agent_pipeline.errors import SettingsError
from agent_pipeline.selection.replay import OnlineContinualLearner, bottom_k


def rows(count: int, start: int = 0) -> list[dict]:
    return [{"session_id": f"s{i}", "n": i} for i in range(start, start + count)]


def learner(ratio: float = 0.25, size: int = 50, strategy: str = "reservoir", seen: int = 200) -> OnlineContinualLearner:
    made = OnlineContinualLearner(size, ratio, strategy)
    made.update_buffer(rows(seen))
    return made


@pytest.mark.parametrize(
    ("ratio", "batch", "replayed"), [(0.25, 6, 2), (0.25, 30, 10), (0.5, 8, 8), (0.1, 9, 1), (0.0, 5, 0), (0.9, 2, 18)]
)
def test_the_ratio_is_exact_in_every_batch_that_can_have_it(ratio, batch, replayed):
    made = learner(ratio)
    for _ in range(20):
        mixed = made.mix_with_replay(rows(batch, 1000))
        assert mixed[:batch] == rows(batch, 1000) and len(mixed) == batch + replayed
        assert len({row["n"] for row in mixed}) == len(mixed), "a row came twice in a batch"


@given(st.floats(0, 0.95), st.lists(st.integers(0, 9), max_size=30))
def test_any_run_of_batches_is_exact_to_less_than_a_row(ratio, sizes):
    made = learner(ratio, 20)
    new = replayed = 0
    for size in sizes:
        before = replayed
        replayed += len(made.mix_with_replay(rows(size, 1000))) - size
        new += size
        wanted = new * ratio / (1 - ratio)
        assert wanted - 1 - 1e-3 < replayed <= wanted + 1e-3
        assert abs(replayed - before - size * ratio / (1 - ratio)) < 1 + 1e-3


def test_an_empty_buffer_replays_nothing_and_a_small_one_repeats():
    made = OnlineContinualLearner()
    assert (made.buffer_size, made.replay_ratio, made.selection_strategy) == (2048, 0.25, "reservoir")
    assert made.mix_with_replay(rows(12)) == rows(12)
    made.update_buffer(rows(2))
    counts = Counter(row["n"] for row in made.mix_with_replay(rows(15, 100))[15:])
    assert sum(counts.values()) == 5 and set(counts) == {0, 1} and max(counts.values()) == 3
    made.clear_buffer()
    assert made.mix_with_replay(rows(12)) == rows(12) and made.seen == 0


def test_samples_are_distinct_and_never_more_than_there_are():
    made = learner(size=10)
    assert len({row["n"] for row in made.get_replay_samples(6)}) == 6
    assert len(made.get_replay_samples(99)) == 10 and made.get_replay_samples(-1) == []


@pytest.mark.parametrize("strategy", ["reservoir", "hash"])
def test_every_row_is_as_likely_to_be_kept(strategy):
    counts: Counter[int] = Counter()
    for seed in range(1500):
        made = OnlineContinualLearner(10, selection_strategy=strategy, seed=seed)
        for start in range(0, 50, 10):
            made.update_buffer(rows(10, start))
        assert len(made.buffer) == 10 and made.seen == 50
        counts.update(row["n"] for row in made.buffer)
    assert chisquare([counts[n] for n in range(50)]).pvalue > 0.001


def test_a_buffer_that_keeps_the_newest_fails_the_test_of_uniformity():
    counts = Counter(row["n"] for _ in range(100) for row in rows(50)[-10:])
    assert chisquare([counts[n] for n in range(50)]).pvalue < 1e-9


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 12), st.integers(0, 3), st.randoms())
def test_the_choice_by_hash_is_idempotent_order_free_and_mergeable(ids, size, seed, rng: random.Random):
    # Two versions of a session may differ; which one is kept must not depend on order either.
    seen = [{"session_id": f"s{i}", "version": place % 2} for place, i in enumerate(ids)]
    found = bottom_k(seen, size, seed)
    assert bottom_k([*seen, *seen, *found], size, seed) == found
    shuffled = rng.sample(seen, len(seen))
    assert bottom_k(shuffled, size, seed) == found
    cut = rng.randint(0, len(seen))
    assert bottom_k([*bottom_k(seen[:cut], size, seed), *bottom_k(seen[cut:], size, seed)], size, seed) == found
    assert len(found) == min(size, len(set(ids)))


def test_nights_in_any_order_leave_the_same_buffer():
    nights = [rows(30, start) for start in (0, 20, 50)]
    made = [OnlineContinualLearner(12, selection_strategy="hash") for _ in range(2)]
    for night in nights:
        made[0].update_buffer(night)
    for night in (nights[2], nights[0], nights[1], nights[0]):
        made[1].update_buffer(night)
    assert made[0].buffer == made[1].buffer


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"buffer_size": 0}, "buffer_size of replay is 0"),
        ({"replay_ratio": 1.0}, "replay_ratio is 1.0"),
        ({"replay_ratio": float("nan")}, "replay_ratio is nan"),
        ({"selection_strategy": "newest"}, "no replay selection_strategy 'newest'"),
    ],
)
def test_mistakes_are_said(asked, says):
    with pytest.raises(SettingsError, match=says):
        OnlineContinualLearner(**asked)
