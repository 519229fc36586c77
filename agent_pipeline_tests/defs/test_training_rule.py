"""What a night trains for: enough new sessions, or another verdict, setting or code."""

import sqlite3
from datetime import UTC, datetime, timedelta

import dagster as dg
import msgspec
import pyarrow as pa
import pytest

from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
from agent_pipeline.defs.runs import (
    CODE_VERSION_TAG,
    LATE,
    NIGHT_ENDS_TAG,
    NIGHT_TAG,
    SETTINGS_VERSION_TAG,
    WAITING_TAG,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.training_rule import TRAINED, SessionChanges, compare_sessions
from agent_pipeline_tests.defs.conftest import Bench
from agent_pipeline_tests.lakes import artifact

AGENT, KEY = "shop/intern", PartitionKey("shop", "intern")
ASSETS = (
    "sessions",
    "judged_sessions",
    "curated_sessions",
    "sft_dataset",
    "heldout_dataset",
    "trained_sessions",
    "sft_coreset",
)
TAGS = {SETTINGS_VERSION_TAG: "s", CODE_VERSION_TAG: "c", NIGHT_TAG: "2026-11-21T02:00:00+00:00"}


def made(result: dg.ExecuteInProcessResult) -> set[str]:
    assert result.success
    return {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}


def test_a_night_trains_when_enough_is_new_and_a_person_always_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__NEW_SESSIONS", "2")

    def night(**tags: str) -> tuple[bool, str | None]:
        result = bench.run(AGENT, *ASSETS, tags=TAGS | tags)
        names = made(result)
        assert ("sft_coreset" in names) == ("trained_sessions" in names) and "sft_dataset" in names
        return "sft_coreset" in names, bench.instance.get_run_by_id(result.run_id).tags.get(
            WAITING_TAG
        )

    assert night() == (True, None), "nothing was trained before"
    assert night() == (False, "0")
    kept = (
        bench.lake.open("curated_sessions", KEY).read(["session_id", "kept", "verdict"]).to_pylist()
    )
    names = [row["session_id"] for row in kept if row["kept"]]
    database = bench.store / "sessions" / "shop" / "intern" / "sessions.db"
    forget_item = (
        "DELETE FROM history WHERE id = (SELECT max(id) FROM history WHERE session_id = ?)"
    )
    for name, outcome in zip(names[:2], [(False, "1"), (True, None)], strict=True):
        with sqlite3.connect(database) as connection:
            assert connection.execute(forget_item, (name,)).rowcount == 1
        assert night() == outcome
    assert night() == (False, "0")
    assert night(**{SETTINGS_VERSION_TAG: "other"}) == (True, None)
    assert made(bench.run(AGENT, *ASSETS, tags={})) == set(ASSETS), (
        "a person's run waits for nothing"
    )
    assert night() == (True, None), "and is no training that a night knows"
    labels = bench.store / "labels.csv"
    labels.write_text(f"session_id,judgment\n{names[5]},unacceptable\n", encoding="utf-8")
    monkeypatch.setenv("AGENT_PIPELINE_LABELS", str(labels))
    assert night() == (True, None), "a verdict changed"
    ended = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    assert night(**{SETTINGS_VERSION_TAG: "third", NIGHT_ENDS_TAG: ended}) == (False, LATE)


def find_check(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    (check,) = (
        check
        for check in result.get_asset_check_evaluations()
        if check.check_name == "champion_sees_what_it_was_trained_for"
    )
    return check


def test_a_night_trains_for_one_session_if_the_agent_asks_something_else(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A champion that sees another rule decides by its old one, with confidence."""
    monkeypatch.setenv("AGENT_PIPELINE_NIGHT__NEW_SESSIONS", "100")
    assert made(bench.run(AGENT, *ASSETS, tags=TAGS)) == set(ASSETS)
    message = {"role": "system", "content": "You paint houses in three colours, and nothing else."}
    began = datetime(2001, 1, 1, tzinfo=UTC)
    row = {"session_id": "a", "created_at": began, "tools": [], "messages": [message]}
    requests = msgspec.json.encode(describe_requests([row] * 9))
    artifact(bench.lake, "sft_adapter", KEY, {"version": "old"}, {"weights": "w"})
    unrecorded = find_check(bench.run(AGENT, *ASSETS, tags=TAGS))
    assert not unrecorded.passed and unrecorded.severity == dg.AssetCheckSeverity.WARN
    assert "does not record its requests" in unrecorded.description
    artifact(bench.lake, "sft_adapter", KEY, {}, {REQUESTS_FILE: requests})
    assert "trained_sessions" not in made(bench.run(AGENT, *ASSETS, tags=TAGS)), "nothing is new"
    rows = bench.lake.open("curated_sessions", KEY).read(["session_id", "kept"]).to_pylist()
    name = next(row["session_id"] for row in rows if row["kept"])
    database = bench.store / "sessions" / "shop" / "intern" / "sessions.db"
    with sqlite3.connect(database) as connection:
        connection.execute(
            "DELETE FROM history WHERE id = (SELECT max(id) FROM history WHERE session_id = ?)",
            (name,),
        )
    result = bench.run(AGENT, *ASSETS, tags=TAGS)
    assert "sft_coreset" in made(result)
    check = find_check(result)
    assert not check.passed and check.severity == dg.AssetCheckSeverity.WARN
    assert "the system prompt changed" in check.description


def test_a_training_that_failed_is_tried_again_though_nothing_is_new(bench: Bench) -> None:
    assert made(bench.run(AGENT, *ASSETS, tags=TAGS)) == set(ASSETS)
    failed = bench.run(
        AGENT,
        *ASSETS,
        tags=TAGS | {SETTINGS_VERSION_TAG: "new"},
        config={"sft_coreset": {"strategy": "nonsense"}},
    )
    assert not failed.success
    assert made(bench.run(AGENT, *ASSETS, tags=TAGS | {SETTINGS_VERSION_TAG: "new"})) == set(ASSETS)


A, B = (
    dict(zip(TRAINED.names[1:], values, strict=True))
    for values in (("a", "positive", "1"), ("b", "negative", "2"))
)


@pytest.mark.parametrize(
    ("before", "now", "uses", "found"),
    [
        ({"x": A}, {"x": A}, {"positive"}, SessionChanges(0, 0)),
        ({}, {"x": A, "y": B}, {"positive"}, SessionChanges(1, 0)),
        ({}, {"x": A, "y": B}, {"positive", "negative"}, SessionChanges(2, 0)),
        ({"x": A}, {}, {"positive"}, SessionChanges(1, 0)),
        ({"y": B}, {}, {"positive"}, SessionChanges(0, 0)),
        ({"x": A}, {"x": A | {"content_sha256": "b"}}, {"positive"}, SessionChanges(1, 0)),
        ({"x": A}, {"x": A | {"verdict_sha256": "2"}}, {"positive"}, SessionChanges(0, 1)),
        (
            {"x": A},
            {"x": A | {"content_sha256": "b", "use": "neither"}},
            {"positive"},
            SessionChanges(1, 0),
        ),
    ],
)
def test_sessions_that_came_changed_or_went_are_counted_and_other_verdicts_apart(
    before, now, uses, found
) -> None:
    tables = (
        pa.Table.from_pylist([{"session_id": name, **each} for name, each in side.items()], TRAINED)
        for side in (before, now)
    )
    assert compare_sessions(*tables, uses) == found


def test_a_changed_verdict_never_waits_for_more_sessions() -> None:
    assert (
        SessionChanges(4, 0).waits_for(5)
        and not SessionChanges(5, 0).waits_for(5)
        and not SessionChanges(0, 1).waits_for(5)
        and not SessionChanges(0, 0).waits_for(0)
    )
