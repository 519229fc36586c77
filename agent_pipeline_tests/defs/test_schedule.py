"""The nightly schedule: a run for what is new, a reason for what is not."""

import contextvars
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from agent_pipeline.compute.tasks import TASKS, VERSIONS
from agent_pipeline.config.resolution import fingerprint as fingerprint_of_settings
from agent_pipeline.config.settings import load_settings
from agent_pipeline.definitions import defs
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import (
    LATE,
    NIGHT_TAG,
    PENDING_TAG,
    WAITING_TAG,
    LastRuns,
    version_tags,
)
from agent_pipeline.ingestion.reading import fingerprint_partition
from agent_pipeline.keys import parse_key
from agent_pipeline.sources import open_source
from agent_pipeline_tests.conftest import SAMPLE

NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    with dg.instance_for_test() as instance:
        yield instance


def _tick(instance: dg.DagsterInstance, night: datetime = NIGHT) -> Any:
    def evaluate() -> Any:
        repository = defs.get_repository_def()
        context = dg.build_schedule_context(
            instance,
            scheduled_execution_time=night,
            repository_def=repository,
            resources={"workspace": Workspace()},
        )
        return repository.get_schedule_def("nightly").evaluate_tick(context)

    # The context enters the instance once more and never leaves it; in a copy, what it sets does not reach the next test.
    return contextvars.copy_context().run(evaluate)


def _trained(instance: dg.DagsterInstance, partition: str, status: dg.DagsterRunStatus) -> None:
    source = open_source(SAMPLE)
    version, _ = fingerprint_partition(source.stored(parse_key(partition)))
    tags = version_tags(
        version,
        fingerprint_of_settings(load_settings(), parse_key(partition)),
        source.reader_versions(),
    )
    instance.add_run(
        dg.DagsterRun(
            job_name=RETRAIN, status=status, tags={"dagster/partition": partition, **tags}
        )
    )


def test_every_agent_with_something_new_gets_one_run_of_its_own(
    instance: dg.DagsterInstance,
) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern", "office/rooms"])
    requests = _tick(instance).run_requests
    assert [(each.run_key, each.partition_key) for each in requests] == [
        ("2026-11-21T02:00:00+00:00:office/rooms", "office/rooms"),
        ("2026-11-21T02:00:00+00:00:shop/intern", "shop/intern"),
    ]


def test_an_agent_with_nothing_new_since_its_last_success_is_skipped_with_a_reason(
    instance: dg.DagsterInstance,
) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    _trained(instance, "shop/intern", dg.DagsterRunStatus.SUCCESS)
    tick = _tick(instance)
    assert not tick.run_requests and "shop/intern: nothing has changed in its 74 sessions" in (
        tick.skip_message or ""
    )


