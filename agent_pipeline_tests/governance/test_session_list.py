"""The list of sessions, and its filters."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.governance.agent_status import read_agent_status
from agent_pipeline.governance.session_list import SessionFilter, list_sessions
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session
from agent_pipeline.sessions.tables import CURATED, JUDGED, make_session_row, to_batches
from agent_pipeline.storage.lake import Lake

KEY = PartitionKey("shop", "support")
FIRST_DAY = datetime(2026, 11, 1, tzinfo=UTC)
NOT_JUDGED = {
    "verdict_reasons": None,
    "verdict_name": None,
    "verdict_score": None,
    "measures": {},
    "opinions": {},
    "turns": [],
}


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Four sessions, one per day: two good ones, a bad one, and one that nobody judged."""
    lake = Lake(str(tmp_path / "lake"))
    rows = []
    for day, (verdict, reason, damage) in enumerate(
        [
            ("acceptable", None, {}),
            ("unacceptable", "unacceptable", {}),
            (None, "unjudged", {"orphan_output": 2}),
            ("acceptable", None, {"trailing_user": 1}),
        ]
    ):
        session = Session(session_id=f"s{day}", project="shop", agent="support", source="test")
        session.messages = [
            {"role": "user", "content": "Hi"},
            {"role": "assistant", "content": f"Hello {day}"},
        ]
        row = dict(make_session_row(session)) | {"task_key": f"t{day}"}
        row |= {"damage": damage, "created_at": FIRST_DAY + timedelta(days=day), **NOT_JUDGED}
        row |= {"verdict": verdict, "verdict_by": verdict and "label", "kept": reason is None}
        use = {None: "positive", "unacceptable": "negative"}.get(reason, "neither")
        row |= {"use": use, "drop_reason": reason, "drop_detail": None, "missed_measures": []}
        rows.append(row | {"duplicate_of": None, "continued_by": None})
    for asset, schema in (("judged_sessions", JUDGED), ("curated_sessions", CURATED)):
        lake.stage(asset, KEY, to_batches(rows, schema, 3), schema).commit()
    return lake


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (SessionFilter(), ["s3", "s2", "s1", "s0"]),
        (SessionFilter(dropped="unjudged"), ["s2"]),
        (SessionFilter(verdict="none"), ["s2"]),
        (SessionFilter(verdict="acceptable"), ["s3", "s0"]),
        (SessionFilter(damage="trailing_user"), ["s3"]),
        (SessionFilter(damage="trailing_user", verdict="unacceptable"), []),
    ],
)
def test_filters(lake: Lake, wanted: SessionFilter, expected: Sequence[str]) -> None:
    listed = list_sessions(lake, [KEY], wanted, 20)
    assert [session.session_id for session in listed.sessions] == expected
    assert (listed.matching, listed.total) == (len(expected), 4)


def test_limit_keeps_the_newest_and_counts_all(lake: Lake) -> None:
    listed = list_sessions(lake, [KEY], SessionFilter(), 2)
    assert [session.session_id for session in listed.sessions] == ["s3", "s2"]
    assert listed.matching == 4


@pytest.mark.parametrize(
    ("wanted", "nearest"),
    [
        (SessionFilter(dropped="unjudge"), "unjudged"),
        (SessionFilter(damage="orphan"), "orphan_output"),
        (SessionFilter(verdict="acceptble"), "acceptable"),
    ],
)
def test_unknown_filter_is_refused_with_the_nearest_name(
    lake: Lake, wanted: SessionFilter, nearest: str
) -> None:
    """An empty list would say that there are no such sessions."""
    with pytest.raises(SettingsError, match=nearest):
        list_sessions(lake, [KEY], wanted, 20)


def test_status_counts_the_same_sessions(lake: Lake) -> None:
    status = read_agent_status(Settings(lake=str(lake.root)), KEY)
    assert (status.was_read, status.sessions, status.kept) == (True, 4, 2)
    assert status.dropped == {"unacceptable": 1, "unjudged": 1}
    assert status.verdicts == {"acceptable": 2, "unacceptable": 1, "none": 1}
    assert status.model is None and status.trained_at is None
    assert status.next_step == "materialize shop/support"
    assert len(status.waits) == 1 and "agent-pipeline review shop/support" in status.waits[0]
