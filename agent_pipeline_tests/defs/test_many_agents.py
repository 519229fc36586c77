"""The sensor and the schedule cost what changed, and one unreadable agent costs only itself."""

import contextvars
import os
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from shutil import copyfile

import dagster as dg
import pytest

from agent_pipeline.defs.automation import discovery
from agent_pipeline.defs.automation import nightly as nightly_module
from agent_pipeline.defs.automation.discovery import discover_agents
from agent_pipeline.defs.automation.nightly import nightly
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.keys import parse_key
from agent_pipeline.sources.agents.omniagents import OmniagentsSource
from agent_pipeline_tests.conftest import SAMPLE

AGENTS = [f"shop/agent-{number}" for number in range(6)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    for name in AGENTS:
        (home / "sessions" / name).mkdir(parents=True)
        copyfile(
            SAMPLE / "sessions/shop/intern/sessions.db", home / "sessions" / name / "sessions.db"
        )
    (home / "traces").mkdir()
    copyfile(SAMPLE / "traces/shop.db", home / "traces/shop.db")
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(home))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    return home


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The partitions whose sessions are read, in order."""
    keys: list[str] = []
    read = OmniagentsSource.read
    monkeypatch.setattr(
        OmniagentsSource, "read", lambda self, key: keys.append(str(key)) or read(self, key)
    )
    return keys


class Ticks:
    """A sensor with its cursor, as the daemon keeps it."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self.instance, self.cursor = instance, None

    def _evaluate(self) -> dg.SensorResult | dg.SkipReason:
        return discover_agents(
            dg.build_sensor_context(
                self.instance, cursor=self.cursor, resources={"workspace": Workspace()}
            )
        )

    def __call__(self, recorded: bool = True) -> list[str]:
        # The context enters the instance once more and never leaves it; in a copy, what it sets does not reach the next test.
        result = contextvars.copy_context().run(self._evaluate)
        if isinstance(result, dg.SkipReason):
            return []
        if recorded:
            self.cursor = result.cursor
            for request in result.dynamic_partitions_requests:
                self.instance.add_dynamic_partitions(
                    "agent_pipeline_project_agent", list(request.partition_keys)
                )
        return [event.partition for event in result.asset_events]


def archive_a_session(store: Path, name: str) -> None:
    with sqlite3.connect(store / "sessions" / name / "sessions.db") as connection:
        connection.execute(
            "UPDATE sessions SET archived = 1 - archived WHERE session_id = (SELECT min(session_id) FROM sessions)"
        )


def test_one_changed_agent_is_one_reading_and_one_event(store: Path, read: list[str]) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        tick = Ticks(instance)
        assert tick() == AGENTS == read
        read.clear()
        archive_a_session(store, AGENTS[2])
        assert tick() == read == [AGENTS[2]]
        read.clear()
        os.utime(store / "sessions" / AGENTS[4] / "sessions.db")
        assert tick() == [] and read == [AGENTS[4]]  # touched, and read, and the same
        read.clear()
        assert tick() == read == []
        (store / "sessions").rename(store / "gone")
        assert (
            tick() == []
            and sorted(instance.get_dynamic_partitions("agent_pipeline_project_agent")) == AGENTS
        ), "nothing is deleted"


def test_an_unreadable_agent_costs_only_itself_until_it_can_be_read(
    store: Path, read: list[str]
) -> None:
    broken = store / "sessions" / AGENTS[1] / "sessions.db"
    whole = broken.read_bytes()
    broken.write_bytes(b"SQLite format 3\0" + b"\xff" * 5000)
    with dg.DagsterInstance.ephemeral() as instance:
        tick = Ticks(instance)
        assert tick() == [name for name in AGENTS if name != AGENTS[1]]
        assert sorted(instance.get_dynamic_partitions("agent_pipeline_project_agent")) == AGENTS
        read.clear()
        assert tick() == [] and set(read) <= {AGENTS[1]}
        broken.write_bytes(whole)
        assert tick() == [AGENTS[1]]


def test_a_tick_out_of_time_leaves_the_rest_to_the_next(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(1000))
    monkeypatch.setattr("agent_pipeline.judging.store_versions.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(discovery, "TICK_SECONDS", 3)
    with dg.DagsterInstance.ephemeral() as instance:
        tick = Ticks(instance)
        seen = [tick(), tick(), tick(), tick()]
    assert [name for names in seen for name in names] == AGENTS and max(map(len, seen)) < len(
        AGENTS
    )


def test_what_the_schedule_saw_while_the_sensor_looked_is_reported(store: Path) -> None:
    workspace, key = Workspace(), parse_key(AGENTS[3])
    with dg.DagsterInstance.ephemeral() as instance:
        tick = Ticks(instance)
        tick()
        beside = workspace.versions(workspace.open_store())
        archive_a_session(store, AGENTS[1])
        assert tick() == [AGENTS[1]]
        archive_a_session(store, AGENTS[3])
        beside.find_version(key)
        beside.save()
        assert [tick(), tick()] == [[AGENTS[3]], []]


def test_the_schedule_reads_what_changed_and_requests_what_it_had_no_time_for(
    store: Path, read: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def evaluate(instance: dg.DagsterInstance) -> list[str]:
        context = dg.build_schedule_context(
            instance, datetime.now(UTC), resources={"workspace": Workspace()}
        )
        return [each.partition_key for each in nightly(context) if isinstance(each, dg.RunRequest)]

    def requested(instance: dg.DagsterInstance) -> list[str]:
        return contextvars.copy_context().run(evaluate, instance)

    with dg.instance_for_test() as instance:
        instance.add_dynamic_partitions("agent_pipeline_project_agent", AGENTS)
        monkeypatch.setattr(nightly_module, "TICK_SECONDS", -1)
        assert requested(instance) == AGENTS and read == []
        monkeypatch.setattr(nightly_module, "TICK_SECONDS", 40)
        assert requested(instance) == AGENTS == read
        read.clear()
        archive_a_session(store, AGENTS[5])
        assert requested(instance) == AGENTS and read == [AGENTS[5]]


def test_events_that_were_not_recorded_are_reported_again(store: Path) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        tick = Ticks(instance)
        assert tick(recorded=False) == AGENTS
        assert tick() == AGENTS and tick() == []
        next((store.parent / "lake/versions").glob("*.json")).write_text("{")
        assert (
            tick() == AGENTS
        )  # what was known is lost: everything is read again, and nothing is missed
