"""Mixing: true proportions, no sample twice, no order that decides."""

import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.datasets.mixing import (
    MixerConfig,
    MultiTaskMixer,
    TaskSample,
    round_by_largest_remainder,
)
from agent_pipeline.errors import DataError, SettingsError

AGENT_TUNING = {"tool_selection": 0.35, "planning": 0.30, "timing": 0.20, "general": 0.15}
TASKS = st.dictionaries(st.sampled_from("abcd"), st.integers(0, 30), min_size=1)


def rows(task: str, count: int) -> list[dict]:
    return [
        {"messages": [{"role": "user", "content": f"{task} {number}"}], "session_id": f"s{number}"}
        for number in range(count)
    ]


def counted(samples: list[TaskSample]) -> dict[str, int]:
    return dict(Counter(sample.task_type for sample in samples))


def test_without_a_total_every_task_has_its_exact_share_of_as_many_as_there_can_be() -> None:
    mixer = MultiTaskMixer(MixerConfig(AGENT_TUNING))
    samples = mixer.mix({task: rows(task, 60) for task in AGENT_TUNING})
    assert counted(samples) == {
        "tool_selection": 60,
        "planning": 51,
        "timing": 34,
        "general": 26,
    }, "171 × the shares, the largest remainder up"
    assert mixer.get_task_distribution(samples)["tool_selection"] == 60 / 171
    tenths = MultiTaskMixer(MixerConfig({"a": 0.1, "b": 0.2, "c": 0.7}))
    data = {"a": rows("a", 10), "b": rows("b", 20), "c": rows("c", 70)}
    assert counted(tenths.mix(data)) == {"a": 10, "b": 20, "c": 70}, (
        "0.1 is a tenth, not the binary number next to it"
    )


def test_what_a_task_has_too_little_of_goes_to_the_others_by_their_weights_and_is_reported() -> (
    None
):
    mixer = MultiTaskMixer(MixerConfig({"a": 2, "b": 1, "c": 1}, total_samples=40))
    assert counted(mixer.mix({"a": rows("a", 100), "b": rows("b", 4), "c": rows("c", 100)})) == {
        "a": 24,
        "b": 4,
        "c": 12,
    }
    assert mixer.report["b"] == (0.25, 4, 0, 10, 6, 4)
    assert mixer.report["a"] == (0.5, 100, 0, 20, 0, 24)
    assert counted(mixer.mix({"a": rows("a", 5), "b": [], "c": rows("c", 7)})) == {
        "a": 5,
        "c": 7,
    }, "no more than there are"


def test_a_task_without_samples_leaves_its_share_to_the_others() -> None:
    mixer = MultiTaskMixer(MixerConfig({"a": 0.5, "b": 0.25, "c": 0.25}))
    assert counted(mixer.mix({"a": rows("a", 20), "b": rows("b", 20), "c": []})) == {
        "a": 20,
        "b": 10,
    }
    assert mixer.report["c"].shortfall == mixer.report["c"].asked > 0


def test_equal_contents_are_taken_once_and_counted() -> None:
    mixer = MultiTaskMixer(MixerConfig(strategy="proportional"))
    twice = [row | {"session_id": "other"} for row in rows("a", 3)]
    samples = mixer.mix({"b": rows("a", 2) + rows("b", 1), "a": rows("a", 3) + twice})
    assert counted(samples) == {"a": 3, "b": 1}
    assert (mixer.report["a"].duplicates, mixer.report["b"].duplicates) == (3, 2)
    assert {sample.source for sample in samples} <= {"s0", "s1", "s2", "other"}


def test_the_strategies() -> None:
    data = {"a": rows("a", 40), "b": rows("b", 10), "c": rows("c", 50)}
    weights = {"a": 1, "b": 1, "c": 0}
    assert counted(MultiTaskMixer(MixerConfig(weights, "balanced")).mix(data)) == {"a": 10, "b": 10}
    assert counted(MultiTaskMixer(MixerConfig({}, "proportional", total_samples=10)).mix(data)) == {
        "a": 4,
        "b": 1,
        "c": 5,
    }
    assert counted(MultiTaskMixer(MixerConfig(weights)).mix(data)) == {"a": 10, "b": 10}


