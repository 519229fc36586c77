"""The lake: old or new, never half; read by others; the same input, the same bytes."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import duckdb
import polars
import pyarrow as pa
import pytest
from upath import UPath

from agent_pipeline.datasets.publishing import encode_trainer_lines
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import SESSIONS, make_session_row, to_batches
from agent_pipeline.storage.lake import MANIFEST, Artifact, Lake, remove
from agent_pipeline.storage.tables import _SEAL_BYTES, _SEAL_NAME
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("tau", "airline")
IDENTITY = "0123456789abcdef0123"
ROWS = pa.schema([pa.field("session_id", pa.string()), pa.field("value", pa.json_())])


def batches(*values: object) -> Iterator[pa.RecordBatch]:
    return to_batches(
        [{"session_id": str(number), "value": value} for number, value in enumerate(values)], ROWS
    )


def put(lake: Lake, *values: object, key: PartitionKey | None = KEY) -> None:
    lake.stage("rows", key, batches(*values), ROWS).commit()


def values(lake: Lake, key: PartitionKey | None = KEY) -> list[object]:
    return [json.loads(text) for text in lake.open("rows", key).read()["value"].to_pylist()]


def build(lake: Lake, content: str = "weights", identity: str = IDENTITY) -> Artifact:
    files = {"sub/weights.bin": content, "config.json": "{}"}
    return artifact(lake, "model", KEY, {"rows": 1}, files, {"loss": None}, identity, latest=False)


def files(folder: Path) -> list[str]:
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


@pytest.fixture(params=["local", "memory"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    # "[b]" is a pattern, unless it is escaped.
    root = (
        str(tmp_path / "a[b]" / "lake")
        if request.param == "local"
        else f"memory://lake-{uuid4().hex}/a[b]"
    )
    return Lake(root, tmp_path / "cache")


@pytest.fixture
def local(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


# Tables


def test_a_table_is_there_only_when_it_is_committed(lake):
    staged = lake.stage("rows", KEY, batches(1, {"a": None}), ROWS)
    assert not lake.has("rows", KEY)
    assert staged.rows == 2 and staged.bytes > 0
    staged.commit()
    assert values(lake) == [1, {"a": None}]
    assert lake.open("rows", KEY).schema_arrow.equals(ROWS)
    assert staged.bytes > 0


@pytest.mark.parametrize("left", [0, 3, 100])
def test_a_table_that_is_cut_off_says_what_to_do(local, left):
    put(local, "x" * 1000)
    os.truncate(str(local.table("rows", KEY)), left)
    with pytest.raises(DataError, match=r"is damaged .*: materialize `rows` again"):
        local.open("rows", KEY)


def test_a_writer_that_fails_leaves_the_old_version_and_no_litter(local):
    put(local, "old")

    def failing() -> Iterator[pa.RecordBatch]:
        yield from batches("new")
        raise RuntimeError("the store broke off")

    with pytest.raises(RuntimeError):
        local.stage("rows", KEY, failing(), ROWS)
    assert values(local) == ["old"]
    assert files(Path(str(local.root))) == ["tables/rows/project=tau/agent=airline/part-0.parquet"]


KILLED = """
import os, sys
import pyarrow as pa
from agent_pipeline.storage.lake import Lake
from agent_pipeline.keys import PartitionKey
schema = pa.schema([("value", pa.string())])
def batches():
    for _ in range(3):
        yield pa.RecordBatch.from_pydict({"value": ["x" * 100_000]}, schema=schema)
    os.kill(os.getpid(), 9)
