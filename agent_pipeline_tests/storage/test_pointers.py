"""Latest, champion and history: moved atomically, by one writer at a time, in a folder and in a bucket."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("tau", "airline")
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture(params=["local", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    root = str(tmp_path / "lake") if request.param == "local" else f"memory://lake-{uuid4().hex}"
    return Lake(root, tmp_path / "cache")


def build(lake: Lake, identity: str, passed: bool = True) -> Artifact:
    return artifact(lake, "model", KEY, {}, {"weights": identity}, identity=identity, latest=False, passed=passed)


def test_the_history_says_who_moved_what_when_why_and_against_what(lake):
    old, new = build(lake, OLD), build(lake, NEW)
    lake.set_latest(old, who="run 1")
    lake.set_champion(old, why="first", who="ann")
    lake.set_champion(new, why="better", who="ben")
    entries = lake.history("model", KEY)
    assert [(entry.generation, entry.moved, entry.who, entry.why, entry.against) for entry in entries] == [
        (1, "latest", "run 1", "materialized", None),
        (2, "champion", "ann", "first", None),
        (3, "champion", "ben", "better", OLD),
    ]
    assert all(entry.when.endswith("+00:00") for entry in entries)
    assert lake.pointers("model", KEY) == entries[-1]


def test_moving_a_pointer_to_where_it_is_writes_no_history(lake):
    made = build(lake, OLD)
    assert (lake.set_latest(made).moved, lake.set_latest(made).moved) == ("latest", "")
    assert len(lake.history("model", KEY)) == 1


def test_what_failed_its_check_is_never_found_latest_or_champion(lake):
    failed = build(lake, NEW, passed=False)
    for move in (lake.set_latest, lake.set_champion):
        with pytest.raises(DataError):
            move(failed)
    assert lake.find("model", KEY, NEW) is None
    with pytest.raises(DataError):
        lake.latest("model", KEY)


def test_a_decision_on_pointers_that_have_moved_since_is_refused(lake):
    old, new = build(lake, OLD), build(lake, NEW)
    seen = lake.set_latest(old)
    lake.set_latest(new)
    with pytest.raises(DataError):
        lake.set_champion(old, expected=seen.generation)
    lake.set_champion(old, expected=lake.pointers("model", KEY).generation)


def test_writers_at_the_same_time_lose_no_entry(lake):
    artifacts = [build(lake, f"{number:064}") for number in range(8)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lake.set_latest, artifacts))
    entries = lake.history("model", KEY)
    assert [entry.generation for entry in entries] == list(range(1, 9))
    assert {entry.latest for entry in entries} == {artifact.identity for artifact in artifacts}
    assert [entry.against for entry in entries] == [None, *(entry.latest for entry in entries[:-1])], "each saw the one before"


def test_a_damaged_entry_counts_for_nothing_and_its_number_is_not_used_again(lake):
    old, new = build(lake, OLD), build(lake, NEW)
    lake.set_latest(old)
    (lake.folder("models", "model", KEY) / "pointers" / "00000002.json").write_text('{"gener', encoding="utf-8")
    assert lake.latest("model", KEY) == old
    assert lake.set_latest(new).generation == 3


def test_an_entry_that_cannot_be_read_now_is_not_taken_for_a_damaged_one(lake, monkeypatch):
    lake.set_latest(build(lake, OLD))

    def busy(*_, **__):
        raise OSError("Please reduce your request rate")

    monkeypatch.setattr(type(lake.root.fs), "cat_file", busy)
    with pytest.raises(OSError, match="reduce"):
        lake.history("model", KEY)


@pytest.mark.parametrize("root", ["my [a] lake?", "memory://my [a] lake?"])
def test_a_lake_may_lie_in_a_folder_whose_name_looks_like_a_pattern(root, tmp_path):
    lake = Lake(root if "://" in root else tmp_path / root, tmp_path / "cache")
    lake.set_latest(build(lake, OLD))
    assert len(lake.history("model", KEY)) == len(list(lake.manifests())) == 1 and lake.partitions("models", "model") == [KEY]


def test_an_export_of_an_older_lake_that_failed_its_parity_is_not_found(lake):
    building = lake.building("model", KEY, OLD)
    made = lake.finish("model", KEY, OLD, building, {}, {"ok": False})
    manifest = lake.folder("models", "model", KEY) / OLD[:16] / "manifest.json"
    manifest.write_text(json.dumps({name: value for name, value in made.manifest.items() if name != "passed"}), encoding="utf-8")
    assert lake.find("model", KEY, OLD) is None


HOLD = """
import sys, time
from agent_pipeline.storage.lake import Lake
from agent_pipeline.keys import PartitionKey
with Lake(sys.argv[1]).run_of(PartitionKey("tau", "airline")):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_partition_is_held_by_one_run_until_it_ends_or_is_killed(tmp_path):
    lake = Lake(str(tmp_path / "lake"))
    other = subprocess.Popen([sys.executable, "-c", HOLD, str(lake.root)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None and other.stdout.readline() == "held\n"
    with pytest.raises(DataError), lake.run_of(KEY):
        pass
    with lake.run_of(PartitionKey("tau", "retail")):
        pass
    waited = []

    def waiting() -> None:
        waited.append(True)
        other.kill()

    with lake.run_of(KEY, waiting):
        assert waited
    other.wait()


def test_a_containers_user_without_a_name_may_move_a_pointer(lake, monkeypatch):
    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 1234")

    monkeypatch.setattr("getpass.getuser", nameless)
    assert lake.set_champion(build(lake, OLD)).who == "unknown"
