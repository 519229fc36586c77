"""Which sessions are kept: every one decided, whatever their order, the better of two equals first."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.traces.curation import BREAKING, Candidate, curate, is_bad_answer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def candidate(session_id: str = "s", **fields: Any) -> Candidate:
    given_fields = {"content_sha256": f"content of {session_id}", "created_at": NOON, "archived": False, "messages": 2, "error": None,
                    "damage": {}, "verdict": "acceptable", "failed_measures": []} | fields  # fmt: skip
    return Candidate(session_id=session_id, **given_fields)


def reasons(candidates: list[Candidate], *arguments: Any) -> dict[str, str | None]:
    return {decision.session_id: decision.reason for decision in curate(candidates, *arguments)}


def test_a_good_session_is_kept():
    assert reasons([candidate()]) == {"s": None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"archived": True, "messages": 0}, "archived"),
        ({"messages": 0, "damage": {"orphan_output": 1}}, "empty"),
        ({"damage": {"orphan_output": 2, "invalid_item": 1}, "error": "x"}, "broken:invalid_item"),
        ({"error": "timeout", "verdict": "unacceptable"}, "infrastructure_error"),
        ({"verdict": None, "failed_measures": ["m"]}, "unjudged"),
        ({"verdict": "unacceptable", "failed_measures": ["m"]}, "unacceptable"),
        ({"failed_measures": ["other", "m"]}, "measure:m"),
    ],
)
def test_the_first_reason_is_the_one_that_is_given(fields, reason):
    assert reasons([candidate(**fields)], ["m"]) == {"s": reason}


@pytest.mark.parametrize("kind", BREAKING)
def test_damage_that_cannot_be_mended_with_certainty_drops_a_session(kind):
    assert reasons([candidate(damage={kind: 1})]) == {"s": f"broken:{kind}"}


def test_damage_that_was_mended_drops_nothing():
    assert reasons([candidate(damage={"reused_call_id": 3, "empty_call_id": 1, "double_encoded_arguments": 1, "invalid_unicode": 1})]) == {
        "s": None
    }


def test_a_result_that_may_be_another_calls_and_a_lost_task_drop_a_session():
    assert {"mismatched_call_id", "invalid_context"} <= set(BREAKING)


def test_a_required_measure_that_was_not_taken_is_not_a_passed_one():
    assert reasons([candidate(passed_measures=["other"])], ["m"]) == {"s": "unmeasured:m"}
    assert reasons([candidate(passed_measures=["m"])], ["m"]) == {"s": None}
    assert not is_bad_answer("unmeasured:m")


def test_only_what_the_agent_did_makes_a_bad_answer():
    assert [
        reason for reason in ("unacceptable", "measure:m", "archived", "broken:invalid_item", "duplicate_of", None) if is_bad_answer(reason)
    ] == [
        "unacceptable",
        "measure:m",
    ]


def test_of_two_equals_the_earlier_is_kept_and_the_other_names_it():
    late, early = candidate("a", content_sha256="x", created_at=NOON + timedelta(hours=1)), candidate("b", content_sha256="x")
    decisions = curate([late, early])
    assert [(each.session_id, each.reason, each.detail) for each in decisions] == [("a", "duplicate_of", "b"), ("b", None, None)]


def test_of_two_equals_the_better_judged_is_kept_even_if_it_is_later():
    bad = candidate("a", content_sha256="x", verdict="unacceptable")
    good = candidate("b", content_sha256="x", created_at=NOON + timedelta(days=1))
    assert reasons([bad, good]) == {"a": "duplicate_of", "b": None}


def test_a_session_that_fails_a_measure_does_not_push_out_its_equal_that_passes():
    failing = candidate("a", content_sha256="x", failed_measures=["cheap"])
    passing = candidate("b", content_sha256="x", created_at=NOON + timedelta(days=1))
    assert reasons([failing, passing], ["cheap"]) == {"a": "duplicate_of", "b": None}


def test_a_session_that_is_archived_or_unjudged_pushes_nobody_out():
    others = [candidate("a", content_sha256="x", archived=True), candidate("b", content_sha256="x", verdict=None)]
    assert reasons([*others, candidate("c", content_sha256="x")]) == {"a": "archived", "b": "unjudged", "c": None}


def test_the_limit_keeps_the_earliest_and_those_without_a_time_come_last():
    everyone = [candidate("timeless", created_at=None), candidate("late", created_at=NOON + timedelta(days=1)), candidate("early")]
    assert reasons(everyone, (), 2) == {"timeless": "max_sessions", "late": None, "early": None}


CANDIDATES = st.lists(
    st.builds(
        candidate,
        session_id=st.text("abcdefgh", min_size=1, max_size=4),
        content_sha256=st.sampled_from("xyz"),
        created_at=st.sampled_from([None, NOON, NOON + timedelta(hours=1)]),
        archived=st.sampled_from([False, False, True]),
        messages=st.sampled_from([0, 2, 2]),
        error=st.sampled_from([None, None, "timeout"]),
        damage=st.sampled_from([{}, {}, {"orphan_output": 1}, {"reused_call_id": 1}]),
        verdict=st.sampled_from(["acceptable", "acceptable", "unacceptable", None]),
        failed_measures=st.sampled_from([[], ["m"]]),
        passed_measures=st.sampled_from([None, [], ["m"]]),
    ),
    unique_by=lambda each: each.session_id,
    max_size=12,
)


@given(CANDIDATES, st.randoms(use_true_random=False), st.integers(0, 4))
@settings(max_examples=300)
def test_every_session_is_decided_the_same_whatever_the_order(candidates, random, limit):
    decisions = curate(candidates, ["m"], limit)
    assert [decision.session_id for decision in decisions] == [each.session_id for each in candidates]
    kept = [decision for decision in decisions if decision.reason is None]
    assert len(decisions) == len(kept) + sum(Counter(decision.reason for decision in decisions if decision.reason).values())
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert set(curate(shuffled, ["m"], limit)) == set(decisions)
    content = {each.session_id: each.content_sha256 for each in candidates}
    assert len({content[decision.session_id] for decision in kept}) == len(kept), "no content is kept twice"
    if not limit:
        fit = {each.content_sha256 for each in candidates if reasons([each], ["m"])[each.session_id] is None}
        assert fit == {content[decision.session_id] for decision in kept}, "a content that one session could bring in is in"