@pytest.mark.parametrize("what", ["the code", "the store's reader"])
def test_a_new_version_of_what_reads_and_judges_makes_an_agent_new(
    what: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    _trained(instance, "shop/intern", dg.DagsterRunStatus.SUCCESS)
    if what == "the code":
        monkeypatch.setattr("agent_pipeline.defs.runs.CODE_VERSION", "the next")
    else:
        monkeypatch.setattr(type(open_source(SAMPLE)), "version", 1000)
    assert [each.partition_key for each in _tick(instance).run_requests] == ["shop/intern"]


def test_the_version_of_the_code_is_one_whatever_a_process_has_imported() -> None:
    from agent_pipeline.method_comparison.task import compare_methods

    assert (
        compare_methods.name in TASKS
        and compare_methods.name not in VERSIONS
        and VERSIONS.keys() < TASKS.keys()
    )


def test_a_changed_setting_makes_an_agent_new_and_its_run_says_what_is_set(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    _trained(instance, "shop/intern", dg.DagsterRunStatus.SUCCESS)
    assert not _tick(instance).run_requests
    (tmp_path / "pipeline.toml").write_text("[assets.sft_adapter]\nlora_r = 8\n", encoding="utf-8")
    (request,) = _tick(instance).run_requests
    assert request.run_config == {"ops": {"adapter": {"config": {"sft_adapter": {"lora_r": 8}}}}}


@pytest.mark.parametrize("pages", [0, 1, 6])
def test_only_the_last_successful_run_counts_however_many_pages_are_read(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr("agent_pipeline.defs.runs._PAGE", 2)
    monkeypatch.setattr("agent_pipeline.defs.runs._PAGES", pages)
    old, new = version_tags("old", "settings", {}), version_tags("new", "settings", {})
    for partition, tags in [
        ("a/a", new),
        ("b/b", old),
        ("b/b", new),
        ("c/c", new),
        ("a/a", old),
        ("d/d", new | {PENDING_TAG: "3"}),
    ]:
        tags = {"dagster/partition": partition, **tags}
        instance.add_run(
            dg.DagsterRun(job_name=RETRAIN, status=dg.DagsterRunStatus.SUCCESS, tags=tags)
        )
    instance.add_run(
        dg.DagsterRun(
            job_name=RETRAIN,
            status=dg.DagsterRunStatus.FAILURE,
            tags={"dagster/partition": "c/c", **old},
        )
    )
    last = LastRuns(instance, ["a/a", "b/b", "c/c", "d/d", "e/e"])
    assert [last.has(name, new) for name in ("a/a", "b/b", "c/c", "d/d", "e/e")] == [
        False,
        True,
        True,
        False,
        False,
    ]
    assert last.has("a/a", old) and not last.has("e/e", old)


def _run(
    instance: dg.DagsterInstance,
    request: dg.RunRequest,
    status: dg.DagsterRunStatus,
    minutes: float = 1,
    **tags: str,
) -> None:
    run = dg.DagsterRun(
        job_name=RETRAIN,
        tags={**request.tags, "dagster/partition": str(request.partition_key), **tags},
    )
    instance.add_run(run)
    ended = "PIPELINE_SUCCESS" if status == dg.DagsterRunStatus.SUCCESS else "PIPELINE_FAILURE"
    for kind, after in (("PIPELINE_START", 0.0), (ended, 60 * minutes)):
        instance.report_dagster_event(
            dg.DagsterEvent(kind, RETRAIN), run.run_id, timestamp=NIGHT.timestamp() + after
        )


def test_a_night_of_few_runs_takes_its_agents_in_turn_though_some_always_fail(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__RUNS", "1")
    agents = ["office/rooms", "shop/intern", "shop/support"]
    instance.add_dynamic_partitions("agent_pipeline_project_agent", agents)
    nights = []
    for number in range(4):
        requests = _tick(instance, NIGHT + timedelta(days=number)).run_requests
        nights.append([each.partition_key for each in requests])
        for each in requests:
            _run(instance, each, dg.DagsterRunStatus.FAILURE)
    assert nights == [[name] for name in [*agents, agents[0]]]


def test_of_those_that_ran_in_one_night_the_unfinished_come_first(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = ["office/rooms", "shop/intern", "shop/support"]
    instance.add_dynamic_partitions("agent_pipeline_project_agent", agents)
    undone: list[dict[str, str]] = [{}, {PENDING_TAG: "2"}, {WAITING_TAG: LATE}]
    for each, tags in zip(_tick(instance).run_requests, undone, strict=True):
        _run(instance, each, dg.DagsterRunStatus.SUCCESS, **tags)
    assert [
        each.partition_key for each in _tick(instance, NIGHT + timedelta(days=1)).run_requests
    ] == agents[1:]
    monkeypatch.setenv("AGENT_PIPELINE_SPLIT__TEST", "0.3")  # news for all of them
    assert [
        each.partition_key for each in _tick(instance, NIGHT + timedelta(days=1)).run_requests
    ] == [*agents[1:], agents[0]]


def test_an_agent_whose_run_is_still_queued_gets_no_second_one(
    instance: dg.DagsterInstance,
) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    origin = RemoteJobOrigin(
        RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("agent_pipeline"), "repository"),
        RETRAIN,
    )
    tags, queued = {"dagster/partition": "shop/intern"}, dg.DagsterRunStatus.QUEUED
    instance.add_run(
        dg.DagsterRun(job_name=RETRAIN, status=queued, tags=tags, remote_job_origin=origin)
    )
    tick = _tick(instance)
    assert not tick.run_requests and "is still in progress" in tick.skip_message


@pytest.mark.parametrize(
    ("hours", "goes_on"), [(1, True), (-1, True), (30, False), (-30, False), (-24 * 400, False)]
)
def test_a_run_that_began_before_the_clock_jumped_is_waited_for_a_day_at_most(
    instance: dg.DagsterInstance, hours: int, goes_on: bool
) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    run = dg.DagsterRun(
        job_name=RETRAIN,
        status=dg.DagsterRunStatus.STARTED,
        tags={"dagster/partition": "shop/intern"},
    )
    instance.run_storage.add_historical_run(run, datetime.now(UTC) - timedelta(hours=hours))
    assert [each.partition_key for each in _tick(instance).run_requests or ()] == [
        "shop/intern"
    ] * (not goes_on)


def test_an_agent_whose_last_night_was_that_of_a_clock_far_ahead_comes_first_and_a_night_twice_is_one(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__RUNS", "1")
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["office/rooms", "shop/intern"])
    (first,) = _tick(instance).run_requests
    (again,) = _tick(
        instance
    ).run_requests  # the clock went back an hour; of one key Dagster starts one run
    assert first.run_key == again.run_key and first.partition_key == "office/rooms"
    _run(instance, first, dg.DagsterRunStatus.FAILURE)
    ahead = dg.RunRequest(
        partition_key="shop/intern", tags={NIGHT_TAG: (NIGHT + timedelta(days=400)).isoformat()}
    )
    _run(instance, ahead, dg.DagsterRunStatus.FAILURE)
    assert [
        each.partition_key for each in _tick(instance, NIGHT + timedelta(days=1)).run_requests
    ] == ["shop/intern"]


def test_what_does_not_fit_into_the_minutes_waits_and_the_runs_know_when_the_night_ends(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__MINUTES", "90")
    instance.add_dynamic_partitions(
        "agent_pipeline_project_agent", ["office/rooms", "shop/intern", "shop/support"]
    )
    first = _tick(instance).run_requests
    assert len(first) == 3 and {each.tags["agent_pipeline/night_ends"] for each in first} == {
        "2026-11-21T03:30:00+00:00"
    }
    for each in first[:2]:
        _run(instance, each, dg.DagsterRunStatus.SUCCESS, minutes=40)
        _run(
            instance, each, dg.DagsterRunStatus.SUCCESS, minutes=1, **{WAITING_TAG: "3"}
        )  # it trained nothing: no measure of a training
    monkeypatch.setenv("AGENT_PIPELINE_SPLIT__TEST", "0.3")
    assert [
        each.partition_key for each in _tick(instance, NIGHT + timedelta(days=1)).run_requests
    ] == ["shop/support", "office/rooms"]


def test_an_agent_that_waits_for_more_sessions_says_so_and_runs_when_it_waits_for_fewer(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__NEW_SESSIONS", "5")
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    (request,) = _tick(instance).run_requests
    _run(instance, request, dg.DagsterRunStatus.SUCCESS, **{WAITING_TAG: "3"})
    tick = _tick(instance, NIGHT + timedelta(days=1))
    assert not tick.run_requests and "needs 5 new sessions and has 3" in tick.skip_message
    monkeypatch.setenv("AGENT_PIPELINE_AGENTS", '{"shop/intern": {"new_sessions": 3}}')
    assert len(_tick(instance, NIGHT + timedelta(days=1)).run_requests) == 1
