"""A lake in a bucket: its endpoint and credentials are settings; machines that share it lose nothing of each other; few requests."""

import json
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.ledger import read_ledger, record_tasks
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError, LakeError, SettingsError
from agent_pipeline.ingestion.block_list import BlockList
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage import filesystem, leases
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.conftest import CREDENTIALS
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("tau", "airline")


def use(lake: Lake, cache: Path) -> None:
    """Write a table and two artifacts, and read them back on another machine."""
    table = pa.table({"session_id": ["a"]})
    lake.stage("rows", KEY, table.to_batches(), table.schema).commit()
    artifacts = [
        artifact(lake, "model", KEY, {}, {"weights": name}, identity=name * 64)
        for name in ("a", "b")
    ]
    lake.set_champion(artifacts[0])
    elsewhere = Lake(lake.root, cache)
    assert elsewhere.open("rows", KEY).read() == table
    assert (elsewhere.latest("model", KEY).path / "weights").read_text(encoding="utf-8") == "b"
    champion = elsewhere.champion("model", KEY)
    assert champion is not None and champion.path.is_relative_to(cache)
    with pytest.raises(DataError):
        elsewhere.set_champion(artifacts[1], expected=1)
    assert [entry.generation for entry in lake.history("model", KEY)] == [1, 2, 3]
    lake.replace(lines := lake.folder("jsonl", "rows", KEY) / "train.jsonl", [b'{"a": 1}\n'])
    assert {file.kind for file in elsewhere.files()} == {"tables", "models", "jsonl"}
    assert elsewhere.finished("model", KEY) == [
        elsewhere.find("model", KEY, name * 64) for name in ("a", "b")
    ]
    lake.replace(lines, [])
    assert not lines.exists()


@pytest.fixture
def machines(endpoint: str, tmp_path: Path) -> list[Lake]:
    """The same lake in a bucket, as four machines see it."""
    options = CREDENTIALS | {"endpoint_url": endpoint}
    return [
        Lake(f"s3://models/{tmp_path.name}", tmp_path / str(number), options) for number in range(4)
    ]


def test_a_bucket_with_its_own_endpoint_and_credentials_is_a_matter_of_settings(
    endpoint, tmp_path, monkeypatch
):
    settings = f"""
lake = "s3://models/a[b]/lake"
cache = "{tmp_path}/one"

[lake_options]
endpoint_url = "{endpoint}"
key = "$LAKE_KEY"
secret = "$LAKE_SECRET"
"""
    (tmp_path / "pipeline.toml").write_text(settings, encoding="utf-8")
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(tmp_path / "pipeline.toml"))
    monkeypatch.setenv("LAKE_KEY", "key")
    monkeypatch.setenv("LAKE_SECRET", "secret")
    use(load_settings().open_lake(), tmp_path / "two")


def test_a_lake_in_memory_does_the_same(tmp_path):
    use(Lake(f"memory://bucket-{tmp_path.name}/a[b]", tmp_path / "one"), tmp_path / "two")


def test_a_lake_that_is_a_file_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "file"))
    with pytest.raises(SettingsError):
        load_settings().open_lake()


@pytest.mark.parametrize(
    ("url", "options", "missing"),
    [("gs://bucket/lake", {}, "gcsfs"), ("memory://lake", {"key": "$NOT_SET"}, "NOT_SET")],
)
def test_a_bucket_whose_package_or_variable_is_missing_is_one_sentence(url, options, missing):
    with pytest.raises(SettingsError, match=missing):
        Lake(url, options=options)


def test_what_another_machine_made_anew_with_files_of_the_same_size_is_fetched_again(tmp_path):
    one, two = (
        Lake(f"memory://bucket-{tmp_path.name}", tmp_path / name) for name in ("one", "two")
    )
    for weights in ("old", "new"):
        building = one.building("model", KEY, "a" * 64)
        (building / "weights").write_text(weights, encoding="utf-8")
        one.set_latest(one.finish("model", KEY, "a" * 64, building, {}, {}))
        assert (two.latest("model", KEY).path / "weights").read_text(encoding="utf-8") == weights


