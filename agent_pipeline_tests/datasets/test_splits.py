"""The permanent split."""

import math
from collections import Counter

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.splits import (
    SPLITS,
    EmptySplit,
    SplitSizes,
    count_tasks_needed,
    find_empty_splits,
    find_overlaps,
    find_root_tasks,
)
from agent_pipeline.errors import SettingsError

SIZES = st.tuples(st.floats(0, 0.6), st.floats(0, 0.39)).map(lambda pair: SplitSizes(*pair))


def test_a_tasks_side_is_written_in_stone():
    sizes = SplitSizes()
    assert {task: sizes.find_split(task) for task in ("task0", "task7", "task18")} == {
        "task0": "train",
        "task7": "test",
        "task18": "select",
    }


@given(st.text(st.characters(codec="utf-8")), SIZES)
def test_a_task_has_one_side_and_more_test_tasks_take_none_back(task, sizes):
    side = sizes.find_split(task)
    assert side in SPLITS and side == sizes.find_split(task)
    if side == "test":
        assert SplitSizes(sizes.test + 0.005, sizes.select).find_split(task) == "test"


def test_the_shares_of_many_tasks_are_those_asked_for():
    counts = Counter(SplitSizes(0.2, 0.1).find_split(f"t{number}") for number in range(20_000))
    assert math.isclose(counts["test"] / 20_000, 0.2, abs_tol=0.01)
    assert math.isclose(counts["select"] / 20_000, 0.1, abs_tol=0.01)


def test_a_share_of_nothing_is_nothing():
    assert {SplitSizes(0, 0).find_split(f"t{number}") for number in range(500)} == {"train"}


@pytest.mark.parametrize(
    "sizes",
    [(-0.1, 0.1), (0.1, -0.1), (0.5, 0.5), (1, 0), (math.nan, 0.1), (0.1, math.nan), (math.inf, 0)],
)
def test_shares_that_are_none_are_refused(sizes):
    with pytest.raises(SettingsError, match="below 1"):
        SplitSizes(*sizes).validated()


def test_shares_that_are_some_are_taken():
    assert SplitSizes(0.0, 0.99).validated() == (0.0, 0.99)


def test_what_stands_on_two_sides_is_found_by_kind():
    row = {"session_id": "a", "task_key": "t", "content_sha256": "x", "split": "train"}
    others = [
        row | {"session_id": "b", "split": "test"},
        row | {"session_id": "c", "task_key": "u", "content_sha256": "y"},
    ]
    assert find_overlaps(pa.Table.from_pylist([row, *others])) == {
        "session_id": [],
        "task_key": ["t"],
        "content_sha256": ["x"],
    }
    assert find_overlaps(pa.Table.from_pylist([row, row])) == {
        "session_id": [],
        "task_key": [],
        "content_sha256": [],
    }


def test_too_few_tasks_is_a_sentence_that_says_how_many_are_needed():
    rows = [{"task_key": f"t{number}", "split": "train"} for number in range(3)]
    empty_splits = find_empty_splits(pa.Table.from_pylist(rows), SplitSizes(test=0.2, select=0))
    assert empty_splits == [EmptySplit("test", task_count=3, tasks_needed=14)]
    assert (
        find_empty_splits(
            pa.Table.from_pylist([*rows, {"task_key": "u", "split": "test"}]), SplitSizes(0.2, 0)
        )
        == []
    )


@pytest.mark.parametrize("share", [0.05, 0.1, 0.2, 0.5])
def test_so_many_tasks_as_are_needed_do_19_times_of_20(share):
    number = count_tasks_needed(share)
    worlds = [
        [SplitSizes(share, 0).find_split(f"{world}/{task}") for task in range(number)]
        for world in range(400)
    ]
    assert 0.91 < sum("test" in world for world in worlds) / 400 <= 1


def test_forks_and_sub_agents_are_their_roots_task():
    family = [
        ("a", None, "A"),
        ("b", "a", "B"),
        ("c", "b", "C"),
        ("d", "gone", "D"),
        ("e", "f", "E"),
        ("f", "e", "F"),
        ("g", "e", "G"),
    ]
    rows = [
        dict(zip(("session_id", "parent_session_id", "task_key"), each, strict=True))
        for each in family
    ]
    roots = find_root_tasks(rows)
    assert {name: roots[name] for name in "bc"} == {"b": "A", "c": "A"}
    assert not {"a", "d", "e", "f"} & set(roots), "no parent, one that is not here, or a circle"
