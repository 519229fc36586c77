"""The ledger of tasks and their splits."""

from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.datasets.ledger import LEDGER_TABLE, read_ledger, record_tasks
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("p", "a")


def test_what_was_decided_once_holds_when_the_sizes_change_and_the_lake_moves(
    tmp_path: Path,
) -> None:
    tasks = [f"t{number}" for number in range(100)]
    first = record_tasks(Lake(tmp_path / "lake"), KEY, pa.array(tasks), SplitSizes())
    (tmp_path / "lake").rename(tmp_path / "moved")
    second = record_tasks(
        Lake(tmp_path / "moved"),
        KEY,
        pa.array(["new", *reversed(tasks)]),
        SplitSizes(test=0.6, select=0.3),
    )
    assert (
        [second.find_split(task) for task in tasks]
        == [first.find_split(task) for task in tasks]
        == [SplitSizes().find_split(task) for task in tasks]
    )
    assert second.find_split("new") == SplitSizes(0.6, 0.3).find_split("new")
    assert first.count_moved_tasks() == 0 and second.count_moved_tasks() > 30


def test_the_same_tasks_in_another_order_are_the_same_bytes_and_nothing_new_writes_nothing(
    tmp_path: Path,
) -> None:
    one, other = Lake(tmp_path / "one"), Lake(tmp_path / "other")
    record_tasks(one, KEY, pa.array(["b", "a"]), SplitSizes())
    record_tasks(other, KEY, pa.array(["a"]), SplitSizes())
    record_tasks(other, KEY, pa.array(["b", "a"]), SplitSizes())
    path = Path(one.table(LEDGER_TABLE, KEY).path)
    assert path.read_bytes() == other.table(LEDGER_TABLE, KEY).read_bytes()
    written = path.stat().st_mtime_ns
    record_tasks(one, KEY, pa.array(["a"]), SplitSizes(0.5, 0.4))
    assert path.stat().st_mtime_ns == written


def test_a_ledger_that_lies_in_another_order_moves_no_task(tmp_path: Path) -> None:
    lake, tasks = Lake(tmp_path / "lake"), [f"t{number}" for number in range(50)]
    recorded = record_tasks(lake, KEY, pa.array(tasks), SplitSizes(test=0.6, select=0.3)).recorded
    shuffled = recorded.sort_by([("task_key", "descending")]).combine_chunks()
    lake.stage(LEDGER_TABLE, KEY, shuffled.to_batches(), shuffled.schema).commit()
    ledger = read_ledger(lake, KEY, SplitSizes())
    assert [ledger.find_split(task) for task in tasks] == [
        SplitSizes(test=0.6, select=0.3).find_split(task) for task in tasks
    ]


def test_a_damaged_ledger_is_one_sentence_and_no_new_split(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    record_tasks(lake, KEY, pa.array(["a"]), SplitSizes())
    path = Path(lake.table(LEDGER_TABLE, KEY).path)
    for spoilt in (b"", path.read_bytes()[:-20], b"PAR1" * 20):
        path.write_bytes(spoilt)
        with pytest.raises(DataError) as error:
            record_tasks(lake, KEY, pa.array(["a"]), SplitSizes())
        assert (error.value.asset, error.value.partition) == (LEDGER_TABLE, str(KEY))
        assert error.value.path == str(lake.table(LEDGER_TABLE, KEY))
        assert path.read_bytes() == spoilt


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=5), max_size=20))
def test_a_lake_without_a_ledger_gives_the_sides_of_the_hash(tasks: list[str]) -> None:
    ledger = read_ledger(Lake("/nowhere"), KEY, SplitSizes())
    assert [ledger.find_split(task) for task in tasks] == [
        SplitSizes().find_split(task) for task in tasks
    ]


def test_a_remote_lake_keeps_one_too() -> None:
    lake = Lake("memory://ledger-test")
    record_tasks(lake, KEY, pa.array(["a"]), SplitSizes())
    assert read_ledger(lake, KEY, SplitSizes(0.9, 0.05)).recorded.to_pylist() == [
        {"task_key": "a", "split": SplitSizes().find_split("a")}
    ]


@given(st.permutations(list("abcdef")), st.integers(0, 5))
def test_tasks_that_ask_nearly_the_same_are_on_one_side_whatever_the_order(
    tmp_path_factory: pytest.TempPathFactory, order, first
) -> None:
    """A trial that tests must not be worded a little differently and trained as another task."""
    groups = {"a": "a", "b": "a", "c": "a", "e": "e", "f": "e"}
    sizes = SplitSizes(0.4, 0.3)
    lake = Lake(tmp_path_factory.mktemp("ledger"))
    ledger = record_tasks(lake, KEY, pa.array(order), sizes, lambda: groups)
    assert {ledger.find_split(task) for task in "abc"} == {sizes.find_split("a")}
    assert {ledger.find_split(task) for task in "ef"} == {sizes.find_split("e")}
    assert ledger.find_split("d") == sizes.find_split("d")


def test_a_new_task_follows_a_known_one_that_asks_nearly_the_same(tmp_path: Path) -> None:
    sizes, lake = SplitSizes(0.4, 0.3), Lake(tmp_path)
    by_split = {sizes.find_split(f"t{number}"): f"t{number}" for number in range(30)}
    record_tasks(lake, KEY, pa.array(sorted(by_split.values())), sizes)
    groups = {f"new {split}": split for split in by_split} | {
        known: split for split, known in by_split.items()
    }
    for split in by_split:
        assert (
            record_tasks(lake, KEY, pa.array([f"new {split}"]), sizes, lambda: groups).find_split(
                f"new {split}"
            )
            == split
        )
    everyone = dict.fromkeys(by_split.values(), "y") | {"newer": "y"}
    assert (
        record_tasks(lake, KEY, pa.array(["newer"]), sizes, lambda: everyone).find_split("newer")
        == "train"
    ), "known in all splits"
    assert {
        task: record_tasks(lake, KEY, pa.array([], pa.string()), sizes).find_split(task)
        for task in by_split.values()
    } == {v: k for k, v in by_split.items()}