def test_unshuffled_tasks_follow_one_another_and_samples_stay_samples() -> None:
    given_samples = {
        "b": [TaskSample("b", {"x": number}, "file") for number in range(5)],
        "a": [{"x": number} for number in range(5, 9)],
    }
    samples = MultiTaskMixer(MixerConfig(strategy="balanced", shuffle=False)).mix(given_samples)
    assert [sample.task_type for sample in samples] == ["a"] * 4 + ["b"] * 4
    assert {sample.source for sample in samples} == {"", "file"}


@given(TASKS, st.integers(1, 60), st.booleans(), st.integers(0, 3))
@settings(max_examples=100)
def test_the_mix_is_as_large_as_asked_or_all_there_is_and_no_order_decides(
    sizes, total, shuffle, seed
) -> None:
    data = {task: rows(task, count) for task, count in sizes.items()}
    weights = {task: place + 1 for place, task in enumerate(sorted(data))}
    mixer = MultiTaskMixer(MixerConfig(weights, shuffle=shuffle, seed=seed, total_samples=total))
    if not any(sizes.values()):
        with pytest.raises(DataError, match="nothing to mix"):
            mixer.mix(data)
        return
    samples = mixer.mix(data)
    assert len(samples) == min(total, sum(sizes.values()))
    assert len({str(sample.data) for sample in samples}) == len(samples), "none twice"
    for task, share in mixer.report.items():
        assert share.taken == counted(samples).get(task, 0) <= sizes[task]
        assert share.taken >= min(share.asked, sizes[task]), (
            "what others have too little of takes nothing from a task"
        )
    turned = dict(reversed(data.items())) | {
        task: random.Random(0).sample(each, len(each)) for task, each in data.items()
    }
    assert mixer.mix(turned) == samples


def test_another_seed_draws_others_in_another_order() -> None:
    data = {"a": rows("a", 50)}
    one, other = (
        MultiTaskMixer(MixerConfig({"a": 1}, seed=seed, total_samples=20)).mix(data)
        for seed in (1, 2)
    )
    assert one != other and {sample.source for sample in one} != {sample.source for sample in other}


@given(st.integers(0, 500), st.lists(st.integers(1, 50), min_size=1, max_size=6))
def test_whole_numbers_are_within_one_of_the_exact_ones_and_sum_to_the_total(
    total, weights
) -> None:
    shares = {str(place): Fraction(weight, sum(weights)) for place, weight in enumerate(weights)}
    counts = round_by_largest_remainder(total, shares)
    assert sum(counts.values()) == total
    assert all(abs(counts[task] - total * share) < 1 for task, share in shares.items())


@pytest.mark.parametrize(
    ("settings_", "sentence"),
    [
        ({"strategy": "random"}, "choose one of weighted, balanced, proportional"),
        ({"task_weights": {"a": -1}}, "'a' is -1"),
        ({"task_weights": {"a": float("nan")}}, "'a' is nan"),
        ({"task_weights": {"a": 0}}, "No task has a weight above 0"),
        ({}, "No task has a weight above 0"),
        ({"task_weights": {"a": 1}, "total_samples": 0}, "total_samples` is 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings_, sentence) -> None:
    with pytest.raises(SettingsError, match=sentence):
        MixerConfig(**settings_)


@pytest.mark.parametrize(
    ("tasks", "sentence"),
    [("ab", "'b' has a data set but no weight"), ("", "'a' has a weight but no data set")],
)
def test_tasks_and_weights_must_name_each_other(tasks, sentence) -> None:
    with pytest.raises(SettingsError, match=sentence):
        MultiTaskMixer(MixerConfig({"a": 1})).mix({task: rows(task, 1) for task in tasks})
