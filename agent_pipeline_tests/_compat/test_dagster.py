"""Dagster's private parts do what the hooks need."""

import inspect
import json
from threading import Event
from typing import Any

import dagster as dg
import pytest

from agent_pipeline._compat import dagster as compat


@pytest.mark.parametrize(
    "name",
    [
        "CheckRunHealthResult",
        "DagsterPipesExecutionError",
        "RunStatusChangeEventType",
        "WorkerStatus",
        "is_valid_cron_schedule",
    ],
)
def test_private_names(name: str):
    """Dagster does not export these names. If it does, import them from there."""
    assert hasattr(compat, name) and not hasattr(dg, name)


class _Messages:
    """A handler that keeps the messages."""

    def __init__(self) -> None:
        self.messages: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.messages.append(message)


def test_lines_written_in_parts(tmp_path, monkeypatch):
    """A message that arrives in two parts is read once it is whole."""
    line = json.dumps({"method": "log", "params": {"a": 1}}) + "\n"
    monkeypatch.setattr(compat, "tail_file", lambda path, done: iter([line[:7], line[7:], line]))
    handler = _Messages()
    reader = compat.WholeLineReader(str(tmp_path / "messages"))
    reader._reader_thread(handler, Event())  # type: ignore[arg-type]
    assert handler.messages == [json.loads(line)] * 2


def test_dagsters_reader_still_parses_half_a_line():
    """The hook is needed as long as Dagster's reader parses what one read returned."""
    source = inspect.getsource(dg.PipesFileMessageReader._reader_thread)
    assert "json.loads(line)" in source and "endswith" not in source


def test_dev_starts_our_webserver(monkeypatch):
    """`dagster dev` starts the web server by its module's name, which the hook exchanges."""
    from dagster._cli import dev

    commands: list[list[str]] = []
    monkeypatch.setitem(
        vars(dev), "open_ipc_subprocess", lambda command, **options: commands.append(command)
    )
    monkeypatch.setattr(
        dev,
        "dev_command",
        lambda: vars(dev)["open_ipc_subprocess"](["python", "-m", "dagster_webserver", "-p", "1"]),
    )
    compat.run_dev_command("our.webserver")
    assert commands == [["python", "-m", "our.webserver", "-p", "1"]]
    assert '"dagster_webserver"' in inspect.getsource(dev)


def test_the_webserver_creates_its_app_by_name():
    """The hook replaces this function of `dagster-webserver`, which has no option instead."""
    from dagster_webserver import cli

    assert "create_app_from_workspace_process_context(" in inspect.getsource(cli)


def test_log_copiers_of_dagster_use_popen():
    """The hook gives these processes a session of their own by replacing `subprocess`."""
    from dagster._core.execution import compute_logs

    assert "subprocess.Popen(" in inspect.getsource(compute_logs)
    with compat._log_copiers_ignore_interrupts():
        process = vars(compute_logs)["subprocess"].Popen(["true"])
    assert process.wait() == 0 and inspect.ismodule(vars(compute_logs)["subprocess"])
