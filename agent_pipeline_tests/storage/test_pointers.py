"""Latest, champion and history: moved atomically, by one writer at a time, in a folder and in a bucket."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from upath import UPath

from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Artifact, Lake, remove
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("tau", "airline")
OLD, NEW = "a" * 64, "b" * 64


@pytest.fixture(params=["local", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    root = str(tmp_path / "lake") if request.param == "local" else f"memory://lake-{uuid4().hex}"
    return Lake(root, tmp_path / "cache")


def build(lake: Lake, identity: str, passed: bool = True) -> Artifact:
    return artifact(
        lake,
        "model",
        KEY,
        {},
        {"weights": identity},
        identity=identity,
        latest=False,
        passed=passed,
    )


def test_the_history_says_who_moved_what_when_why_and_against_what(lake):
    old, new = build(lake, OLD), build(lake, NEW)
    lake.set_latest(old, who="run 1")
    lake.set_champion(old, why="first", who="ann")
    lake.set_champion(new, why="better", who="ben")
    entries = lake.history("model", KEY)
    assert [
        (entry.generation, entry.moved, entry.who, entry.why, entry.against) for entry in entries
    ] == [
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
    assert [entry.against for entry in entries] == [
        None,
        *(entry.latest for entry in entries[:-1]),
    ], "each saw the one before"


def entries_folder(lake: Lake) -> UPath:
    return lake.folder("models", "model", KEY) / "pointers"


@pytest.mark.parametrize("content", ["", '{"gener', "{}", '{"latest": null, "champion": null}'])
@pytest.mark.parametrize("number", [1, 2, 3])
def test_damaged_entry_is_an_error(lake, number, content):
    """A damaged last entry was passed over, so that the champion before it came back."""
    for made in (build(lake, OLD), build(lake, NEW), build(lake, "c" * 64)):
        lake.set_champion(made)
    path = entries_folder(lake) / f"{number:08}.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match=path.name):
        lake.history("model", KEY)
    if number > 1:
        with pytest.raises(DataError, match=path.name):
            lake.champion("model", KEY)
    with pytest.raises(DataError, match=path.name) if number > 1 else nullcontext():
        lake.set_latest(build(lake, NEW))


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_bit_of_an_entry_is_silent(tmp_path, data):
    """Of 2,216 bits of a last entry, 556 brought back the champion before it, and 64 said that there was none."""
    lake = Lake(tmp_path / uuid4().hex)
    for made in (build(lake, OLD), build(lake, NEW)):
        lake.set_champion(made, why="Ünïcode", who="ann")
    written = lake.history("model", KEY)
    path = Path(entries_folder(lake).path) / f"{data.draw(st.integers(1, 2)):08}.json"
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        assert lake.history("model", KEY) == written
        assert lake.pointers("model", KEY) == written[-1]
    except DataError as error:
        assert "is damaged" in str(error)
    else:
        raise AssertionError("the chain has no bit without a meaning")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_missing_entry(lake, number):
    """A missing entry was passed over: a missing last entry brought back the champion before it."""
    identities = [OLD, NEW, "c" * 64]
    for identity in identities:
        lake.set_champion(build(lake, identity))
    path = entries_folder(lake) / f"{number:08}.json"
    remove(path)
    for read in (lake.history, lake.pointers, lake.champion):
        with pytest.raises(DamageError) as error:
            read("model", KEY)
        assert error.value.path == str(path)
    with pytest.raises(DamageError):
        lake.set_champion(build(lake, "d" * 64))


@pytest.mark.parametrize("number", [1, 2, 3])
def test_entry_whose_loss_a_person_accepted(lake, number):
    identities = [OLD, NEW, "c" * 64]
    for identity in identities:
        lake.set_champion(build(lake, identity))
    path = entries_folder(lake) / f"{number:08}.json"
    remove(path)
    (entries_folder(lake) / f"{number:08}.lost").write_bytes(b"")
    left = [identity for place, identity in enumerate(identities, 1) if place != number]
    assert [entry.champion for entry in lake.history("model", KEY)] == left
    assert lake.pointers("model", KEY).champion == left[-1]
    lake.set_champion(build(lake, "d" * 64))
    assert [entry.generation for entry in lake.history("model", KEY)][-1] == 4
    assert lake.champion("model", KEY).identity == "d" * 64


@pytest.mark.parametrize("content", [b"", b"00000001", b"00000009 " + b"0" * 64])
def test_damaged_record_of_the_last_number(lake, content):
    for identity in (OLD, NEW):
        lake.set_champion(build(lake, identity))
    (entries_folder(lake) / "last").write_bytes(content)
    assert lake.champion("model", KEY).identity == NEW
    lake.set_champion(build(lake, "c" * 64))
    assert lake.champion("model", KEY).identity == "c" * 64


def test_entries_that_were_exchanged(lake):
    """The first entries of two logs have the same number, and no entry before them."""
    other = PartitionKey("tau", "retail")
    lake.set_champion(build(lake, OLD))
    lake.set_champion(artifact(lake, "model", other, {}, {}, identity=NEW, latest=False))
    one, two = (
        lake.folder("models", "model", key) / "pointers" / "00000001.json" for key in (KEY, other)
    )
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    for key in (KEY, other):
        with pytest.raises(DamageError):
            lake.pointers("model", key)


def test_entries_of_an_older_version_are_read_and_then_guarded(lake):
    for made in (build(lake, OLD), build(lake, NEW)):
        lake.set_champion(made)
    for path in sorted(lake.fs.files(entries_folder(lake)), key=str):
        if path.suffix == ".json":
            plain = {
                name: value
                for name, value in json.loads(path.read_text()).items()
                if not name.endswith("sha256")
            }
            path.write_text(json.dumps(plain), encoding="utf-8")
    assert [entry.champion for entry in lake.history("model", KEY)] == [OLD, NEW]
    lake.set_champion(build(lake, OLD))
    assert lake.champion("model", KEY).identity == OLD
    older = entries_folder(lake) / "00000002.json"
    older.write_text(older.read_text().replace("b" * 64, "d" * 64), encoding="utf-8")
    with pytest.raises(DataError, match="00000002"):
        lake.history("model", KEY)


def test_artifact_with_a_rotten_file_is_not_promoted(lake, tmp_path):
    """A GGUF of zero bytes of the right size was promoted and served."""
    made = build(lake, OLD)
    lake.set_latest(made)
    stored = lake.artifact_folder("model", KEY, OLD) / "weights"
    stored.write_bytes(bytes(len(OLD)))
    if not lake.fs.is_local:
        assert Lake(lake.root, tmp_path / "another machine").find("model", KEY, OLD) is None
        (made.path / "weights").write_bytes(bytes(len(OLD)))
    for promote in (lake.verify, lake.set_champion):
        with pytest.raises(DataError, match="weights"):
            promote(made)
    assert lake.pointers("model", KEY).champion is None


def test_rotten_copy_of_an_artifact_in_a_bucket_is_fetched_again(tmp_path):
    lake = Lake(f"memory://lake-{uuid4().hex}", tmp_path / "cache")
    made = build(lake, OLD)
    (made.path / "weights").write_bytes(bytes(len(OLD)))
    assert (lake.verify(made).path / "weights").read_text() == OLD


@given(data=st.data())
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_flipped_bit_of_a_manifest_is_silent(tmp_path, data):
    lake = Lake(tmp_path / uuid4().hex)
    made = build(lake, OLD)
    path = made.path / "manifest.json"
    content = bytearray(path.read_bytes())
    bit = data.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    if (found := lake.find("model", KEY, OLD)) is not None:
        assert {
            name: found.manifest[name]
            for name in ("identity", "made_from", "files", "report", "parents")
        } == {
            name: made.manifest[name]
            for name in ("identity", "made_from", "files", "report", "parents")
        }


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
    assert len(lake.history("model", KEY)) == len(list(lake.manifests())) == 1 and lake.partitions(
        "models", "model"
    ) == [KEY]


def test_an_export_of_an_older_lake_that_failed_its_parity_is_not_found(lake):
    building = lake.building("model", KEY, OLD)
    made = lake.finish("model", KEY, OLD, building, {}, {"ok": False})
    manifest = lake.folder("models", "model", KEY) / OLD[:16] / "manifest.json"
    manifest.write_text(
        json.dumps({name: value for name, value in made.manifest.items() if name != "passed"}),
        encoding="utf-8",
    )
    assert lake.find("model", KEY, OLD) is None


HOLD = """
import sys, time
from agent_pipeline.storage.lake import Lake
from agent_pipeline.keys import PartitionKey
with Lake(sys.argv[1]).run_of(PartitionKey("tau", "airline")):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_partition_is_held_by_one_run_until_it_ends_or_is_killed(tmp_path):
    lake = Lake(str(tmp_path / "lake"))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lake.root)], stdout=subprocess.PIPE, text=True
    )
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
