"""A lake of the version before pointers had a history: it is read as it is."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.export.serving import promote, served
from agent_pipeline.governance.lineage import model_lineage, session_lineage
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("shop", "support")
ADAPTER, EVALUATION, EXPORT, MODEL = "a" * 64, "b" * 64, "c" * 64, "d" * 64


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Manifests without `parents` and `passed`, an export that holds its evaluation's figures, and current.json beside them."""
    trained = {"base_model": "base", "base_revision": "r1", "config": {}, "rows": 1, "rows_sha256": "e" * 64, "sessions": ["s1"]}
    measured = {"adapter": ADAPTER, "config": {}, "rows": 1, "rows_sha256": "f" * 64, "sessions": ["s2"]}
    exported = {"adapter": ADAPTER, "adapter_made_from": trained, "evaluation": {"heldout_loss": {"difference": -1.0}}, "config": {}}
    write(tmp_path, "sft_adapter", ADAPTER, trained, {})
    write(tmp_path, "evaluation", EVALUATION, measured, {"differences": {}})
    write(tmp_path, "gguf_export", EXPORT, exported, {"ok": True})
    write(tmp_path, "ollama_model", MODEL, {"gguf_export": EXPORT, "name": "shop-support"}, {"name": "shop-support"})
    return Lake(str(tmp_path))


def write(root: Path, asset: str, identity: str, made_from: dict[str, Any], report: dict[str, Any]) -> None:
    place = root / "models" / asset / "project=shop" / "agent=support"
    (place / identity[:16]).mkdir(parents=True)
    (place / identity[:16] / "file").write_text("content", encoding="utf-8")
    manifest = {
        "asset": asset,
        "partition": str(KEY),
        "identity": identity,
        "made_from": made_from,
        "tables": {},
        "made_by": {"version": "0.1.0"},
        "report": report,
        "files": {"file": {"sha256": hashlib.sha256(b"content").hexdigest(), "bytes": 7}},
    }
    (place / identity[:16] / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (place / "current.json").write_text(json.dumps({"identity": identity}), encoding="utf-8")


def test_its_models_are_the_latest_and_what_it_served_stays_served(lake):
    latest = {asset: lake.latest(asset, KEY).identity for asset in ("sft_adapter", "evaluation", "gguf_export", "ollama_model")}
    assert latest == {"sft_adapter": ADAPTER, "evaluation": EVALUATION, "gguf_export": EXPORT, "ollama_model": MODEL}
    assert served(lake, KEY, lake.latest("gguf_export", KEY)).because == "served already"
    assert promote(lake, KEY).champion == EXPORT


def test_lineage_follows_its_manifests(lake):
    assert [each.identity for each in model_lineage(lake, EXPORT).made_from] == [ADAPTER]
    assert {use.asset for use in session_lineage(lake, "s1").models} == {"sft_adapter", "evaluation", "gguf_export", "ollama_model"}
    assert [use.asset for use in session_lineage(lake, "s2").models] == ["evaluation"]
