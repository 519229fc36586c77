"""The asset `production` in the graph: its report, its check, and the rollback of a worse champion."""

from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.automation.notifications import of_run
from agent_pipeline.defs.exports.production import CHECK
from agent_pipeline.export.serving_folder import read_folder
from agent_pipeline.pages.app import make_app
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline_tests.defs.conftest import Bench, cells, checks, metadata
from agent_pipeline_tests.export.test_deciding import CALLS, GOOD, KEY
from agent_pipeline_tests.export.test_probation import Probation
from agent_pipeline_tests.export.test_production import OWN, many
from agent_pipeline_tests.pages.sites import put_judged


@pytest.fixture
def promoted(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Probation:
    """A champion that a decision promoted, and that is much worse than the agent."""
    config = tmp_path / "pipeline.toml"
    config.write_text(
        'pages_url = "http://pages"\n[assets.champion]\napprove = "auto"\n',
        encoding="utf-8",
    )
    monkeypatch.setenv("AGENT_PIPELINE_CONFIG", str(config))
    probation = Probation(bench.lake, monkeypatch, (CALLS, GOOD))
    probation.night.decide("auto")
    assert bench.lake.pointers(EXPORT, KEY).champion == probation.night.export.identity
    put_judged(bench.lake, many("gpt-5", 570, 30, -20, "old ") + many(OWN, 60, 40, 1, "new "))
    return probation


def test_rollback_in_a_run(bench: Bench, promoted: Probation) -> None:
    """The previous champion is restored and served, people are told, and the next run rests."""
    result = bench.run(str(KEY), "production")
    assert result.success
    values: dict[str, Any] = metadata(result, "production")
    assert "roll back" in values["probation"] and "image/png" in values["shares"]
    assert values["production_page"] == f"http://pages/{KEY}/production"
    assert [row[:2] for row in cells(values["models"])] == [["champion", "100"], ["agent", "600"]]
    check = checks(result)[CHECK]
    assert not check.passed and "is the champion again" in (check.description or "")
    before = promoted.before.export.identity
    assert bench.lake.pointers(EXPORT, KEY).champion == before
    assert read_folder(bench.lake, KEY).identity == before[:16]
    causes = {notice.cause for notice in of_run(bench.instance, result.dagster_run)}
    assert causes == {"check failed", "champion rolled back"}
    again = bench.run(str(KEY), "production")
    assert again.success and "probation" not in metadata(again, "production")
    assert bench.lake.pointers(EXPORT, KEY).champion == before


def test_person_promotes(bench: Bench, promoted: Probation, tmp_path: Path) -> None:
    """With `approve = "person"`, a worse champion is reported, and nothing moves."""
    (tmp_path / "pipeline.toml").write_text("", encoding="utf-8")
    result = bench.run(str(KEY), "production")
    check = checks(result)[CHECK]
    assert not check.passed and f"agent-pipeline rollback {KEY}" in (check.description or "")
    assert bench.lake.pointers(EXPORT, KEY).champion == promoted.night.export.identity


def test_nothing_to_compare(bench: Bench, promoted: Probation) -> None:
    """Without tasks of both models there is no p-value: 1 would look like a result."""
    put_judged(bench.lake, many("gpt-5", 20, 5, -20, "old "))
    result = bench.run(str(KEY), "production")
    assert "Nothing is compared" in metadata(result, "production")["comparison"]
    assert not [key for key in metadata(result, "production") if key.startswith("p_value")]


def test_page(bench: Bench, promoted: Probation) -> None:
    assert bench.run(str(KEY), "production").success
    page = TestClient(make_app(load_settings())).get(f"/{KEY}/production")
    assert page.status_code == 200 and "worse than the agent that it replaces" in page.text
    assert 'aria-current="page">Production' in page.text
