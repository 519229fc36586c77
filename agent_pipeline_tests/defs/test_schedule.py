"""The nightly schedule: a run for what is new, a reason for what is not."""

import contextvars
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.config.resolution import fingerprint as fingerprint_of_settings
from agent_pipeline.config.settings import load_settings
from agent_pipeline.definitions import defs
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import PENDING_TAG, LastRuns, version_tags
from agent_pipeline.ingestion.reading import fingerprint
from agent_pipeline.keys import parse_key
from agent_pipeline.sources import open_source
from agent_pipeline_tests.defs.conftest import SAMPLE

NIGHT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(SAMPLE))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    with dg.instance_for_test() as instance:
        yield instance


def _tick(instance: dg.DagsterInstance) -> Any:
    def evaluate() -> Any:
        repository = defs.get_repository_def()
        context = dg.build_schedule_context(
            instance, scheduled_execution_time=NIGHT, repository_def=repository, resources={"workspace": Workspace()}
        )
        return repository.get_schedule_def("nightly").evaluate_tick(context)

    # The context enters the instance once more and never leaves it; in a copy, what it sets does not reach the next test.
    return contextvars.copy_context().run(evaluate)


def _trained(instance: dg.DagsterInstance, partition: str, status: dg.DagsterRunStatus) -> None:
    source = open_source(SAMPLE)
    version, _ = fingerprint(source.stored(parse_key(partition)))
    tags = version_tags(version, fingerprint_of_settings(load_settings(), parse_key(partition)), source.reader_versions())
    instance.add_run(dg.DagsterRun(job_name=RETRAIN, status=status, tags={"dagster/partition": partition, **tags}))


def test_every_agent_with_something_new_gets_one_run_of_its_own(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern", "office/rooms"])
    requests = _tick(instance).run_requests
    assert [(each.run_key, each.partition_key) for each in requests] == [
        ("2026-11-21:office/rooms", "office/rooms"),
        ("2026-11-21:shop/intern", "shop/intern"),
    ]


def test_an_agent_with_nothing_new_since_its_last_success_is_skipped_with_a_reason(instance: dg.DagsterInstance) -> None:
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    _trained(instance, "shop/intern", dg.DagsterRunStatus.SUCCESS)
    tick = _tick(instance)
    assert not tick.run_requests and "shop/intern: nothing new in its 70 sessions" in (tick.skip_message or "")


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


def test_a_changed_setting_makes_an_agent_new_and_its_run_says_what_is_set(
    instance: dg.DagsterInstance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    instance.add_dynamic_partitions("agent_pipeline_project_agent", ["shop/intern"])
    _trained(instance, "shop/intern", dg.DagsterRunStatus.SUCCESS)
    assert not _tick(instance).run_requests
    (tmp_path / "pipeline.toml").write_text("[assets.sft_adapter]\nlora_r = 8\n", encoding="utf-8")
    (request,) = _tick(instance).run_requests
    assert request.run_config == {"ops": {"sft_adapter": {"config": {"lora_r": 8}}}}


@pytest.mark.parametrize("pages", [0, 1, 6])
def test_only_the_last_successful_run_counts_however_many_pages_are_read(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch, pages: int
) -> None:
    monkeypatch.setattr("agent_pipeline.defs.runs._PAGE", 2)
    monkeypatch.setattr("agent_pipeline.defs.runs._PAGES", pages)
    old, new = version_tags("old", "settings", {}), version_tags("new", "settings", {})
    for partition, tags in [("a/a", new), ("b/b", old), ("b/b", new), ("c/c", new), ("a/a", old), ("d/d", new | {PENDING_TAG: "3"})]:
        tags = {"dagster/partition": partition, **tags}
        instance.add_run(dg.DagsterRun(job_name=RETRAIN, status=dg.DagsterRunStatus.SUCCESS, tags=tags))
    instance.add_run(dg.DagsterRun(job_name=RETRAIN, status=dg.DagsterRunStatus.FAILURE, tags={"dagster/partition": "c/c", **old}))
    last = LastRuns(instance, ["a/a", "b/b", "c/c", "d/d", "e/e"])
    assert [last.has(name, new) for name in ("a/a", "b/b", "c/c", "d/d", "e/e")] == [False, True, True, False, False]
    assert last.has("a/a", old) and not last.has("e/e", old)
