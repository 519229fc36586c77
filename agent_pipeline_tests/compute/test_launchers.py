"""The worker process: its death is a sentence, and its messages are read whole."""

import sys

import dagster as dg

from agent_pipeline.compute.launchers import subprocess
from agent_pipeline.compute.launchers.launcher import launch
from agent_pipeline.definitions import build_defs
from agent_pipeline.errors import WorkerError

KILLS_ITSELF = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]

WRITES_HALVES = """
import json, time, dagster_pipes

def write(channel, message):
    text = json.dumps(message) + chr(10)
    for part in (text[:40], text[40:]):
        with open(channel._path, "a") as file:
            file.write(part)
        time.sleep(0.1)

dagster_pipes.PipesFileMessageWriterChannel.write_message = write
with dagster_pipes.open_dagster_pipes() as pipes:
    pipes.report_custom_message({"identity": "1"})
"""


def launched() -> Exception:
    """What an asset sees that launches a worker which cannot succeed."""
    seen: list[Exception] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext) -> None:
        try:
            launch(context, subprocess.Subprocess(dg.PipesSubprocessClient()), "export", {})
        except WorkerError as error:
            seen.append(error)
            raise

    assert not dg.materialize([model], raise_on_error=False).success
    return seen[0]


def test_a_killed_worker_is_a_sentence_that_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(subprocess, "COMMAND", KILLS_ITSELF)
    assert "max_length" in str(launched())


def test_a_worker_that_ends_without_a_result_is_a_sentence(monkeypatch):
    monkeypatch.setattr(subprocess, "COMMAND", [sys.executable, "-c", "pass"])
    assert "without a result" in str(launched())


def test_a_message_that_is_half_written_is_waited_for(monkeypatch):
    monkeypatch.setattr(subprocess, "COMMAND", [sys.executable, "-c", WRITES_HALVES])

    seen = []

    @dg.asset
    def model(
        context: dg.AssetExecutionContext, pipes: dg.ResourceParam[dg.PipesSubprocessClient]
    ) -> dg.MaterializeResult:
        seen.append(launch(context, subprocess.Subprocess(pipes), "export", {}))
        return dg.MaterializeResult()

    assert dg.materialize([model], resources={"pipes": build_defs().resources["pipes"]}).success
    assert seen == [{"identity": "1"}]
