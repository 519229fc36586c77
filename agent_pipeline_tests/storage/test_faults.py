"""A disk that is full or not ours to write, a clock that jumps back, a table that is replaced while it is read."""

import errno
import os
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from agent_pipeline.errors import disk_sentence
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage import filesystem, pointers
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("tau", "airline")
TABLE = pa.table({"session_id": [f"session {number}" * 1000 for number in range(2000)]})
linux = pytest.mark.skipif(sys.platform != "linux", reason="/dev/full and /sys are Linux's")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    made = Lake(tmp_path / "lake", tmp_path / "cache")
    made.stage("rows", KEY, TABLE.to_batches(), TABLE.schema).commit()
    made.replace(made.folder("jsonl", "rows", KEY) / "train.jsonl", [b'{"a": 1}\n'])
    return made


def contents(lake: Lake) -> dict[str, bytes]:
    return {str(file.path): file.path.read_bytes() for file in lake.files()}


@linux
def test_a_full_disk_is_a_sentence_and_nothing_half_written_is_seen(lake, monkeypatch):
    before = contents(lake)
    monkeypatch.setattr(filesystem, "uuid4", lambda: SimpleNamespace(hex="0" * 32))
    lines = lake.folder("jsonl", "rows", KEY) / "train.jsonl"
    writes = {
        lake.table("rows", KEY): lambda: lake.stage("rows", KEY, TABLE.to_batches(), TABLE.schema),
        lines: lambda: lake.replace(lines, [b'{"a": 2}\n']),
    }
    for path, write in writes.items():
        Path(path.parent.path, f".{path.name}-00000000").symlink_to("/dev/full")
        with pytest.raises(OSError) as error:
            write()
        assert error.value.errno == errno.ENOSPC and "The disk is full" in str(
            disk_sentence(error.value)
        )
    assert contents(lake) == before


def test_a_full_disk_leaves_the_last_artifact_and_a_folder_to_go_on_from(lake, monkeypatch):
    made = artifact(lake, "model", KEY, {}, {"weights": "good"})

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space left"):
            artifact(lake, "model", KEY, {"rows": 2}, {"weights": "new"})
    assert lake.latest("model", KEY) == made and len(list(lake.unfinished())) == 1
    assert artifact(lake, "model", KEY, {"rows": 2}, {"weights": "new"}).passed and not list(
        lake.unfinished()
    )


@linux
def test_a_lake_that_is_not_ours_to_write_is_a_sentence(tmp_path):
    with pytest.raises(OSError) as error:
        Lake("/sys/lake", tmp_path).stage("rows", KEY, TABLE.to_batches(), TABLE.schema)
    assert "no permission to write" in str(disk_sentence(error.value))


def test_a_clock_that_jumps_back_changes_neither_the_history_nor_what_is_staged(lake, monkeypatch):
    clock = iter([datetime(2026, 11, 23, tzinfo=UTC) - timedelta(days=day) for day in range(3)])
    monkeypatch.setattr(pointers, "now", lambda: next(clock).isoformat())
    made = [artifact(lake, "model", KEY, {"number": number}, {}) for number in range(3)]
    entries = lake.history("model", KEY)
    assert [entry.generation for entry in entries] == [1, 2, 3] and entries[0].when > entries[
        2
    ].when
    assert lake.latest("model", KEY) == made[2]
    staged = lake.stage("rows", KEY, TABLE.to_batches(), TABLE.schema)
    tomorrow = time.time() + 25 * 3600
    os.utime(staged.file, (tomorrow, tomorrow))  # written before the clock jumped back
    lake.stage("rows", KEY, TABLE.to_batches(), TABLE.schema).commit()
    staged.commit()
    assert lake.open("rows", KEY).read() == TABLE


def test_a_table_of_a_bucket_that_is_replaced_while_it_is_read_is_read_to_its_end(tmp_path):
    lake = Lake(f"memory://bucket-{tmp_path.name}", tmp_path)
    lake.stage("rows", KEY, TABLE.to_batches(), TABLE.schema).commit()
    opened = lake.open("rows", KEY)
    lake.stage("rows", KEY, TABLE.slice(0, 1).to_batches(), TABLE.schema).commit()
    assert opened.read() == TABLE and lake.open("rows", KEY).read().num_rows == 1
