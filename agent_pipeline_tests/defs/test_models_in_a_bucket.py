"""Models through a bucket: one machine trains into it, another evaluates from it, with real tiny models."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.config.settings import load_settings
from agent_pipeline.keys import parse_key
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.storage.lake import Lake, sha256_file
from agent_pipeline_tests.conftest import CREDENTIALS
from agent_pipeline_tests.defs.conftest import Bench, worker_here
from agent_pipeline_tests.lakes import put_rows
from agent_pipeline_tests.training.world import row

KEY = parse_key("shop/support")


@pytest.mark.slow
def test_what_one_machine_trains_into_a_bucket_another_evaluates_from_there(
    bench: Bench,
    endpoint: str,
    tiny_base: BaseModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = CREDENTIALS | {"endpoint_url": endpoint}
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", f"s3://models/{tmp_path.name}")
    monkeypatch.setenv("AGENT_PIPELINE_LAKE_OPTIONS", json.dumps(options))
    monkeypatch.setenv("AGENT_PIPELINE_BASE_MODEL", str(tiny_base.path))
    worker_here(monkeypatch)

    def on_machine(name: str) -> Lake:
        monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path / name))
        return load_settings().open_lake()

    lake = on_machine("one")
    put_rows(lake, KEY, (row(number, "test" if number > 5 else "train") for number in range(8)))
    training: dict[str, Any] = {"max_steps": 2, "max_length": 512, "rehearsal": 0}
    assert bench.run(str(KEY), "sft_coreset", "adapter", config={"sft_adapter": training}).success
    trained = lake.latest("sft_adapter", KEY)

    lake = on_machine("two")
    scoring = {"max_samples": 2, "max_new_tokens": 4}
    evaluated = bench.run(str(KEY), "evaluation", config={"evaluation": scoring})
    assert evaluated.success, bench.sentence(evaluated)
    found = on_machine("three").latest("evaluation", KEY)
    assert found.path.is_relative_to(tmp_path / "three")
    assert trained.identity in found.manifest["parents"]
    assert len(found.manifest["parents"]) == 2  # and what was measured of the base model
    assert {name: sha256_file(found.path / name) for name in found.manifest["files"]} == {
        name: file["sha256"] for name, file in found.manifest["files"].items()
    }