def test_what_two_machines_made_at_once_is_never_read_as_one(tmp_path):
    one, two = (
        Lake(f"memory://bucket-{tmp_path.name}", tmp_path / name) for name in ("one", "two")
    )
    made = artifact(one, "model", KEY, {}, {"weights": "one", "config": "1"})
    (one.artifact_folder("model", KEY, made.identity) / "weights").write_text(
        "two", encoding="utf-8"
    )
    with pytest.raises(DataError, match="missing or incomplete"):
        two.latest("model", KEY)


WRITER = """
import json, pathlib, sys
import pyarrow as pa
from agent_pipeline.datasets.ledger import record_tasks
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
lake = Lake(sys.argv[1], pathlib.Path(sys.argv[2]), json.loads(sys.argv[3]))
for number in range(10):
    record_tasks(lake, PartitionKey("tau", "airline"), pa.array([f"process-{number}"]), SplitSizes())
"""


@pytest.mark.slow
def test_writers_on_several_machines_lose_no_update_and_the_history_is_whole(machines, tmp_path):
    artifacts = [
        artifact(machines[0], "model", KEY, {"number": number}, {}, latest=False)
        for number in range(24)
    ]
    asked = [
        str(machines[0].root),
        str(tmp_path / "process"),
        json.dumps(dict(machines[0].root.storage_options)),
    ]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *asked], stderr=subprocess.PIPE, text=True
    )

    def write(number: int) -> None:
        lake = machines[number % 4]
        record_tasks(lake, KEY, pa.array([f"task-{number}"]), SplitSizes())
        lake.set_latest(artifacts[number])
        BlockList.add(lake, [f"session-{number}"], KEY)

    with ThreadPoolExecutor(24) as threads:
        list(threads.map(write, range(24)))
    assert process.communicate(timeout=300)[1] == "" and process.returncode == 0
    tasks = {f"task-{number}" for number in range(24)} | {
        f"process-{number}" for number in range(10)
    }
    assert (
        set(read_ledger(machines[3], KEY, SplitSizes()).recorded["task_key"].to_pylist()) == tasks
    )
    entries = machines[1].history("model", KEY)
    assert [entry.generation for entry in entries] == list(range(1, 25))
    assert {entry.latest for entry in entries} == {each.identity for each in artifacts}
    assert [entry.against for entry in entries] == [
        None,
        *(entry.latest for entry in entries[:-1]),
    ], "each saw the one before"
    assert all(BlockList.read(machines[2]).has(f"session-{number}", KEY) for number in range(24))


@pytest.mark.parametrize(
    ("busy", "tries"), [(0, range(1, 2)), (500, range(8, 60)), (10**6, range(8, 60))]
)
def test_a_writer_to_whom_others_are_faster_tries_ever_more_seldom_for_ten_minutes(
    busy, tries, tmp_path, monkeypatch
):
    clock, tried, put = [0.0], list[float](), filesystem.put_file

    def slow(*given: Any, **named: Any) -> None:
        if (
            given[1].name != "last"
        ):  # the file after the entry, which is written without a condition
            tried.append(clock[0])
            clock[0] += 1
            if clock[0] < busy:
                raise FileExistsError
        put(*given, **named)

    lake = Lake(f"memory://{tmp_path.name}", tmp_path)
    made = artifact(lake, "model", KEY, {}, {}, latest=False)
    waits = SimpleNamespace(
        monotonic=lambda: clock[0],
        sleep=lambda seconds: clock.append(clock.pop() + seconds),
        time=time.time,
    )
    monkeypatch.setattr(filesystem, "time", waits)
    monkeypatch.setattr(filesystem, "put_file", slow)
    with (
        nullcontext()
        if busy < 600
        else pytest.raises(
            DataError, match=r"Other processes kept writing to .*pointers for 10 minutes"
        )
    ):
        assert lake.set_latest(made).generation == 1
    assert (
        len(tried) in tries
        and (busy > 600) == (clock[0] >= 600)
        and clock[0] <= (601 if busy else 1)
    )


