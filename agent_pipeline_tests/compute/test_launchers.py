"""The worker process: its death is a sentence, and its messages are read whole."""

import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from subprocess import Popen

import dagster as dg
import pytest

from agent_pipeline.compute.launchers import subprocess
from agent_pipeline.compute.launchers.launcher import launch
from agent_pipeline.definitions import build_defs
from agent_pipeline.errors import PassingError, WorkerError

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


SLEEPS = """
import os, sys, time
try:
    open("worker", "w").write(str(os.getpid()))
    time.sleep(600)
except KeyboardInterrupt:
    open("stack", "w").close()
"""
LAUNCHES_A_SLEEPER = f"""
import sys
import dagster as dg
from agent_pipeline.compute.launchers import subprocess
from agent_pipeline.compute.launchers.launcher import launch

subprocess.COMMAND = [sys.executable, "-c", {SLEEPS!r}]

@dg.asset
def model(context: dg.AssetExecutionContext) -> None:
    launch(context, subprocess.Subprocess(dg.PipesSubprocessClient()), "export", {{}})

dg.materialize([model])
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


@pytest.mark.parametrize(
    ("end", "is_retryable"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", True),
        ("os.kill(os.getpid(), signal.SIGTERM)", True),
        ("os.kill(os.getpid(), signal.SIGSEGV)", False),
        ("os.abort()", False),
        ("sys.exit(1)", False),
        ("raise KeyError", False),
    ],
)
def test_crash(end: str, is_retryable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that something else killed may succeed next time. A crash would come again."""
    command = [sys.executable, "-c", f"import os, signal, sys; {end}"]
    monkeypatch.setattr(subprocess, "COMMAND", command)
    error = launched()
    assert isinstance(error, PassingError) is is_retryable
    assert isinstance(error.__cause__, subprocess.WorkerExitError) and error.__cause__.exit_code


def is_alive(process_id: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(process_id, 0)
        return "Z" not in Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2]
    return False


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interruption(signum: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C of a terminal does not reach the worker, whose interpreter may be starting; the parent ends it."""
    command = [sys.executable, "-c", LAUNCHES_A_SLEEPER]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with Popen(command, cwd=tmp_path, env=environment, start_new_session=True) as process:
        until = time.monotonic() + 300
        while not (tmp_path / "worker").exists() or not (tmp_path / "worker").read_text():
            assert process.poll() is None and time.monotonic() < until
            time.sleep(0.05)
        os.killpg(process.pid, signum)
        process.wait(timeout=300)
    assert not is_alive(int((tmp_path / "worker").read_text()))
    assert not (tmp_path / "stack").exists()
