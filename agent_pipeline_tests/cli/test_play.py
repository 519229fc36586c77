"""`agent-pipeline play`: the model in memory is the one that was trained."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from agent_pipeline.cli.play import _player
from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import PartitionKey

KEY = PartitionKey("shop", "support")


def test_an_adapter_plays_on_the_revision_of_its_base_that_it_was_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    lake, asked = load_settings().open_lake(), []
    made_from = {"base_model": "org/base", "base_revision": "1234abc"}
    lake.set_latest(lake.finish("sft_adapter", KEY, "a" * 64, lake.building("sft_adapter", KEY, "a" * 64), made_from, {}))
    monkeypatch.setattr("agent_pipeline.training.base_model.resolve_base_model", lambda *given: asked.append(given))
    monkeypatch.setattr("agent_pipeline.compute.playing.memory_player", lambda *given: None)
    for model in ("adapter", "base"):
        _player(model, KEY, 0.0, 8, ExitStack())
    assert [(given[0], given[-1]) for given in asked] == [("org/base", "1234abc")] * 2
