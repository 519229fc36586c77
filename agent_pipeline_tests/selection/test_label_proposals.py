"""Proposals of sessions to label: three parts, and a random part that stays random."""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.judging.judge_checks import draw_number
from agent_pipeline.judging.labels import read_labels
from agent_pipeline.judging.review import write_review
from agent_pipeline.judging.verdict_policy import VerdictPolicy
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.label_proposals import (
    DISAGREEING,
    RANDOM,
    TYPICAL,
    propose_sessions,
)

POLICY = VerdictPolicy(["label", "score", "llm"])
ANSWER = {"role": "assistant", "content": "Done."}
REQUESTS = ("Where is my parcel?", "Cancel my flight.", "Book a table.", "Reset my password.")


def opinion(verdict: str | None, **fields: Any) -> dict[str, Any]:
    return {"verdict": verdict, "reason": "", "name": "", "pending": False} | fields


def make_row(index: int, **opinions: str | None) -> dict[str, Any]:
    """Return a judged session; a keyword names a judge and its verdict."""
    return {
        "session_id": f"s-{index}",
        "project": "shop",
        "agent": "support",
        "archived": False,
        "error": None,
        "verdict": None,
        "verdict_by": None,
        "messages": [{"role": "user", "content": f"{REQUESTS[index % 4]} No. {index}"}, ANSWER],
        "turns": [{"addresses_judge": False, "failed_measures": []}],
        "opinions": {judge: opinion(verdict) for judge, verdict in opinions.items()},
    }


def list_ids(rows: list[dict[str, Any]], why: str) -> list[str]:
    return [row["session_id"] for row in rows if row["why"] == why]


def test_three_parts() -> None:
    """A disagreement and every kind of request are proposed beside 30 random sessions."""
    rows = [make_row(index, llm="acceptable") for index in range(200)]
    rows += [
        make_row(index, llm="acceptable", measures="unacceptable") for index in range(200, 250)
    ]
    proposal = propose_sessions(rows, 50, POLICY).rows
    drawn = list_ids(proposal, RANDOM)
    assert 30 <= len(drawn) <= 36
    assert drawn == sorted((row["session_id"] for row in rows), key=draw_number)[: len(drawn)]
    assert 5 <= len(list_ids(proposal, DISAGREEING)) <= 10
    assert {int(one.split("-")[1]) >= 200 for one in list_ids(proposal, DISAGREEING)} == {True}
    assert len(list_ids(proposal, TYPICAL)) >= 4
    assert [row["session_id"] for row in proposal[: len(drawn)]] == drawn
    assert len({row["session_id"] for row in proposal}) == 50


def test_only_sessions_that_a_machine_finds_good_are_drawn() -> None:
    """Labels of other sessions say nothing about the precision on good."""
    rows = [
        make_row(index, llm="acceptable" if index % 2 else "unacceptable") for index in range(80)
    ]
    drawn = list_ids(propose_sessions(rows, 20, POLICY).rows, RANDOM)
    assert drawn and all(int(one.split("-")[1]) % 2 for one in drawn)
    undecided = propose_sessions([make_row(index) for index in range(80)], 20, POLICY).rows
    assert len(list_ids(undecided, RANDOM)) >= 12


def test_left_out() -> None:
    """Sessions with a label, and sessions whose source is a judge, are not drawn."""
    rows = [make_row(0, label="acceptable"), make_row(1, score="acceptable"), make_row(2)]
    rows += [make_row(3) | {"archived": True}]
    proposal = propose_sessions(rows, 10, POLICY)
    assert [row["session_id"] for row in proposal.rows] == ["s-2"]
    assert proposal.counts.total() == 4


@given(st.integers(1, 60), st.integers(1, 80), st.integers(0, 3))
def test_the_probability_is_the_bound_of_the_numbers(count: int, size: int, salt: int) -> None:
    """Exactly the drawn sessions of the frame have a number below the stored probability."""
    rows = [make_row(index, llm="acceptable") for index in range(size)]
    proposal = propose_sessions(rows, count, POLICY, salt=str(salt)).rows
    drawn = [row for row in proposal if row["why"] == RANDOM]
    (bound,) = {float(row["probability"]) for row in drawn}
    below = {row["session_id"] for row in rows if draw_number(row["session_id"], str(salt)) < bound}
    assert {row["session_id"] for row in drawn} == below
    assert len(drawn) >= min(size, math.ceil(0.6 * count))
    assert len(proposal) == min(size, count)
    assert all(row["probability"] == "" for row in proposal if row["why"] != RANDOM)


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows = [make_row(index) for index in range(60)]
    names = [row["session_id"] for row in propose_sessions(rows, 10, POLICY).rows]
    reverse = propose_sessions(rows[::-1], 10, POLICY).rows
    assert [one for one in names if one in list_ids(reverse, RANDOM)] == list_ids(reverse, RANDOM)


def test_the_label_file_keeps_the_probability(tmp_path) -> None:
    """Labels know up to which number sessions were proposed, also from a spreadsheet."""
    proposal = propose_sessions([make_row(index) for index in range(60)], 10, POLICY).rows
    bound = max(float(row["probability"] or 0) for row in proposal)
    filled = [row | {"judgment": "acceptable"} for row in proposal]
    for suffix in (".csv", ".jsonl"):
        path = tmp_path / f"labels{suffix}"
        write_review(path, filled)
        labels = read_labels(path, PartitionKey("shop", "support"))
        assert labels.drawn_below == bound > 0 and not labels.notes
    path = tmp_path / "spreadsheet.csv"
    path.write_text("session_id;judgment;probability\ns-1;acceptable;0,25\ns-2;acceptable;x\n")
    assert read_labels(path, PartitionKey("shop", "support")).drawn_below == 0.25
