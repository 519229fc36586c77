"""People are told: real runs and ticks, real Apprise, and a server that receives what it sends."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.config.checks import problems
from agent_pipeline.config.settings import load_settings
from agent_pipeline.defs.automation.nightly import nightly
from agent_pipeline.defs.automation.notifications import notices
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import LastRuns
from agent_pipeline.notifications import (
    MAX_LINES,
    Notification,
    describe_manual_move,
    send_notifications,
)
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.storage.pointers import Entry
from agent_pipeline_tests.defs.conftest import Bench
from agent_pipeline_tests.judging.endpoint import Endpoint, endpoint

pytest.importorskip("apprise")
AGENT = "shop/intern"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    with endpoint(lambda request, number: (200, {}, "{}")) as seen:
        monkeypatch.setenv("TOLD", seen.url.replace("http://", "json://"))
        monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", '["$TOLD"]')
        yield seen


def messages(seen: Endpoint) -> list[tuple[str, str]]:
    """What arrived: the cause, and the lines."""
    return [
        (each["title"].removeprefix("agent-pipeline: "), each["message"]) for each in seen.requests
    ]


class Ticks:
    """The sensor's ticks on an instance, one after another."""

    def __init__(self, instance: dg.DagsterInstance) -> None:
        self._instance, self._cursor = instance, None

    def __call__(self) -> Any:
        result: Any = notices(
            dg.build_sensor_context(
                instance=self._instance, cursor=self._cursor, resources={"workspace": Workspace()}
            )
        )
        self._cursor = getattr(result, "cursor", None) or self._cursor
        return result


def test_a_run_that_fails_is_told_of_once_with_its_sentence(bench: Bench, server: Endpoint) -> None:
    tick = Ticks(bench.instance)
    assert bench.run(AGENT, "sessions").success
    tick()  # what lies before the first tick is not told
    shutil.rmtree(bench.store / "sessions" / "shop" / "support")
    failed = bench.run("shop/support", "sessions", "judged_sessions")
    assert not failed.success
    tick(), tick()
    assert messages(server) == [("run failed", f"shop/support: {bench.sentence(failed)}")]
    assert bench.run(AGENT, "sessions").success
    tick()
    assert len(server.requests) == 1


def test_a_store_that_lost_its_sessions_is_told_of(bench: Bench, server: Endpoint) -> None:
    tick = Ticks(bench.instance)
    assert bench.run(AGENT, "sessions").success
    tick()
    (bench.store / "traces" / "shop.db").unlink()
    failed = bench.run(AGENT, "sessions")
    tick()
    assert messages(server) == [
        ("run failed", f"{AGENT}: {bench.sentence(failed)}")
    ] and "verdicts" in bench.sentence(failed)


