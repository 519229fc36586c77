"""The worker process: its mistakes and its death are sentences, and nothing of a killed run stays behind."""

import os
import sys
import tempfile
import time
from pathlib import Path

import dagster as dg
import pyarrow as pa
from filelock import FileLock

from agent_pipeline.compute.launchers import subprocess
from agent_pipeline.errors import WorkerError

KILLS_ITSELF = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]


def launched() -> Exception:
    """What an asset sees that launches a worker which cannot succeed."""
    seen: list[Exception] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext) -> None:
        try:
            subprocess.launch(context, dg.PipesSubprocessClient(), "export", pa.table({"row_id": ["a"]}), {})
        except WorkerError as error:
            seen.append(error)
            raise

    assert not dg.materialize([model], raise_on_error=False).success
    return seen[0]


def test_a_killed_worker_is_a_sentence_that_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(subprocess, "COMMAND", KILLS_ITSELF)
    assert "max_length" in str(launched())


def test_rows_that_a_killed_run_left_are_swept_after_a_day(monkeypatch, tmp_path: Path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(subprocess, "COMMAND", KILLS_ITSELF)
    old, new, used = (tmp_path / f"agent-pipeline-rows-{name}" for name in ("old", "new", "used"))
    for folder in (old, new, used):
        folder.mkdir()
        (folder / "rows.parquet").touch()
    yesterday = time.time() - 25 * 3600
    with FileLock(used / subprocess._IN_USE):  # by a run that has waited for its turn for a day
        for folder in (old, used):
            os.utime(folder, (yesterday, yesterday))
        launched()
    assert {folder.name for folder in tmp_path.glob("agent-pipeline-rows-*")} == {new.name, used.name}
