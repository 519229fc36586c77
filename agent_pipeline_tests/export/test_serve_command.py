"""`agent-pipeline serve PARTITION` with a real llama.cpp: the printed examples are run as they are."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
from agent_pipeline.export.model_server import RunningServer
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote, serve_champion
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact
from agent_pipeline_tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]

KEY = PartitionKey("shop", "support")
PARAMETERS = {"type": "object", "properties": {"order_id": {"type": "string"}}}
TOOL = {"type": "function", "function": {"name": "find_orders", "parameters": PARAMETERS}}
ROWS = [
    {
        "task_key": "support-001",
        "tools": [TOOL],
        "messages": [
            {"role": "system", "content": "You're the support agent."},
            {"role": "user", "content": "Where's my order?"},
        ],
    }
]


def make_champion(lake: Lake, gguf: Path) -> Artifact:
    """A champion with this GGUF file."""
    files = {REQUESTS_FILE: msgspec.json.encode(describe_requests(ROWS)).decode()}
    adapter = artifact(lake, "sft_adapter", KEY, {"base_model": "b", "base_revision": "1"}, files)
    made_from = {"adapter": adapter.identity}
    building = lake.building(EXPORT, KEY, hash_json(made_from))
    shutil.copyfile(gguf, building / "model-f16.gguf")
    (building / "Modelfile").write_text("FROM ./model-f16.gguf\n", encoding="utf-8")
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 512}}
    export = lake.finish(EXPORT, KEY, hash_json(made_from), building, made_from, report)
    lake.set_latest(export)
    promote(lake, KEY, export.identity)
    serve_champion(lake, KEY)
    return export


@pytest.fixture
def served(tiny_gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose agent has a champion."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "pipeline.toml").write_text('lake = "lake"\n', encoding="utf-8")
    monkeypatch.setattr(
        "agent_pipeline.evaluation.agent_prompt.read_prompt_rows", lambda lake, key: ROWS
    )
    monkeypatch.setattr("agent_pipeline.evaluation.heldout.heldout_rows", lambda lake, key: ROWS)
    make_champion(Lake(str(tmp_path / "lake"), tmp_path / "cache"), tiny_gguf)
    return tmp_path


def run_serve(monkeypatch: pytest.MonkeyPatch, while_served: Callable[[], None]) -> Any:
    """Run the command, and a function while it serves; then end it as Ctrl-C does."""

    def wait(server: RunningServer) -> None:
        while_served()
        raise KeyboardInterrupt

    monkeypatch.setattr(RunningServer, "wait", wait)
    monkeypatch.setattr("signal.signal", lambda *handler: None)
    return CliRunner().invoke(
        app, ["serve", str(KEY), "--port", str(free_port())], catch_exceptions=False
    )


def test_printed_examples_work_as_they_are(
    served: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The printed examples and the served folder's example.py get answers from the server."""
    printed: list[str] = []
    monkeypatch.setattr("typer.echo", printed.append)
    outputs: list[str] = []

    def run_examples() -> None:
        curl, python = (example.strip() for example in printed[-2:])
        assert all("find_orders" in example for example in (curl, python))
        if shutil.which("curl"):
            answer = subprocess.run(
                ["bash", "-c", f"{curl} -s --noproxy '*'"], capture_output=True, text=True
            )
            outputs.append(answer.stdout)
        outputs.append(str(_run_python(python)))
        (address,) = re.findall(r"http://127.0.0.1:\d+/v1", python)
        ran = subprocess.run(
            [sys.executable, served / "lake" / "serving" / "shop" / "support" / "example.py"],
            env=os.environ | {"SERVER": address, "NO_PROXY": "127.0.0.1"},
            capture_output=True,
            text=True,
        )
        outputs.append(ran.stdout + ran.stderr)

    done = run_serve(monkeypatch, run_examples)
    assert done.exit_code == 0, done.output
    # The server understood the request, even if random weights write no text that it can parse.
    assert all("assistant" in output or "produced output" in output for output in outputs), outputs
    assert len(outputs) >= 2
    assert "serves" in done.stdout and "agent-pipeline chat shop/support" in done.stderr


def _run_python(code: str) -> list[Any]:
    """Run a program, and return what it printed, or the server's error."""
    printed: list[Any] = []
    try:
        exec(code, {"print": printed.append})
    except openai.InternalServerError as error:
        printed.append(error)
    return printed


def test_champion_chats_in_llama_cpp(served: Path) -> None:
    """No model is named, so the champion answers. The words of random weights mean nothing."""
    command = ["chat", str(KEY), "--tools", "none", "--max-new-tokens", "4"]
    done = CliRunner().invoke(app, command, input="Hi\n", catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert "Loading champion of shop/support" in done.stdout and "model: " in done.stdout


def test_champion_that_the_folder_does_not_have(served: Path) -> None:
    (served / "lake" / "serving" / "llama-server.ini").unlink()
    done = CliRunner().invoke(app, ["serve", str(KEY)])
    assert "--select serving" in str(done.exception)