def test_failed_checks_decisions_and_an_outage_of_the_judge_are_told_of(
    bench: Bench, server: Endpoint
) -> None:
    @dg.asset(check_specs=[dg.AssetCheckSpec("rows_are_trained", asset="sft_adapter")])
    def sft_adapter() -> dg.MaterializeResult:
        failed = dg.AssetCheckResult(
            passed=False, severity=dg.AssetCheckSeverity.WARN, description="a tenth was left out"
        )
        return dg.MaterializeResult(check_results=[failed])

    @dg.asset
    def judged_sessions() -> dg.MaterializeResult:
        return dg.MaterializeResult(metadata={"not_judged_yet": 3})

    compared = dg.AssetCheckSpec("candidate_is_not_rejected", asset="champion")

    @dg.asset(config_schema={"decision": str, "waits": bool}, check_specs=[compared])
    def champion(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        given = context.op_execution_context.op_config
        undecided = dg.AssetCheckResult(
            passed=not given["decision"].startswith("cannot decide"),
            severity=dg.AssetCheckSeverity.WARN,
            metadata={"decision": given["decision"]},
        )
        return dg.MaterializeResult(
            check_results=[undecided],
            metadata={
                "decision": given["decision"],
                "why": "so",
                "wins_and_waits_for_a_person": given["waits"],
            },
        )

    tick = Ticks(bench.instance)
    tick()
    for decision, waits in (
        ("promote", False),
        ("promote", True),
        ("cannot decide: 9 more tasks are needed", False),
        ("hold", False),
    ):
        config = {"ops": {"champion": {"config": {"decision": decision, "waits": waits}}}}
        tags = {"dagster/partition": AGENT}
        dg.materialize(
            [sft_adapter, judged_sessions, champion],
            instance=bench.instance,
            run_config=config,
            tags=tags,
        )
    tick()
    told = dict(messages(server))
    assert set(told) == {
        "check failed",
        "judge",
        "promoted",
        "a candidate waits for a person's approval",
        "cannot decide",
    }
    assert (
        told["check failed"].splitlines()
        == [f"{AGENT}: sft_adapter, rows are trained: a tenth was left out"] * 4
    )
    assert told["promoted"] == f"{AGENT}: so" and "9 more tasks" in told["cannot decide"]


def test_an_error_that_is_no_sentence_is_told_by_its_name_only(
    bench: Bench, server: Endpoint
) -> None:
    @dg.asset
    def broken() -> None:
        raise ValueError("what a user said")

    tick = Ticks(bench.instance)
    tick()
    dg.materialize([broken], instance=bench.instance, raise_on_error=False)
    tick()
    assert messages(server) == [("run failed", "ValueError: see the run in the UI.")]


def test_nothing_is_lost_while_nobody_can_be_reached(
    bench: Bench, server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, there = Ticks(bench.instance), load_settings().notify.urls
    tick()
    bench.run("shop/nobody", "sessions")
    monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", '["json://127.0.0.1:9/"]')
    assert "addresses in notify.urls failed" in tick().skip_message
    monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", json.dumps(["json://127.0.0.1:9/", *there]))
    tick(), tick()
    assert [cause for cause, _ in messages(server)] == ["run failed"]


@pytest.mark.parametrize("hours", [[0, 0], [0, -1, -2], [24, 0, 1], [24 * 400, 0, 0]])
def test_runs_are_told_of_once_whatever_the_clock_was_when_they_ended_and_whatever_tag_they_got_since(
    bench: Bench, server: Endpoint, hours: list[int]
) -> None:
    tick = Ticks(bench.instance)
    tick()
    for number, jump in enumerate(hours, 1):
        run = dg.DagsterRun(job_name=RETRAIN)
        bench.instance.add_run(run)
        when = (datetime.now(UTC) + timedelta(hours=jump)).timestamp()
        bench.instance.report_dagster_event(
            dg.DagsterEvent("PIPELINE_FAILURE", RETRAIN), run.run_id, timestamp=when
        )
        tick()
        bench.instance.add_run_tags(
            run.run_id, {"dagster/auto_retry_run_id": "another"}
        )  # as Dagster's daemon does
        tick()
        assert [cause for cause, _ in messages(server)] == ["run failed"] * number


def test_a_failure_is_told_of_though_its_run_is_not_marked_yet(
    bench: Bench, server: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    tick, run = Ticks(bench.instance), dg.DagsterRun(job_name=RETRAIN)
    tick()
    bench.instance.add_run(run)
    monkeypatch.setattr(type(bench.instance.run_storage), "handle_run_event", lambda *_, **__: None)
    bench.instance.report_dagster_event(dg.DagsterEvent("PIPELINE_FAILURE", RETRAIN), run.run_id)
    tick()
    assert [cause for cause, _ in messages(server)] == ["run failed"]


def test_a_message_that_is_always_refused_keeps_no_other_from_being_told_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with endpoint(
        lambda request, number: (400 if "judge" in request["title"] else 200, {}, "{}")
    ) as server:
        monkeypatch.setenv(
            "AGENT_PIPELINE_NOTIFY__URLS", json.dumps([server.url.replace("http://", "json://")])
        )
        assert (
            send_notifications(
                load_settings().notify.urls,
                [Notification("judge", AGENT, "odd"), Notification("run failed", AGENT, "why")],
                load_settings().redaction_options,
            )
            == ""
        )
        assert messages(server)[1:] == [
            ("run failed", f"{AGENT}: why"),
            ("a message was refused", "judge (1): see the runs in the UI."),
        ]
        assert "judge (1)" in send_notifications(
            load_settings().notify.urls,
            [Notification("judge", AGENT, "odd")],
            load_settings().redaction_options,
        )


@pytest.fixture
def stored(bench: Bench) -> Iterator[Bench]:
    """A schedule's tick wants an instance that lies on disk."""
    with dg.instance_for_test() as instance:
        yield replace(bench, instance=instance)


def nights(bench: Bench, when: datetime) -> Any:
    context = dg.build_schedule_context(
        bench.instance, scheduled_execution_time=when, resources={"workspace": Workspace()}
    )
    return list(nightly(context))  # type: ignore[arg-type]


def test_an_agent_that_cannot_be_read_at_night_is_told_of_while_the_others_run(
    stored: Bench, server: Endpoint
) -> None:
    stored.instance.add_dynamic_partitions("agent_pipeline_project_agent", [AGENT, "office/rooms"])
    database = stored.store / "sessions" / "shop" / "intern" / "sessions.db"
    database.write_bytes(database.read_bytes()[: database.stat().st_size // 2])
    assert [each.partition_key for each in nights(stored, datetime.now(UTC))] == ["office/rooms"]
    ((cause, line),) = messages(server)
    assert cause == "no run this night" and line.startswith(f"{AGENT}: ") and "damaged" in line


@pytest.mark.parametrize(("days", "told"), [(6, False), (7, True), (8, False), (14, True)])
def test_an_agent_that_was_not_trained_for_a_week_is_told_of_once_a_week(
    stored: Bench, server: Endpoint, monkeypatch: pytest.MonkeyPatch, days: int, told: bool
) -> None:
    stored.instance.add_dynamic_partitions("agent_pipeline_project_agent", [AGENT])
    (request,) = nights(stored, datetime.now(UTC))
    run = dg.DagsterRun(job_name=RETRAIN, tags=request.tags | {"dagster/partition": AGENT})
    stored.instance.add_run(run)
    stored.instance.report_dagster_event(dg.DagsterEvent("PIPELINE_START", RETRAIN), run.run_id)
    stored.instance.report_dagster_event(dg.DagsterEvent("PIPELINE_SUCCESS", RETRAIN), run.run_id)
    nights(stored, datetime.now(UTC) + timedelta(days=days, hours=1))
    assert messages(server) == (
        [
            (
                f"nothing trained for {days} days",
                f"{AGENT}: Nothing has changed in its sessions or settings.",
            )
        ]
        * told
    )
    assert LastRuns(stored.instance, [AGENT]).has(AGENT, request.tags)


def test_redaction_settings(server: Endpoint) -> None:
    """A message is redacted with the options of the settings, not with the defaults."""
    notification = Notification("run failed", AGENT, "mail ann@example.org or bob@example.org")
    options = RedactionOptions(allow=("ann@example.org",))
    assert send_notifications(load_settings().notify.urls, [notification], options) == ""
    ((_, line),) = messages(server)
    assert "mail ann@example.org or <EMAIL_1>" in line


def test_a_promotion_by_hand_and_many_agents_are_one_message_a_cause(server: Endpoint) -> None:
    moved = describe_manual_move(
        AGENT,
        Entry(champion="b" * 64, against="a" * 64, moved="champion", who="mira", why="rolled back"),
    )
    assert (
        send_notifications(
            load_settings().notify.urls,
            [
                moved,
                *(
                    Notification("run failed", f"shop/{number}", "why")
                    for number in range(MAX_LINES + 5)
                ),
            ],
            RedactionOptions(),
        )
        == ""
    )
    (first, line), (second, lines) = messages(server)
    assert (
        first == "champion moved" and "mira" in line and "rolled back" in line and "a" * 16 in line
    )
    assert (
        second == "run failed"
        and len(lines.splitlines()) == MAX_LINES + 1
        and lines.endswith("and 5 more")
    )


def test_an_address_that_is_none_is_refused_when_the_settings_are_checked_and_its_keys_are_not_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", '["carrier-pigeon://secret"]')
    (sentence,) = problems(load_settings())
    assert "carrier-pigeon" in sentence and "secret" not in sentence
    assert (
        send_notifications(
            load_settings().notify.urls,
            [Notification("run failed", AGENT, "why")],
            RedactionOptions(),
        )
        == sentence
    )
