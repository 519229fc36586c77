"""Sessions that a served model made: recognized by the names that servers give it, counted, and kept out of training."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import get_args

import pytest

from agent_pipeline.judging.curation import (
    CurationBounds,
    OwnSessions,
    ServedModelSessions,
    curate_rows,
)
from agent_pipeline.judging.decisions import SessionUse
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.judging.test_curation import chat, judged_row
from agent_pipeline_tests.lakes import artifact

KEY = PartitionKey("shop", "support")
LATER = datetime.now(UTC) + timedelta(days=1)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def put_models(lake: Lake) -> tuple[str, str]:
    """An adapter and its export; the first digits of both."""
    adapter = artifact(lake, "sft_adapter", KEY, {"name": "a"})
    return artifact(lake, EXPORT, KEY, {"adapter": adapter.identity}).identity[
        :16
    ], adapter.identity[:16]


def row(model: str | None, session_id: str = "s1", created_at: datetime | None = LATER) -> dict:
    return {"model_id": model, "session_id": session_id, "created_at": created_at}


@pytest.mark.parametrize(
    "model",
    [
        "shop/support",
        "openai/shop/support",
        "hosted_vllm/shop/support",
        "shop-support",
        "shop-support:latest",
        "ollama_chat/shop-support:latest",
        "Helper:v2",
        "https://huggingface.co/me/support-agent",
        "shop/support {adapter}",
        "/models/model-q8_0-{export}.gguf",
        "adapter-{export}.gguf",
    ],
)
def test_name_of_a_served_model(lake: Lake, model: str):
    """llama-server, vLLM, gateways, Ollama, the hub and GGUF files each have a name for it."""
    export, adapter = put_models(lake)
    models = OwnModels(lake, {KEY: ("helper", "me/support-agent")})
    assert models.made(row(model.format(export=export, adapter=adapter)))


@pytest.mark.parametrize(
    "model",
    [
        None,
        "",
        "gpt-5.2",
        "shop/support-large",
        "workshop/support",
        "claude-shop-support-1",
        "0123456789abcdef0",
    ],
)
def test_name_of_another_model(lake: Lake, model: str | None):
    put_models(lake)
    assert not OwnModels(lake).made(row(model))


def test_sessions_before_the_first_export_are_not_ours(lake: Lake):
    """A gateway may have given the agent's name to the model before."""
    assert not OwnModels(lake).made(row("shop/support"))
    put_models(lake)
    models = OwnModels(lake)
    assert not models.made(row("shop/support", created_at=datetime(2020, 1, 1, tzinfo=UTC)))
    assert models.made(row("shop/support", created_at=None))


@pytest.mark.parametrize(
    ("models", "own"),
    [
        (["gpt-5.2", "shop/support"], True),
        (["gpt-5.2", "gpt-5.2-mini"], False),
        ("a text of the store", False),
        (None, False),
    ],
)
def test_several_models(lake: Lake, models: object, own: bool):
    """A session that another model ended is ours if our model answered in it."""
    put_models(lake)
    session = row("gpt-5.2") | {"context": {"answering_models": models}}
    assert OwnModels(lake).made(session) == own


@pytest.mark.parametrize(
    ("model", "own"),
    [
        ("champion", True),
        ("gguf", True),
        ("x/model.gguf", True),
        ("base", False),
        ("http://h/v1#gpt", False),
    ],
)
def test_played_sessions(lake: Lake, model: str, own: bool):
    put_models(lake)
    assert OwnModels(lake).made(row(model, "played-support-001-0-x")) == own
    assert not OwnModels(lake).made(row(model, "support-001"))


@pytest.mark.parametrize("setting", get_args(ServedModelSessions))
def test_training_on_own_sessions(lake: Lake, setting: ServedModelSessions):
    """A model must not learn from itself unnoticed: with `judged`, no machine judge admits a session."""
    put_models(lake)
    good, bad = "acceptable", "unacceptable"
    verdicts = {
        "own person": (good, "label"),
        "own metric": (good, "metrics"),
        "own machine": (good, "llm"),
        "own bad": (bad, "label"),
        "own unjudged": (None, None),
    }
    rows = [
        judged_row(name, chat(f"a {name}", f"b {name}"), model_id="shop/support", created_at=LATER)
        | {"verdict": verdict, "verdict_by": judge}
        for name, (verdict, judge) in verdicts.items()
    ]
    other = judged_row("other", chat("e", "f"), model_id="gpt-5.2", created_at=LATER)
    rows.append(other | {"verdict": good, "verdict_by": "llm"})
    curation, curated_rows = curate_rows(
        lambda: rows, [], CurationBounds(), [], OwnSessions(OwnModels(lake).made, setting)
    )
    curated = {row["session_id"]: row for row in curated_rows}
    admitted: dict[str, set[str]] = {
        "drop": set(),
        "judged": {"own person", "own metric"},
        "keep": {"own person", "own metric", "own machine", "own bad"},
    }
    assert len(curation.by_served_model) == 5
    assert curation.kept_by_served_model == len(admitted[setting] - {"own bad"})
    assert {name for name, row in curated.items() if row["served_model"]} == set(verdicts)
    used = {name for name, row in curated.items() if row["use"] != SessionUse.NEITHER}
    assert used == {"other"} | admitted[setting]
    if setting != "keep":
        assert curated["own bad"]["drop_reason"] == "served_model"
        assert curated["own bad"]["drop_detail"] == "shop/support"
