"""`agent-pipeline serve`: what it starts, and what it says about its former meaning."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli import serve as module
from agent_pipeline.cli.app import app
from agent_pipeline.errors import DataError, SettingsError


def test_bare_serve_says_what_serve_is_now() -> None:
    done = CliRunner().invoke(app, ["serve"])
    assert isinstance(done.exception, SettingsError)
    for command in ("serve shop/support", "service webserver", "service daemon", "dev"):
        assert f"`agent-pipeline {command}`" in str(done.exception)


@pytest.mark.parametrize("words", [["webserver"], ["--port", "7", "webserver"], ["daemon"]])
def test_dagsters_processes_still_start(monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    """A deployment of an older version may start `serve webserver`, with options in any order."""
    started: list[Any] = []
    monkeypatch.setattr(
        "agent_pipeline.cli.running._run_service", lambda *arguments: started.append(arguments)
    )
    monkeypatch.setattr("agent_pipeline.cli.running.check_port", lambda host, port: None)
    done = CliRunner().invoke(app, ["serve", *words], catch_exceptions=False)
    assert done.exit_code == 0 and len(started) == 1
    port = "7" if "7" in words else "3000"
    assert ("daemon" in started[0][0]) == ("daemon" in words)
    assert "daemon" in words or started[0][-1] == port


def test_agent_without_a_champion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["serve", "shop/support"])
    assert isinstance(done.exception, DataError)
    assert "agent-pipeline promote shop/support" in str(done.exception)


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False)],
)
def test_loopback(host: str, expected: bool) -> None:
    assert module._is_loopback(host) == expected
