"""The page of a night."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.events import StepMaterializationData

from agent_pipeline.defs.automation.digest import night_digest
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import NIGHT_TAG, WAITING_TAG
from agent_pipeline_tests.judging.endpoint import endpoint

AT = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=1)
NIGHT, BEFORE = AT.isoformat(), (AT - timedelta(hours=20)).isoformat()


@pytest.fixture
def instance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def ran(
    instance: dg.DagsterInstance, name: str, ended: str = "PIPELINE_SUCCESS", **tags: str
) -> dg.DagsterRun:
    run = dg.DagsterRun(
        job_name=RETRAIN, tags={"dagster/partition": name, NIGHT_TAG: NIGHT, **tags}
    )
    instance.add_run(run)
    for kind in ("PIPELINE_START", ended) if ended else ("PIPELINE_START",):
        instance.report_dagster_event(dg.DagsterEvent(kind, RETRAIN), run.run_id)
    return run


def decided(
    instance: dg.DagsterInstance,
    run: dg.DagsterRun,
    decision: str,
    waits: bool = False,
    **metadata: str,
) -> dg.DagsterRun:
    said = (
        {"decision": decision, "why": "so\nand so", "wins_and_waits_for_a_person": waits}
        if decision
        else {}
    )
    event = dg.AssetMaterialization("champion", metadata={**said, **metadata})
    instance.report_dagster_event(
        dg.DagsterEvent(
            "ASSET_MATERIALIZATION", RETRAIN, event_specific_data=StepMaterializationData(event)
        ),
        run.run_id,
    )
    return run


def tick(instance: dg.DagsterInstance, cursor: str | None) -> Any:
    return night_digest(
        dg.build_sensor_context(
            instance=instance, cursor=cursor, resources={"workspace": Workspace()}
        )
    )


def test_a_night_gets_one_page_when_its_last_run_has_ended(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    began = tick(instance, None).cursor
    assert datetime.fromisoformat(began) > datetime.now(UTC) - timedelta(minutes=5)
    decided(instance, ran(instance, "shop/<support>"), "reject")
    decided(instance, ran(instance, "shop/sales"), "promote")
    decided(instance, ran(instance, "shop/returns"), "promote", waits=True)
    decided(instance, ran(instance, "shop/stock"), "hold")
    decided(instance, ran(instance, "shop/phone"), "cannot decide: 9 more tasks are needed")
    decided(instance, ran(instance, "shop/mail"), "")
    decided(instance, ran(instance, "shop/chat"), "", probation="1f0c: roll back: worse")
    decided(instance, ran(instance, "shop/served", "PIPELINE_FAILURE"), "promote")
    ran(instance, "shop/intern", **{WAITING_TAG: "3"})
    ran(instance, "office/rooms", "PIPELINE_FAILURE")
    ran(instance, "office/rooms")  # started once more
    going = ran(instance, "tickets/triage", "")
    assert "1 of the 11 runs" in tick(instance, BEFORE).skip_message
    instance.report_dagster_event(dg.DagsterEvent("PIPELINE_FAILURE", RETRAIN), going.run_id)
    result = tick(instance, BEFORE)
    (page,) = (tmp_path / "lake" / "nights").glob("*.html")
    text = page.read_text(encoding="utf-8")
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)
    outcomes = dict(zip(cells[::4], cells[1::4], strict=True))
    assert outcomes == {
        "office/rooms": "no decision",
        "shop/&lt;support&gt;": "rejected: so",
        "shop/sales": "promoted: so",
        "shop/returns": "waits for a person: so",
        "shop/stock": "held: so",
        "shop/phone": "cannot decide: 9 more tasks are needed: so",
        "shop/mail": "nothing new, because the candidate is already the champion",
        "shop/chat": "rolled back: 1f0c: roll back: worse",
        "shop/served": "failed: promoted: so",
        "shop/intern": "not trained: 3 new sessions, and it waits for more",
        "tickets/triage": "failed",
    }
    assert "run failed" in cells[-1] and "Where the two differ" not in text
    assert (
        "1 cannot decide, 2 failed, 1 held, 1 no decision, 1 not trained"
        in result.skip_reason.skip_message
    )
    assert tick(instance, result.cursor).skip_message == "No night has begun since the last page."


def test_after_a_clock_that_was_far_ahead_every_night_gets_its_page_again_and_none_two(
    instance: dg.DagsterInstance,
) -> None:
    ran(instance, "shop/support", **{NIGHT_TAG: (AT + timedelta(days=400)).isoformat()})
    cursor = tick(instance, (AT + timedelta(days=401)).isoformat()).cursor
    assert datetime.fromisoformat(cursor) < AT + timedelta(hours=2), "not in a year only"
    ran(instance, "shop/support", **{NIGHT_TAG: (AT + timedelta(hours=2)).isoformat()})
    assert tick(instance, cursor).cursor == (AT + timedelta(hours=2)).isoformat()
    assert (
        tick(instance, (AT + timedelta(hours=2)).isoformat()).skip_message
        == "No night has begun since the last page."
    ), "an hour back"


def test_a_night_waits_for_a_run_that_is_about_to_be_started_once_more_but_not_for_one_that_is_dead(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    killed = ran(instance, "shop/support", "PIPELINE_FAILURE", **{"dagster/will_retry": "true"})
    dead = dg.DagsterRun(
        job_name=RETRAIN,
        status=dg.DagsterRunStatus.STARTED,
        tags={"dagster/partition": "office/rooms", NIGHT_TAG: NIGHT},
    )
    instance.run_storage.add_historical_run(dead, datetime.now(UTC) - timedelta(days=2))
    assert "1 of the 2 runs" in tick(instance, BEFORE).skip_message
    again = ran(instance, "shop/support")
    instance.add_run_tags(killed.run_id, {"dagster/auto_retry_run_id": again.run_id})
    assert "1 no decision, 1 started" in tick(instance, BEFORE).skip_reason.skip_message


def test_one_message_tells_of_the_night_and_is_sent_again_until_it_arrives(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("apprise")
    decided(instance, ran(instance, "shop/support"), "hold")
    ran(instance, "shop/intern", "PIPELINE_FAILURE")
    with endpoint(lambda request, number: (500 if number == 0 else 200, {}, "{}")) as server:
        monkeypatch.setenv("TOLD", server.url.replace("http://", "json://"))
        monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", '["$TOLD"]')
        failed = tick(instance, BEFORE)
        assert isinstance(failed, dg.SkipReason)
        assert tick(instance, BEFORE).cursor == NIGHT
        lines = server.requests[-1]["message"].splitlines()
    assert len(server.requests) == 2 and lines[0].startswith("1 failed, 1 held")
    assert lines[1:] == ["shop/intern: failed", "shop/support: held: so"]
