"""The worker process: its death is a sentence."""

import sys

import dagster as dg

from agent_pipeline.compute.launchers import subprocess
from agent_pipeline.errors import WorkerError

KILLS_ITSELF = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]


def launched() -> Exception:
    """What an asset sees that launches a worker which cannot succeed."""
    seen: list[Exception] = []

    @dg.asset
    def model(context: dg.AssetExecutionContext) -> None:
        try:
            subprocess.launch(context, dg.PipesSubprocessClient(), "export", {})
        except WorkerError as error:
            seen.append(error)
            raise

    assert not dg.materialize([model], raise_on_error=False).success
    return seen[0]


def test_a_killed_worker_is_a_sentence_that_says_what_to_lower(monkeypatch):
    monkeypatch.setattr(subprocess, "COMMAND", KILLS_ITSELF)
    assert "max_length" in str(launched())