def test_a_partition_is_held_by_one_machine_until_its_run_ends_or_its_machine_dies(
    machines, monkeypatch
):
    monkeypatch.setattr(leases, "BEAT", 0.1)
    monkeypatch.setattr(leases, "LOOK", 0.05)
    monkeypatch.setattr(leases, "DEAD", 600.0)  # on a loaded machine, a beat may be late
    monkeypatch.setattr(
        leases, "time", SimpleNamespace(monotonic=time.monotonic, sleep=time.sleep)
    )  # the clock on the wall may be wrong
    one, two = machines[:2]
    order: list[str] = []
    with ThreadPoolExecutor(1) as other:
        with one.run_of(KEY):
            with pytest.raises(DataError, match=r"another machine.*tau/airline"), two.run_of(KEY):
                pass

            def second() -> None:
                with two.run_of(KEY, lambda: order.append("waits")):
                    order.append("second")

            waiting = other.submit(second)
            while not order:
                threading.Event().wait(0.01)
            order.append("first ends")
        waiting.result()
    assert order == ["waits", "first ends", "second"]
    assert not [file for file in one.files() if file.kind == ".locks"]
    (one.root / ".locks" / "tau" / "airline" / "run.lock").write_bytes(b"a machine that died")
    clock, waited = [0.0], []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        clock[0] += 100.0

    monkeypatch.setattr(leases, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep))
    with two.run_of(KEY):
        assert len(waited) == 7


def test_a_run_that_lost_its_partition_to_another_machine_is_interrupted(machines, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.05)
    interrupted = threading.Event()
    monkeypatch.setattr(
        leases.os, "kill", lambda process, sent: sent == signal.SIGTERM and interrupted.set()
    )
    place = machines[0].root / ".locks" / "tau" / "airline" / "run.lock"
    with machines[0].run_of(KEY):
        place.write_bytes(b"another machine's")
        assert interrupted.wait(60)
    assert place.read_bytes() == b"another machine's"


def test_a_run_whose_bucket_is_out_of_reach_is_ended_before_its_partition_is_free(
    machines, monkeypatch
):
    import s3fs
    from botocore.exceptions import EndpointConnectionError

    monkeypatch.setattr(leases, "BEAT", 0.05)
    monkeypatch.setattr(leases, "LOOK", 0.05)
    monkeypatch.setattr(leases, "DEAD", 1.0)
    ended = threading.Event()
    monkeypatch.setattr(
        leases.os, "kill", lambda process, sent: sent == signal.SIGTERM and ended.set()
    )

    async def refused(*_: Any, **__: Any) -> None:
        raise EndpointConnectionError(endpoint_url="http://bucket")

    with machines[0].run_of(KEY):
        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", refused)
        assert ended.wait(60)


def test_a_write_whose_answer_was_lost_is_neither_done_twice_nor_taken_for_anothers(
    machines, monkeypatch
):
    import s3fs

    call, made = (
        s3fs.S3FileSystem._call_s3,
        artifact(machines[0], "model", KEY, {}, {"weights": "w"}),
    )

    async def twice(fs: Any, method: str, *given: Any, **named: Any) -> Any:
        answer = await call(fs, method, *given, **named)
        return await call(fs, method, *given, **named) if method == "put_object" else answer

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", twice)
    with machines[0].run_of(KEY):
        machines[0].set_champion(made, expected=1)
    assert [entry.champion for entry in machines[1].history("model", KEY)] == [None, made.identity]


