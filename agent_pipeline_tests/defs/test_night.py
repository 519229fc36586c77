"""The plan of the next night, and the command that shows it."""

import json
from datetime import UTC, datetime
from pathlib import Path

import dagster as dg
import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.cli.instance import open_instance
from agent_pipeline.config.sections import NightSettings
from agent_pipeline.defs.automation.nightly import (
    describe_news,
    is_schedule_on,
    next_night,
    plan_night,
)
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import (
    CODE_VERSION_TAG,
    PENDING_TAG,
    SETTINGS_VERSION_TAG,
    STORE_VERSION_TAG,
)
from agent_pipeline.errors import SettingsError
from agent_pipeline_tests.conftest import SAMPLE

NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)
BEFORE = {STORE_VERSION_TAG: "1", SETTINGS_VERSION_TAG: "1", CODE_VERSION_TAG: "1"}


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        ({}, BEFORE, "no run of all its assets has succeeded"),
        (BEFORE, {}, "could not be read in time"),
        (BEFORE, BEFORE | {STORE_VERSION_TAG: "2"}, "new sessions or verdicts"),
        (BEFORE, BEFORE | {SETTINGS_VERSION_TAG: "2"}, "changed settings"),
        (BEFORE | {PENDING_TAG: "3"}, BEFORE, "wait for the judge"),
    ],
)
def test_news(before: dict[str, str], now: dict[str, str], words: str) -> None:
    assert words in describe_news(before, now)


def test_next_night_is_in_the_time_zone_of_the_setting() -> None:
    night = NightSettings(cron="30 1 * * *", timezone="Europe/Berlin")
    begins = next_night(night, datetime(2026, 7, 1, 12, tzinfo=UTC))
    assert begins.isoformat() == "2026-07-02T01:30:00+02:00"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    return tmp_path


def test_plan_starts_saves_and_sends_nothing(project: Path) -> None:
    with dg.instance_for_test() as instance:
        plan = plan_night(Workspace(), instance, ["shop/intern", "shop/nobody"], NIGHT)
        assert instance.get_runs() == []
    assert [
        (agent.partition, "no run of all its assets" in agent.reason) for agent in plan.runs
    ] == [("shop/intern", True)]
    assert [agent.partition for agent in plan.skipped] == ["shop/nobody"]
    assert [notice.partition for notice in plan.notifications] == ["shop/nobody"]
    assert not (project / "lake").exists()


def test_command_shows_each_agent(project: Path) -> None:
    nobody = CliRunner().invoke(app, ["night", "--dry-run"], catch_exceptions=False)
    assert "No agent is known yet" in nobody.stdout and "discover" in nobody.stderr
    with open_instance() as instance:
        instance.add_dynamic_partitions(AGENTS.name or "", ["shop/intern"])
        assert not is_schedule_on(instance)
    done = CliRunner().invoke(app, ["night", "--dry-run"], catch_exceptions=False)
    assert "run   shop/intern: no run of all its assets has succeeded" in done.stdout
    assert "switched off" in done.stdout
    assert "Next: agent-pipeline materialize shop/intern" in done.stderr
    planned = json.loads(CliRunner().invoke(app, ["night", "--dry-run", "--json"]).stdout)
    assert [(agent["partition"], agent["runs"]) for agent in planned["agents"]] == [
        ("shop/intern", True)
    ]


def test_night_without_dry_run_starts_nothing(project: Path) -> None:
    done = CliRunner().invoke(app, ["night"])
    assert isinstance(done.exception, SettingsError) and "--dry-run" in str(done.exception)
    assert not (project / "home").exists()