Lake(sys.argv[1]).stage("rows", PartitionKey("tau", "airline"), batches(), schema)
"""


def test_what_a_killed_writer_left_is_removed_once_it_is_a_day_old_and_what_is_being_written_is_not(
    local,
):
    put(local, "old")
    folder = Path(str(local.table("rows", KEY).parent))
    assert (
        subprocess.run([sys.executable, "-c", KILLED, str(local.root)], check=False).returncode
        == -signal.SIGKILL
    )
    (left,) = folder.glob(".*")
    put(local, "new")
    assert left.exists(), "it may be another container's, which is writing it now"
    yesterday = time.time() - 25 * 3600
    os.utime(left, (yesterday, yesterday))
    put(local, "newer")
    assert files(folder) == ["part-0.parquet"] and values(local) == ["newer"]


def test_a_sweep_removes_what_killed_runs_staged_of_any_age_but_not_beside_a_run(local):
    put(local, "old")
    assert (
        subprocess.run([sys.executable, "-c", KILLED, str(local.root)], check=False).returncode
        == -signal.SIGKILL
    )
    folder = Path(str(local.table("rows", KEY).parent))
    with local.run_of(KEY), pytest.raises(DataError):
        local.sweep()
    assert len(files(folder)) == 2
    local.sweep()
    assert files(folder) == ["part-0.parquet"]


def test_a_reader_that_opened_the_old_version_reads_it_to_its_end(local):
    put(local, "old")
    opened = local.open("rows", KEY)
    put(local, "new")
    assert opened.read()["value"].to_pylist() == ['"old"']
    assert values(local) == ["new"]


def test_the_same_rows_are_the_same_bytes(local):
    staged = [
        local.stage("rows", KEY, batches(*range(2500), {"b": 1, "a": [None]}), ROWS)
        for _ in range(2)
    ]
    assert staged[0].sha256 == staged[1].sha256
    assert staged[0].file.read_bytes() == staged[1].file.read_bytes()
    assert local.stage("rows", KEY, batches(*range(2501)), ROWS).sha256 != staged[0].sha256


def test_duckdb_and_polars_read_the_partitions_as_one_table(local):
    session = {"source": "t", "messages": [{"role": "user", "content": "ü"}]}
    for agent in ("airline", "retail"):
        row = make_session_row(
            Session(session_id=f"{agent}-1", project="tau", agent=agent, **session)
        )
        local.stage(
            "sessions", PartitionKey("tau", agent), to_batches([row], SESSIONS), SESSIONS
        ).commit()
    local.stage(
        "sessions", PartitionKey("tau", "airline"), to_batches([], SESSIONS), SESSIONS
    )  # staged, not committed: nobody sees it
    pattern = f"{local.root}/tables/sessions/**/*.parquet"
    query = f"SELECT agent, session_id, messages->0->>'content' FROM read_parquet('{pattern}', hive_partitioning = true) ORDER BY agent"
    assert duckdb.sql(query).fetchall() == [
        ("airline", "airline-1", "ü"),
        ("retail", "retail-1", "ü"),
    ]
    frame = (
        polars.scan_parquet(pattern, hive_partitioning=True)
        .select("project", "agent", "session_id")
        .sort("agent")
        .collect()
    )
    assert frame.rows() == [("tau", "airline", "airline-1"), ("tau", "retail", "retail-1")]


# JSONL


def test_jsonl_has_an_object_a_line_and_no_file_without_rows(lake):
    path = lake.folder("jsonl", "rows", KEY) / "train.jsonl"
    lake.replace(path, encode_trainer_lines([{"a": "ü\n"}, {"b": None, "tools": None}]))
    assert path.read_text(encoding="utf-8") == '{"a":"ü\\n"}\n{"tools":null}\n'
    lake.replace(path, [])
    assert not path.exists()


# Models


def test_an_artifact_is_found_by_its_identity_and_becomes_current(lake):
    made = build(lake)
    assert lake.find("model", KEY, IDENTITY) == made
    assert (made.path / "sub" / "weights.bin").read_text(encoding="utf-8") == "weights"
    assert sorted(made.manifest["files"]) == ["config.json", "sub/weights.bin"]
    assert not lake.building("model", KEY, "other").joinpath("config.json").exists()
    with pytest.raises(DataError):
        lake.latest("model", KEY)
    lake.set_latest(made)
    assert lake.latest("model", KEY) == made


def test_checksum_of_a_table(lake: Lake) -> None:
    """It follows the content, and is stored in the file. Older files are read as a whole."""
    put(lake, 1, 2)
    first = lake.checksum("rows", KEY)
    put(lake, 1, 3)
    second = lake.checksum("rows", KEY)
    path = lake.table("rows", KEY)
    content = lake.fs.read(path)
    begin = content.index(_SEAL_NAME)
    older = content[:begin] + content[begin + _SEAL_BYTES :]
    lake.replace(path, [older])
    assert first != second == lake.checksum("rows", KEY)
    put(lake, 1, 2)
    assert lake.checksum("rows", KEY) == first
    with pytest.raises(DataError):
        lake.checksum("others", KEY)


def test_no_flipped_bit_of_a_table_changes_a_value_without_a_word(tmp_path):
    lake, chance = Lake(tmp_path / "lake", tmp_path / "cache"), random.Random(7)
    put(lake, *({"number": number, "words": "some words " * (number % 5)} for number in range(200)))
    path = Path(lake.table("rows", KEY).path)
    whole, written = path.read_bytes(), values(lake)
    unharmed = 0
    for time_ns in range(300):
        raw = bytearray(whole)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        os.utime(path, ns=(time_ns, time_ns))
        try:
            assert values(lake) == written
            unharmed += 1
        except DataError as error:
            assert "damaged" in str(error)
    assert unharmed < 20  # of the checksum's own name alone
    path.write_bytes(whole)
    assert (
        values(lake) == written
        and duckdb.read_parquet(str(path)).fetchall()
        and len(polars.read_parquet(path)) == 200
    )


def test_flipped_bits_beneath_the_time_of_a_table(tmp_path: Path) -> None:
    """A table that was read before, and then changed without another size or time, is read again and found damaged."""
    lake, chance = Lake(tmp_path / "lake", tmp_path / "cache"), random.Random(11)
    put(lake, *range(500))
    path = Path(lake.table("rows", KEY).path)
    status, whole, written = path.stat(), path.read_bytes(), values(lake)
    damaged = 0
    for _ in range(50):
        raw = bytearray(whole)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        try:
            assert values(lake) == written
        except DataError:
            damaged += 1
    assert damaged > 40


def test_flipped_bits_of_a_model(tmp_path: Path) -> None:
    """Of 300 flipped bits in the files of a model, none is verified or promoted."""
    lake, chance = Lake(tmp_path / "lake", tmp_path / "cache"), random.Random(13)
    made = build(lake, "some weights " * 200)
    names = sorted(made.manifest["files"])
    for _ in range(300):
        path = made.path / chance.choice(names)
        whole = path.read_bytes()
        raw = bytearray(whole)
        raw[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        path.write_bytes(raw)
        for use in (lake.verify, lake.set_champion):
            with pytest.raises(DataError, match="damaged"):
                use(made)
        path.write_bytes(whole)
    assert lake.verify(made) == made


@pytest.mark.parametrize("name", [MANIFEST, "config.json", "sub/weights.bin"])
@pytest.mark.parametrize("left", [None, 0, 1])
def test_an_artifact_with_a_missing_or_cut_file_is_not_found(lake, name, left, tmp_path):
    made = build(lake)
    lake.set_latest(made)
    stored = lake.root / "models" / "model" / "project=tau" / "agent=airline" / IDENTITY[:16] / name
    content = stored.read_bytes()
    remove(stored)
    if left is not None:
        stored.write_bytes(content[:left])
    elsewhere = lake if lake.is_local else Lake(lake.root, tmp_path / "another machine")
    assert elsewhere.find("model", KEY, IDENTITY) is None
    with pytest.raises(DataError):
        elsewhere.latest("model", KEY)


def test_another_machine_fetches_a_remote_artifact_and_mends_its_broken_copy(tmp_path):
    root = UPath(f"memory://lake-{uuid4().hex}")
    made = build(Lake(root, tmp_path / "one"))
    elsewhere = Lake(root, tmp_path / "two")
    for _ in range(2):
        found = elsewhere.find("model", KEY, IDENTITY)
        assert (
            found is not None
            and found.path.is_relative_to(tmp_path / "two")
            and found.manifest == made.manifest
        )
        assert (found.path / "sub" / "weights.bin").read_text(encoding="utf-8") == "weights"
        os.truncate(found.path / "sub" / "weights.bin", 2)  # killed in the middle of the download