def test_a_run_goes_on_whose_bucket_reports_errors_for_renewals_that_it_has_done(
    machines, monkeypatch
):
    import s3fs

    monkeypatch.setattr(leases, "BEAT", 0.01)
    monkeypatch.setattr(leases, "LOOK", 0.01)
    killed, done, call = threading.Event(), list[str](), s3fs.S3FileSystem._call_s3
    monkeypatch.setattr(leases.os, "kill", lambda *_: killed.set())

    async def failing(fs: Any, method: str, *given: Any, **named: Any) -> Any:
        answer = await call(fs, method, *given, **named)
        if method == "put_object":
            done.append(named["Key"])
            raise OSError("the gateway lost the answer")
        return answer

    with machines[0].run_of(KEY):
        monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", failing)
        while len(done) < 4 and not killed.wait(0.01):
            pass
    assert not killed.is_set()


def test_the_check_of_the_settings_tells_a_store_that_ignores_conditions_and_a_bucket_that_is_not_there(
    machines, monkeypatch
):
    import s3fs

    assert machines[0].fs.keeps_conditions() and not list(machines[0].files())
    call = s3fs.S3FileSystem._call_s3

    async def ignoring(
        fs: Any,
        method: str,
        *given: Any,
        IfMatch: str = "",  # noqa: N803
        IfNoneMatch: str = "",  # noqa: N803
        **named: Any,
    ) -> Any:
        return await call(fs, method, *given, **named)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", ignoring)
    assert not machines[0].fs.keeps_conditions()
    monkeypatch.undo()
    with pytest.raises(LakeError, match="s3://nowhere/lake"):
        Lake("s3://nowhere/lake", machines[0].fs.cache, dict(machines[0].root.storage_options))


def test_listings_of_several_pages_are_whole(machines, monkeypatch):
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    for number in range(4):
        artifact(machines[0], "model", KEY, {"number": number}, {"weights": "w"})
    assert [entry.generation for entry in machines[1].history("model", KEY)] == [1, 2, 3, 4]
    assert (
        len(list(machines[1].files())) == 4 * 2 + 4 + 1
        and len(machines[1].finished("model", KEY)) == 4
    )


def test_the_number_of_requests_does_not_follow_the_number_of_objects(machines, monkeypatch):
    import s3fs

    lake, asked, going, call = machines[0], list[str](), list[int]([0]), s3fs.S3FileSystem._call_s3

    async def counting(fs: Any, method: str, *given: Any, **named: Any) -> Any:
        asked.append(method)
        going.append(going[-1] + 1)
        try:
            return await call(fs, method, *given, **named)
        finally:
            going.append(going[-1] - 1)

    table = pa.table(
        {"session_id": ["a"] * 5000, "words": [f"{number}" * 20 for number in range(5000)]}
    )
    for number in range(4):
        artifact(lake, "model", KEY, {"number": number}, {"weights": "w", "config": "c"})
        lake.stage(
            "rows", PartitionKey("tau", f"agent-{number}"), table.to_batches(), table.schema
        ).commit()
    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", counting)
    assert len(list(lake.files())) == 4 * 5 + 1 and len(asked) <= 2
    assert max(going) == 1 and len(list(lake.manifests())) == 4 and max(going) == 4
    asked.clear()
    found = lake.finished("model", KEY)
    assert len(found) == 4 and asked.count("list_objects_v2") <= 4
    asked.clear()
    assert lake.open("rows", PartitionKey("tau", "agent-3")).read(["words"]).num_rows == 5000
    assert asked.count("get_object") == 1 and len(asked) <= 2
    asked.clear()
    lake.set_champion(found[0])
    # The last entry and the one before it are checked, and so is, twice, the number of the last entry, which is written in the end.
    assert len(asked) == 10
    record_tasks(lake, KEY, pa.array(["task-1"]), SplitSizes())
    asked.clear()
    record_tasks(lake, KEY, pa.array(["task-2"]), SplitSizes())
    assert len(asked) == 4
    asked.clear()
    lake.replace(lake.folder("jsonl", "rows", KEY) / "train.jsonl", [b'{"a": 1}\n'])
    assert asked == ["put_object"]
