"""The checks for private data in the graph: what they stop, and what they show."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.defs.private_data import (
    TABLE_CHECK,
    TEXTS_CHECK,
    _texts_beside_models,
    _texts_result,
    texts_of_rows,
)
from agent_pipeline.judging import MEASURES
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.redaction.files import finds_in_files
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.reports.episode_report import TRANSCRIPTS
from agent_pipeline_tests.defs.conftest import Bench, checks
from agent_pipeline_tests.defs.test_exports import KEY, Exports, made

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
    # `serving` follows `champion` only. It may run, but it serves nothing without a champion.
    assert made.served() is None


def test_what_no_model_wrote_is_no_find(tmp_path: Path) -> None:
    """Transcripts hold made-up values of recorded sessions, and what a world answers."""
    messages = {
        "model": [("user", "user@a.io"), ("assistant", "model@a.io"), ("tool", "world@a.io")],
        "recorded": [("assistant", "recorded@a.io")],
    }
    lines = [
        json.dumps({"player": player, "messages": [{"role": r, "content": c} for r, c in pairs]})
        for player, pairs in messages.items()
    ]
    (tmp_path / TRANSCRIPTS).write_text("\n".join(lines), encoding="utf-8")
    texts = " ".join(_texts_beside_models({TRANSCRIPTS: tmp_path / TRANSCRIPTS}))
    assert all(name in texts for name in ("user@", "world@", "recorded@")) and "model@" not in texts


def test_an_invented_address_in_a_page_is_a_warning(tmp_path: Path) -> None:
    """A model may make an address up, so a page with one stops nothing."""
    (tmp_path / "report.html").write_text(f"<p>{PRIVATE}</p>", encoding="utf-8")
    files = {"report.html": tmp_path / "report.html"}
    finds = finds_in_files(files, Redactor(RedactionOptions()))
    check = _texts_result("evaluation", files, finds, blocks=False)
    assert not check.passed and PRIVATE not in str(check) and "report.html: 1 EMAIL" in str(check)
    assert check.severity == dg.AssetCheckSeverity.WARN


def test_made_up_values_of_tools_are_no_find(tmp_path: Path) -> None:
    """Only messages were allowed, so each log with an example card of a tool looked private."""
    description = "Pay by card, for example <CARD_1>, <EMAIL_1> or <PHONE_1>."
    tool = {"type": "function", "function": {"name": "pay", "description": description}}
    row: Any = {"task_key": "t", "messages": [{"role": "user", "content": "?"}], "tools": [tool]}
    redactor = Redactor(RedactionOptions())
    [shown] = with_surrogates([row])
    (tmp_path / "log.json").write_text(json.dumps(shown["tools"]), encoding="utf-8")
    files = {"log.json": tmp_path / "log.json"}
    allowed = set(redactor.finds_in_texts(texts_of_rows([row])))
    assert finds_in_files(files, redactor)
    assert not finds_in_files(files, redactor, allowed)
