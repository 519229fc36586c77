"""A lake of an earlier version: its models are read as they are, its tables are to be made again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent_pipeline.datasets.build import build_kto, build_sft
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.errors import DataError
from agent_pipeline.export.serving import promote, served
from agent_pipeline.governance.explain import explain
from agent_pipeline.governance.lineage import model_lineage, session_lineage
from agent_pipeline.judging.curation import Bounds
from agent_pipeline.judging.tables import curate_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import CORESET, read_coreset
from agent_pipeline.sessions.tables import CURATED, JUDGED, SESSIONS
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


@pytest.mark.parametrize(
    ("asset", "schema", "added", "use"),
    [
        ("sessions", SESSIONS, "ends_on_tool", lambda lake: explain(lake, "s1", KEY)),
        ("judged_sessions", JUDGED, "verdict_score", lambda lake: curate_sessions(lake, KEY, [], Bounds(), [])),
        ("curated_sessions", CURATED, "use", lambda lake: build_sft(lake, KEY, SplitSizes())),
        ("curated_sessions", CURATED, "verdict_score", lambda lake: build_kto(lake, KEY, SplitSizes(), all_sessions=True)),
        ("sft_coreset", CORESET, "duplicate_of", lambda lake: read_coreset(lake, KEY)),
    ],
)
def test_a_table_without_a_later_column_is_to_be_made_again(
    tmp_path: Path, asset: str, schema: pa.Schema, added: str, use: Callable[[Lake], Any]
) -> None:
    lake = Lake(str(tmp_path))
    older = schema.remove(schema.get_field_index(added))
    lake.stage(asset, KEY, [pa.RecordBatch.from_pylist([], older)], older).commit()
    with pytest.raises(DataError, match=f"{asset} of {KEY} has no column {added}"):
        use(lake)
