"""The server for clients: llama-server if it works on this machine, or the installed binding."""

import json
import os
import stat
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.export.llama import ListenAt
from agent_pipeline.export.model_server import RunningServer, Served, serve_model
from agent_pipeline.export.quantizer import find_tool
from agent_pipeline.export.serving_folder import Form
from agent_pipeline_tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]

NAME = "shop/support"


@pytest.fixture
def served(tiny_gguf: Path, tmp_path: Path) -> Served:
    """A tiny model, and a preset that names it."""
    preset = tmp_path / "llama-server.ini"
    preset.write_text(f"version = 1\n\n[{NAME}]\nmodel = {tiny_gguf}\nctx-size = 512\n", "utf-8")
    return Served(NAME, Form(tiny_gguf), 512, preset)


def ask(server: RunningServer, key: str = "") -> dict[str, Any]:
    """Return the answer to a request for two tokens."""
    body = {"model": NAME, "messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    request = urllib.request.Request(
        f"{server.url}/v1/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def write_program(folder: Path, script: str) -> Path:
    program = folder / "llama-server"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


PROGRAMS: dict[str, tuple[Callable[[Path], Path | None], str]] = {
    "missing": (lambda folder: None, "llama-server is not on PATH"),
    "crashing": (lambda folder: write_program(folder, "kill -ILL $$"), "SIGILL"),
    "wrong version": (lambda folder: write_program(folder, "exit 3"), "exit code 3"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_binding_serves_if_the_program_cannot(served: Served, tmp_path: Path, name: str) -> None:
    """A build for another CPU crashes, which must not leave the user without a server."""
    make_program, reason = PROGRAMS[name]
    address = ListenAt("127.0.0.1", free_port(), NAME)
    with serve_model(served, address, make_program(tmp_path), tmp_path / "log") as server:
        assert server.process is None and reason in server.description
        assert ask(server)["usage"]["completion_tokens"] == 2
    with pytest.raises(urllib.error.URLError):
        ask(server)


def test_binding_wants_the_key(served: Served, tmp_path: Path) -> None:
    address = ListenAt("127.0.0.1", free_port(), NAME, "secret")
    with serve_model(served, address, None, tmp_path / "log") as server:
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(server)
        assert ask(server, "secret")["choices"]


def test_program_serves_the_preset_and_ends_with_the_context(
    served: Served, tmp_path: Path
) -> None:
    program = find_tool("llama-server")
    if program is None:
        pytest.skip("there is no llama-server: put one on PATH, or run make llama-server")
    address = ListenAt("127.0.0.1", free_port(), NAME)
    with serve_model(served, address, program, tmp_path / "log") as server:
        assert server.process is not None and str(program) in server.description
        assert ask(server)["usage"]["completion_tokens"] == 2
    assert server.process.poll() is not None
    with pytest.raises(OSError):
        os.kill(server.process.pid, 0)
