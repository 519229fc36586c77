"""A model that was trained whole goes to Ollama (`compat.omniagents.sft`): converted, compared, registered."""

import json
import os
import shutil
from pathlib import Path

import pytest

from agent_pipeline import SFTTrainingResult
from agent_pipeline.compat.omniagents import sft
from agent_pipeline.errors import ExportError
from agent_pipeline.export.report import parse_export_report
from agent_pipeline_tests.export.conftest import CONVERSATIONS

pytestmark = pytest.mark.slow


@pytest.fixture
def finished(tiny, forked_converter, tmp_path) -> SFTTrainingResult:
    """A training's result over a model whose tokenizer the converter knows."""
    folder = tmp_path / "model"
    shutil.copytree(tiny["base"], folder)
    return SFTTrainingResult(str(folder), {}, None, None, CONVERSATIONS[:1], 300)


def test_the_model_goes_to_ollama_as_a_gguf_that_was_compared_with_it(
    finished, tmp_path, monkeypatch
):
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(
        ExportError,
        match=r"model-f16.gguf, but `ollama create` failed.*install Ollama",
    ):
        finished.to_ollama("weather", quantization="f16")
    folder = Path(finished.model_path) / "gguf"
    assert (folder / "model-f16.gguf").read_bytes()[:4] == b"GGUF", "it is kept"
    assert "PARAMETER num_ctx 2048" in (folder / "Modelfile").read_text()
    report = parse_export_report(json.loads((folder / "parity.json").read_text()))
    assert report.ok and report.template["f16"].texts == 2

    asked = tmp_path / "asked"
    (tmp_path / "ollama").write_text(f'#!/bin/sh\necho "$@" > {asked}\n')
    (tmp_path / "ollama").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{path}")
    monkeypatch.setattr(sft, "export_whole", lambda *_, **__: report)  # the files are there
    assert finished.to_ollama("weather", quantization="f16") == str(folder / "model-f16.gguf")
    assert asked.read_text().startswith(f"create weather -f {folder}")


def test_a_type_that_nobody_writes_is_known_before_anything_is_done(finished):
    with pytest.raises(ExportError, match="GGUF types to export"):
        finished.to_ollama("weather", quantization="q5")
