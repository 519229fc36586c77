"""Nights by a real daemon on a short clock: the schedule, the queue, the launcher and the monitoring of runs, each as a user has it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import dagster as dg
import pytest

from agent_pipeline.cli.instance import open_instance
from agent_pipeline.config.resolution import fingerprint
from agent_pipeline.config.settings import load_settings
from agent_pipeline.definitions import build_defs
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import NIGHT_TAG, WAITING_TAG, version_tags
from agent_pipeline.keys import parse_key
from agent_pipeline_tests.stores import HELLO, add_sessions, omniagents_home, sessions_db

# It waits for whole minutes of the clock, also on a loaded machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
NAMES = ["office/rooms", "shop/intern", "shop/support"]
WORKSPACE = ["-w", str(files("agent_pipeline").joinpath("workspace.yaml"))]
Found = TypeVar("Found")


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """A home with our dagster.yaml that looks for killed runs often, in which each agent was trained on what its store held before."""
    for name in NAMES:
        omniagents_home(tmp_path / "store", key=name, verdicts=[("s1", "acceptable")])
    for name, value in {
        "DAGSTER_HOME": tmp_path / "home",
        "AGENT_PIPELINE_STORE": tmp_path / "store",
        "AGENT_PIPELINE_LAKE": tmp_path / "lake",
        "AGENT_PIPELINE_CACHE": tmp_path / "cache",
        "AGENT_PIPELINE_NIGHT__CRON": "* * * * *",
        "AGENT_PIPELINE_NIGHT__RUNS": "2",
    }.items():
        monkeypatch.setenv(name, str(value))
    with open_instance() as instance:
        settings, readers = load_settings(), Workspace().open_store().reader_versions()
        instance.add_dynamic_partitions(AGENTS.name or "", NAMES)
        job = build_defs().resolve_job_def(RETRAIN)
        assets = [
            dg.AssetKey(name)
            for name in ("sessions", "judged_sessions", "curated_sessions", "trained_sessions")
        ]
        for name in NAMES:
            tags = version_tags("what it held", fingerprint(settings, parse_key(name)), readers)
            assert job.execute_in_process(
                instance=instance, partition_key=name, asset_selection=assets, tags=tags
            ).success
        instance.wipe_all_schedules()
        yaml = tmp_path / "home" / "dagster.yaml"
        yaml.write_text(
            yaml.read_text(encoding="utf-8").replace(
                "poll_interval_seconds: 60", "poll_interval_seconds: 2"
            ),
            encoding="utf-8",
        )
        yield instance


@contextmanager
def daemon(*start: str) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon, with these schedules turned on; at the end it and all that it started are killed."""
    for name in start:
        subprocess.run(
            [sys.executable, "-m", "dagster", "schedule", "start", name, *WORKSPACE],
            check=True,
            capture_output=True,
        )
    command = [sys.executable, "-m", "dagster._daemon", "run", *WORKSPACE]
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until(look: Callable[[], Found | None]) -> Found:
    """What a look finds at last."""
    end = time.monotonic() + 900
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(1)
    raise AssertionError("it did not come within a quarter of an hour")


def of_nights(instance: dg.DagsterInstance, status: dg.DagsterRunStatus) -> list[dg.RunRecord]:
    """The runs of the schedule, the first one first."""
    records = instance.get_run_records(dg.RunsFilter(statuses=[status]), ascending=True)
    return [record for record in records if NIGHT_TAG in record.dagster_run.tags]


def test_nights_of_two_runs_take_all_agents_in_turn_and_a_run_that_was_killed_with_everything_around_it_starts_once_more(
    instance: dg.DagsterInstance,
) -> None:
    def message() -> str:
        ticks = [
            tick
            for state in instance.all_instigator_state()
            for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id)
        ]
        return next(
            (
                said
                for tick in ticks
                if (said := tick.skip_reason or "").count("nothing has changed") == len(NAMES)
            ),
            "",
        )

    lake, first = Workspace().open_lake(), parse_key(NAMES[0])
    with ExitStack() as until_the_end:
        with daemon("nightly"):
            said = until(message)
            records = of_nights(instance, dg.DagsterRunStatus.SUCCESS)
            tags = [record.dagster_run.tags for record in records]
            assert [each["dagster/partition"] for each in tags] == NAMES, (
                "one run each, and the third one in another night"
            )
            assert tags[0][NIGHT_TAG] == tags[1][NIGHT_TAG] < tags[2][NIGHT_TAG]
            assert all(
                before.end_time <= after.start_time for before, after in pairwise(records)
            ), "one run at a time"
            assert {each[WAITING_TAG] for each in tags} == {
                "0"
            } and "needs 1 new sessions and has 0" in said
            assert not lake.has("sft_coreset", first)

            until_the_end.enter_context(
                lake.run_of(first)
            )  # so that its next run waits, and can be killed
            add_sessions(
                sessions_db(Path(os.environ["AGENT_PIPELINE_STORE"]), NAMES[0]), {"new": HELLO}
            )
            (killed,) = until(lambda: of_nights(instance, dg.DagsterRunStatus.STARTED))
            until(
                lambda: list(
                    Path(os.environ["AGENT_PIPELINE_CACHE"]).glob(
                        f"runs/{killed.dagster_run.run_id}.lock"
                    )
                )
            )
        with daemon():
            failed = until(lambda: of_nights(instance, dg.DagsterRunStatus.FAILURE))
            assert [each.dagster_run.run_id for each in failed] == [killed.dagster_run.run_id]
            again = until(
                lambda: instance.get_runs(
                    dg.RunsFilter(tags={"dagster/parent_run_id": killed.dagster_run.run_id})
                )
            )
            assert again[0].tags["dagster/partition"] == NAMES[0]
