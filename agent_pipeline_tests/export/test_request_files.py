"""The files that tell a client what a served model was trained for."""

import os
import subprocess
import sys
from copy import deepcopy
from pathlib import Path

import msgspec
import pytest

from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
from agent_pipeline.errors import PrivateDataError
from agent_pipeline.export import ollama
from agent_pipeline.export.request_files import (
    REQUEST_FILES,
    find_fixed_prompt,
    write_system_line,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote, serve, serve_champion, serving_difference
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.test_requests import TOOLS, prompt, row
from agent_pipeline_tests.judging.endpoint import endpoint, says
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("shop", "support")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def serve_rows(lake: Lake, rows: list[dict] | None) -> Path:
    """Train on rows, promote, serve, and return the served folder. An older version has no rows."""
    files = {"adapter_config.json": "{}"}
    if rows is not None:
        files[REQUESTS_FILE] = msgspec.json.encode(describe_requests(rows)).decode()
    adapter = artifact(lake, "sft_adapter", KEY, {"rows": rows and len(rows)}, files)
    exported = {
        "Modelfile": "FROM ./model-f16.gguf\nPARAMETER num_ctx 2048\n",
        "model-f16.gguf": "m",
    }
    report = {"ollama": {"gguf": "model-f16.gguf", "num_ctx": 2048}}
    artifact(lake, "gguf_export", KEY, {"adapter": adapter.identity}, exported, report)
    promote(lake, KEY)
    serve_champion(lake, KEY)
    return Path(lake.root.path) / "serving" / "shop" / "support"


def run_example(folder: Path, server: str, *words: str) -> str:
    ran = subprocess.run(
        [sys.executable, folder / "example.py", *words],
        env=os.environ | {"SERVER": server, "NO_PROXY": "127.0.0.1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_example_sends_what_the_model_was_trained_for(lake):
    folder = serve_rows(lake, [row(number) for number in range(5)])
    with endpoint(lambda request, number: says("Gladly.")) as server:
        assert "Gladly." in run_example(folder, server.url, "Refund", "W1.")
    (request,) = server.requests
    assert request == {
        "model": "shop/support",
        "temperature": 0,
        "messages": [
            {"role": "system", "content": prompt(0)},
            {"role": "user", "content": "Refund W1."},
        ],
        "tools": TOOLS,
    }
    assert f'SYSTEM """{prompt(0)}"""\n' in (folder / "Modelfile").read_text(encoding="utf-8")
    assert not serving_difference(lake, KEY)
    (folder / "system_prompt.txt").write_text("You are a pirate.")
    assert serving_difference(lake, KEY)


def test_what_varies_or_was_redacted_is_named_in_the_example(lake):
    rows = [row(number, dated=True) for number in range(5)]
    for each in rows:
        each["messages"][0]["content"] += " Write to <EMAIL_1>.\n'''\"\"\"{x}"
    folder = serve_rows(lake, rows)
    text = (folder / "example.py").read_text(encoding="utf-8")
    assert "# ['2026-01-05']" in text and "# ['<EMAIL_1>']" in text
    compile(text, "example.py", "exec")
    assert "SYSTEM" not in (folder / "Modelfile").read_text(encoding="utf-8")


def test_redacted_values_of_the_tools_are_named(lake):
    """The example named those of the system prompt only, and a client sent `<EMAIL_2>`."""
    rows = [row(number) for number in range(3)]
    tools = deepcopy(rows[0]["tools"])
    tools[0]["function"]["description"] = "Write to <EMAIL_2>."
    folder = serve_rows(lake, [{**each, "tools": tools} for each in rows])
    text = (folder / "example.py").read_text(encoding="utf-8")
    assert "# ['<EMAIL_2>']" in text and "of tools.json were" in text
    compile(text, "example.py", "exec")


def test_an_agent_without_system_prompt_and_tools(lake):
    rows = [row(number, tools=[]) for number in range(3)]
    for each in rows:
        each["messages"] = each["messages"][1:]
    folder = serve_rows(lake, rows)
    with endpoint(lambda request, number: says("Hi.")) as server:
        run_example(folder, server.url)
    assert server.requests[0].keys() == {"model", "temperature", "messages"}
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Hello."}]


def test_the_files_of_the_last_champion_do_not_stay(lake):
    """A champion of an older version has no record. The prompt of another model would mislead."""
    folder = serve_rows(lake, [row(number) for number in range(5)])
    assert (folder / "tools.json").exists()
    serve_rows(lake, None)
    assert not any((folder / name).exists() for name in REQUEST_FILES)
    assert "SYSTEM" not in (folder / "Modelfile").read_text(encoding="utf-8")


def test_a_private_value_in_the_system_prompt_is_not_served(lake):
    rows = [row(number) for number in range(5)]
    for each in rows:
        each["messages"][0]["content"] += " Ask ada.lovelace@analytical.co.uk."
    serve_rows(lake, rows)
    with pytest.raises(PrivateDataError):
        serve(lake, KEY, redactor=Redactor(RedactionOptions()))


def test_a_prompt_that_no_modelfile_can_hold_is_left_out():
    rows = [row(number) for number in range(3)]
    for each in rows:
        each["messages"][0]["content"] = "A bell: \x07"
    requests = describe_requests(rows)
    assert find_fixed_prompt(requests) and write_system_line(requests) == ""
    assert write_system_line(None) == "" == find_fixed_prompt(None)


def test_ollama_is_checked_with_the_system_prompt_of_its_modelfile(monkeypatch, tiny_renderer):
    shown = {}
    monkeypatch.setattr(
        type(tiny_renderer),
        "render",
        lambda self, messages, *rest, **more: shown.update(messages=messages) or "",
    )
    monkeypatch.setattr(
        ollama.json, "load", lambda response: {"_debug_info": {"rendered_template": ""}}
    )
    with endpoint(lambda request, number: says("")) as server:
        monkeypatch.setenv("OLLAMA_HOST", server.url.removesuffix("/v1"))
        ollama.check_rendering("m", tiny_renderer, "Be brief.")
    assert shown["messages"][0] == {"role": "system", "content": "Be brief."}
    assert server.requests[0]["messages"][0]["role"] == "user", "Ollama adds the prompt itself"
