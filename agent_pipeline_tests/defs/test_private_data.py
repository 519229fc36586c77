"""The checks for private data in the graph: what they stop, and what they show."""

from typing import Any

import dagster as dg
import pytest

from agent_pipeline.defs.private_data import TABLE_CHECK, TEXTS_CHECK
from agent_pipeline.judging import MEASURES
from agent_pipeline.redaction import Redactor
from agent_pipeline_tests.defs.conftest import Bench, checks
from agent_pipeline_tests.defs.test_exports import KEY, Exports, made
from agent_pipeline_tests.lakes import artifact

__all__ = ["made"]

AGENT, PRIVATE = "shop/intern", "ann.lee@shop.io"


@pytest.fixture
def quoting_measure() -> Any:
    MEASURES["quotes_an_address"] = lambda context: (False, f"ask {PRIVATE}")
    yield "quotes_an_address"
    del MEASURES["quotes_an_address"]


def all_text(result: dg.ExecuteInProcessResult) -> str:
    """Return everything that the events of a run hold."""
    return str(result.all_events)


def test_a_reason_is_redacted(bench: Bench, quoting_measure: str) -> None:
    config = {"judged_sessions": {"measures": [quoting_measure]}}
    result = bench.run(AGENT, "sessions", "judged_sessions", config=config)
    assert result.success and checks(result)[TABLE_CHECK].passed
    reasons = bench.lake.open("judged_sessions", KEY._replace(agent="intern")).read(["measures"])
    assert "<EMAIL_1>" in str(reasons) and PRIVATE not in str(reasons) + all_text(result)


def test_a_table_with_something_private_is_not_used(
    bench: Bench, quoting_measure: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The blocking check searched `sessions` only."""
    monkeypatch.setattr(Redactor, "redact_text", lambda self, text: text)
    config = {"judged_sessions": {"measures": [quoting_measure]}}
    result = bench.run(AGENT, "sessions", "judged_sessions", "curated_sessions", config=config)
    check = checks(result)[TABLE_CHECK]
    assert not result.success and not check.passed
    assert check.severity == dg.AssetCheckSeverity.ERROR and PRIVATE not in str(check)
    assert "measures" in str(check.description)
    assert not bench.lake.has("curated_sessions", KEY._replace(agent="intern"))


def test_an_export_with_something_private_is_not_served(made: Exports) -> None:
    made.adapter("good")
    made.modelfile += f"SYSTEM write to {PRIVATE}\n"
    result = made.run("gguf_export", "serving")
    check = checks(result)[TEXTS_CHECK]
    assert not result.success and not check.passed and PRIVATE not in str(check)
    assert check.metadata["found"].value.records[0].data == {
        "kind of private data": "EMAIL",
        "count": "1",
    }
    assert not made.lake.history("serving", KEY)


def test_a_page_with_an_invented_address_is_a_warning(made: Exports, bench: Bench) -> None:
    adapter = made.adapter("good")
    artifact(made.lake, "episodes", KEY, {"adapter": adapter.identity}, {"a.html": PRIVATE})
    found = bench.defs.resolve_asset_graph().asset_check_keys
    assert {key.name for key in found if key.asset_key.to_user_string() == "episodes"} >= {
        TEXTS_CHECK
    }
