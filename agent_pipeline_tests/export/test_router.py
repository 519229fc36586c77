"""llama.cpp's own server with the preset that `serving` writes: every champion answers over one base, and a rollback answers at once."""

import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from agent_pipeline.export.converter import convert_lora
from agent_pipeline.export.gguf_export import ADAPTER, base_gguf
from agent_pipeline.export.llama import LlamaCpp
from agent_pipeline.export.quantizer import find_tool
from agent_pipeline.export.serving_folder import base_folder, served_form
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.promotion.champions import promote, rollback, serve_champion
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("forked_converter")]

FIRST, SECOND = PartitionKey("shop", "first"), PartitionKey("shop", "second")
ASKED = [{"role": "user", "content": "x"}]


def export(lake: Lake, key: PartitionKey, tiny: dict[str, Path], scale: float) -> Artifact:
    """An export of the tiny adapter at a scale of its own, as far as serving it over the base."""
    made_from = {"base_model": "tiny", "base_revision": "", "scale": scale}
    adapter = lake.building("sft_adapter", key, hash_json(made_from))
    shutil.copytree(tiny["adapter"], adapter, dirs_exist_ok=True)
    config = json.loads((adapter / "adapter_config.json").read_text())
    (adapter / "adapter_config.json").write_text(json.dumps(config | {"lora_alpha": scale}))
    trained = lake.finish("sft_adapter", key, hash_json(made_from), adapter, made_from, {})
    made_from = {"adapter": trained.identity}
    building = lake.building("gguf_export", key, hash_json(made_from))
    convert_lora(tiny["base"], trained.path, building / ADAPTER)
    made = lake.finish(
        "gguf_export",
        key,
        trained.identity,
        building,
        made_from,
        {"ollama": {"gguf": ADAPTER, "num_ctx": 1024}},
    )
    lake.set_latest(made)
    return made


@pytest.fixture
def server(tmp_path):
    """Starts llama-server on a preset; gives its URL."""
    program = find_tool("llama-server")
    if program is None:
        pytest.skip("there is no llama-server: put one on PATH, or run make llama-server")
    running = []

    def start(preset: Path) -> str:
        port = free_port()
        command = [
            str(program),
            "--models-preset",
            str(preset),
            "--models-max",
            "0",
            "--port",
            str(port),
            "--threads",
            "1",
        ]
        with (tmp_path / "server.log").open("w") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=tmp_path))
        url = f"http://127.0.0.1:{port}"
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=5).close()
                return url
            except OSError:
                time.sleep(0.1)
        raise AssertionError((tmp_path / "server.log").read_text()[-2000:])

    yield start
    for process in running:
        process.terminate()
        process.wait(30)


def answer(url: str, key: PartitionKey) -> list[int]:
    """The tokens that follow the template's rendering: what a model of random weights says need not be text."""

    def ask(path: str, body: dict) -> dict:
        request = urllib.request.Request(
            f"{url}{path}",
            json.dumps({"model": str(key), **body}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    prompt = ask("/apply-template", {"messages": ASKED})["prompt"]
    return ask(
        "/completion",
        {
            "prompt": prompt,
            "n_predict": 4,
            "temperature": 0,
            "samplers": ["temperature"],
            "return_tokens": True,
        },
    )["tokens"]


def test_every_champion_answers_as_what_played_over_one_base_and_after_a_rollback_as_the_one_before(
    tiny, tokenizer, tmp_path, server
):
    lake = Lake(str(tmp_path / "lake"), tmp_path / "cache")
    base = base_gguf(BaseModel("tiny", tiny["base"], ""), base_folder(lake))
    exports = [
        export(lake, FIRST, tiny, 8),
        export(lake, SECOND, tiny, 2),
        export(lake, FIRST, tiny, -8),
    ]
    expected = []
    for each in exports:
        form = served_form(lake, each)
        assert (form.model, form.chat_template.read_text()) == (base, tokenizer.chat_template)
        with LlamaCpp(
            form.model, lora=form.lora, chat_template=form.chat_template.read_text()
        ) as llama:
            expected.append(
                llama.greedy(llama.tokenize(llama.render(ASKED, []), add_special=True), 4).tokens
            )
    assert expected[0] != expected[1] != expected[2] != expected[0]
    promote(lake, FIRST, exports[0].identity)
    assert "an adapter over the shared base" in serve_champion(lake, FIRST)[0]
    serve_champion(lake, SECOND)
    root = tmp_path / "lake" / "serving"
    url = server(root / "llama-server.ini")
    assert [answer(url, FIRST), answer(url, SECOND)] == expected[:2]

    promote(lake, FIRST, exports[2].identity)
    assert "read its preset again" in serve_champion(lake, FIRST, server=url)[-1]
    assert [answer(url, FIRST), answer(url, SECOND)] == [expected[2], expected[1]]
    rollback(lake, FIRST)
    serve_champion(lake, FIRST, server=url)
    assert answer(url, FIRST) == expected[0]
    assert len(list(root.glob("base-*.gguf"))) == 1 and (root / base.name).samefile(base)
