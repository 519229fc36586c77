"""What the new sessions of a table show beside its last version."""

from typing import Any

import pytest

from agent_pipeline.ingestion.drift import NO_DRIFT, Drift, Share, ToolChange, measure_drift
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import CURATED, SESSIONS, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake, StagedTable
from agent_pipeline_tests.judging.sessions import ANSWERED, calls, result, session, tool

KEY = PartitionKey("p", "a")
INTEGER, STRING = (
    {"type": "integer", "description": "its id"},
    {"type": "string", "description": "its number"},
)


def refund(order: dict[str, Any], **more: Any) -> dict[str, Any]:
    return tool(
        "refund", type="object", properties={"order_id": order, **more}, required=["order_id"]
    )


def rows(
    first: int, last: int, tools: Any = (), arguments: Any = None, **columns: Any
) -> list[dict[str, Any]]:
    called = [calls(("refund", arguments)), result("done")] if arguments is not None else []
    sessions = [
        session([*called, *ANSWERED], f"s{number:03}", tools=list(tools), tools_origin="source")
        for number in range(first, last)
    ]
    return [make_session_row(each) | columns for each in sessions]


def staged(lake: Lake, rows: list[dict[str, Any]]) -> StagedTable:
    asset, schema = ("curated_sessions", CURATED) if "use" in rows[0] else ("sessions", SESSIONS)
    return lake.stage(asset, KEY, to_batches(rows, schema, size=7), schema)


@pytest.fixture
def lake(tmp_path) -> Lake:
    return Lake(str(tmp_path))


def compared(lake: Lake, before: list[dict[str, Any]], new: list[dict[str, Any]]) -> Drift:
    staged(lake, before).commit()
    table = staged(lake, [*before, *new])
    return measure_drift(lake, "curated_sessions" if "use" in before[0] else "sessions", KEY, table)


def test_a_tool_that_changed_its_schema_is_named_with_the_argument(lake):
    before, now = (
        [refund(INTEGER), tool("find")],
        [refund(STRING, reason={"type": "string"}), tool("find")],
    )
    found = compared(lake, rows(0, 5, before), rows(5, 6, now))
    assert found.tools == [
        ToolChange("refund", "schema", "order_id", '*{"type":"integer"}', '*{"type":"string"}'),
        ToolChange("refund", "schema", "reason", "", '{"type":"string"}'),
    ]
    assert found.moved and (found.sessions, found.new) == (5, 1)


def test_a_tool_is_added_or_removed_and_one_that_few_sessions_had_is_not_missed(lake):
    before = [
        *rows(0, 9, [tool("find"), tool("old")]),
        *rows(9, 10, [tool("find"), tool("old"), tool("rare")]),
    ]
    found = compared(lake, before, rows(10, 12, [tool("find"), tool("new")]))
    assert found.tools == [ToolChange("new", "added"), ToolChange("old", "removed")]
    assert compared(lake, before, rows(10, 12)).tools == [], "sessions without any tools miss none"


def test_an_argument_whose_type_changed_is_named(lake):
    found = compared(
        lake,
        rows(0, 30, arguments={"order_id": 1, "note": "x"}),
        rows(30, 40, arguments={"order_id": "1", "note": "y"}),
    )
    assert found.shares == [
        Share("refund.order_id", "integer", 1.0, 0.0, True),
        Share("refund.order_id", "string", 0.0, 1.0, True),
    ]
    gone = compared(lake, rows(0, 30, arguments={"order_id": 1}), rows(30, 40, arguments={}))
    assert [(each.what, each.value) for each in gone.shares] == [
        ("refund.order_id", "absent"),
        ("refund.order_id", "integer"),
    ]


def decided(first: int, last: int, verdict: str | None, reason: str | None) -> list[dict[str, Any]]:
    use = "positive" if reason is None else "neither"
    return rows(
        first,
        last,
        verdict=verdict,
        drop_reason=reason,
        kept=reason is None,
        use=use,
        missed_measures=[],
    )


def test_shares_of_verdicts_and_reasons_move_where_the_new_sessions_differ_beyond_chance(lake):
    before = [*decided(0, 180, "acceptable", None), *decided(180, 200, None, "unjudged")]
    found = compared(lake, before, decided(200, 212, None, "unjudged"))
    assert found.moved and [tuple(each) for each in found.shares] == [
        ("verdict", "acceptable", 0.9, 0.0, True),
        ("verdict", "none", 0.1, 1.0, True),
        ("drop_reason", "kept", 0.9, 0.0, True),
        ("drop_reason", "unjudged", 0.1, 1.0, True),
    ], "in the whole table the share of kept sessions fell by five points only"
    lucky = compared(lake, before, decided(200, 201, None, "unjudged"))
    assert not lucky.moved and lucky.new == 1, "one session of the rarer kind says nothing"


@pytest.mark.parametrize(("turned", "moved"), [(10, False), (30, True), (90, True)])
@pytest.mark.parametrize("fate", [("unacceptable", "unacceptable"), (None, "unjudged")])
def test_verdicts_of_old_sessions_that_turn_or_are_gone_are_drift_unless_a_few_were_corrected(
    lake, turned, moved, fate
):
    staged(
        lake,
        [*decided(0, 90, "acceptable", None), *decided(90, 100, "unacceptable", "unacceptable")],
    ).commit()
    now = [*decided(0, turned, *fate), *decided(turned, 90, "acceptable", None)]
    found = measure_drift(
        lake,
        "curated_sessions",
        KEY,
        staged(lake, [*now, *decided(90, 100, "unacceptable", "unacceptable")]),
    )
    assert (found.moved, found.new) == (moved, turned if moved else 0)


def test_without_a_last_version_or_new_sessions_there_is_no_drift(lake):
    first = staged(lake, rows(0, 3, [tool("find")]))
    assert measure_drift(lake, "sessions", KEY, first) == NO_DRIFT
    first.commit()
    assert measure_drift(lake, "sessions", KEY, staged(lake, rows(1, 3, [tool("find")]))) == Drift(
        3, 0, [], []
    )
    assert measure_drift(
        lake, "sessions", KEY, staged(lake, rows(0, 3, [tool("find"), tool("new")]))
    ).tools == [ToolChange("new", "added")]
    lake.table("sessions", KEY).write_bytes(b"damaged")
    assert measure_drift(lake, "sessions", KEY, staged(lake, rows(0, 9))) == NO_DRIFT


@pytest.mark.parametrize(
    "parameters",
    [{"properties": []}, {"properties": {"a": True}, "required": "a"}, {"$ref": "#/x"}],
)
def test_an_odd_schema_is_a_schema_like_another(lake, parameters):
    assert {
        each.change
        for each in compared(
            lake, rows(0, 5, [tool("find")]), rows(5, 6, [tool("find", **parameters)])
        ).tools
    } == {"schema"}
