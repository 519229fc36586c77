"""Which sessions are kept: every one decided, whatever their order, the better of two equals first."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.curation import (
    LEAKS,
    Bounds,
    Candidate,
    Reason,
    curate,
    failed_calling,
    is_bad_answer,
    leak_patterns,
    without_leaks,
)
from agent_pipeline.sessions.repair import KINDS
from agent_pipeline.sessions.text import characters

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def candidate(session_id: str = "s", **fields: Any) -> Candidate:
    given_fields = {"content_sha256": f"content of {session_id}", "created_at": NOON, "archived": False, "messages": 2, "error": None,
                    "verdict": "acceptable", "failed_measures": []} | fields  # fmt: skip
    return Candidate(session_id=session_id, **given_fields)


def reasons(candidates: list[Candidate], *arguments: Any) -> dict[str, str | None]:
    return {decision.session_id: decision.reason for decision in curate(candidates, *arguments)}


def test_a_good_session_is_kept():
    assert reasons([candidate()]) == {"s": None}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"archived": True, "messages": 0}, "archived"),
        ({"messages": 0, "broken": "orphan_output"}, "empty"),
        ({"broken": "invalid_item", "error": "x"}, "broken:invalid_item"),
        ({"error": "timeout", "verdict": "unacceptable", "attack_succeeded": True}, "infrastructure_error"),
        ({"attack_succeeded": True, "leak": "reward = 1"}, "attack_succeeded"),
        ({"attack_succeeded": False}, None),
        ({"leak": "reward = 1", "verdict": None}, "verdict_leak"),
        ({"verdict": None, "failed_measures": ["m"]}, "unjudged"),
        ({"verdict": "unacceptable", "failed_measures": ["m"]}, "unacceptable"),
        ({"failed_measures": ["other", "m"]}, "measure:m"),
    ],
)
def test_the_first_reason_is_the_one_that_is_given(fields, reason):
    assert reasons([candidate(**fields)], ["m"]) == {"s": reason}


def test_a_bad_agent_that_was_stopped_while_it_called_is_a_bad_answer_and_not_a_broken_record():
    called = {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}, {"id": "2"}]}
    chat = [{"role": "user", "content": "x"}, called]
    stopped = {"broken": "unanswered_call", "damage": {"unanswered_call": 2, "empty_call_id": 5}, "verdict_by": "judgment"}
    assert failed_calling(chat, **stopped)
    assert reasons([candidate(broken="unanswered_call", verdict="unacceptable", failed_calling=True)]) == {"s": "unacceptable"}
    assert reasons([candidate(broken="unanswered_call", verdict="unacceptable", failed_calling=True, error="x")]) == {
        "s": "infrastructure_error"
    }
    for fields in (
        {"damage": {"unanswered_call": 3}},  # one before lacks its result: the record may lack more
        {"broken": "mismatched_call_id"},
        {"broken": None},
        {"verdict_by": "measures"},  # they see the missing result and nothing else
        {"verdict_by": "policy"},
        {"verdict_by": None},
    ):
        assert not failed_calling(chat, **(stopped | fields))
    assert failed_calling(chat, **(stopped | {"verdict_by": "measures+llm"}))
    assert not failed_calling([*chat, {"role": "user", "content": "hello?"}], **stopped) and not failed_calling([], **stopped)
    assert list(KINDS)[-1] == "unanswered_call", "so that it is named only where no other kind drops the session"


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
    assert reasons(everyone, (), Bounds(2)) == {"timeless": "max_sessions", "late": None, "early": None}


def test_a_session_that_is_longer_than_the_limit_is_dropped_and_says_how_long_it_is():
    (decision,) = curate([candidate(characters=101)], (), Bounds(max_characters=100))
    assert (decision.reason, decision.detail) == ("too_long", "101 characters, limit 100")
    assert reasons([candidate(characters=100)], (), Bounds(max_characters=100)) == {"s": None}
    assert reasons([candidate(characters=10**9)]) == {"s": None}


def test_the_length_of_a_conversation_is_what_is_said_called_and_answered():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert characters([{"role": "user", "content": "abc"}, {"role": "assistant", "content": "", "tool_calls": [call]}]) == 5


# Verdicts in the text

PATTERNS = leak_patterns(LEAKS)


def told(role: str, text: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "Done."}, {"role": role, "content": text}]


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Bye.\nEpisode finished, reward = True", "Bye."),
        ("Bye.\n\nReward: 1.0\n", "Bye."),
        ("Bye.\nevaluation result: PASSED.\nreward=0", "Bye."),
        ("Task success: false", None),
    ],
)
def test_a_verdict_on_the_last_lines_of_what_the_agent_was_told_is_taken_out(text, left):
    messages, lines, leak = without_leaks(told("user", text), PATTERNS)
    assert [message["content"] for message in messages[2:]] == ([left] if left else [])
    assert lines > 0 and leak is None
    assert messages[:2] == told("user", text)[:2]


def test_a_result_that_is_all_verdict_stays_empty_beside_its_call():
    messages, lines, leak = without_leaks(told("tool", "Episode finished, reward = True"), PATTERNS)
    assert (messages[2], lines, leak) == ({"role": "tool", "content": ""}, 1, None)


@pytest.mark.parametrize(
    ("role", "text"),
    [("user", "You got reward: 1.0\nThanks, anything else?"), ("user", "That makes reward = 1"), ("assistant", "Reward: 1.0")],
)
def test_a_verdict_that_is_part_of_a_message_or_the_agents_own_drops_the_session(role, text):
    given = told(role, text)
    messages, lines, leak = without_leaks(given, PATTERNS)
    assert messages is given and lines == 0
    assert leak is not None and leak.startswith("reward")


@pytest.mark.parametrize(
    "text",
    ["###STOP###", "Reward: 1 free coffee", "rewards: 12", "Your reward is 500 points.", '{"reward": 1}', "episode finished", "passed: 3"],
)
def test_what_is_no_verdict_is_no_leak(text):
    given = told("user", text)
    assert without_leaks(given, PATTERNS) == (given, 0, None)


def test_a_verdict_in_the_arguments_of_a_call_drops_the_session():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "reward=1"}}
    assert without_leaks([{"role": "assistant", "content": "", "tool_calls": [call]}], PATTERNS)[2] == "reward=1"


def test_a_pattern_that_is_no_regular_expression_is_a_sentence():
    with pytest.raises(SettingsError, match="is no regular expression"):
        leak_patterns(["("])


def test_every_reason_is_one_of_the_enumeration():
    assert {reason.value for reason in Reason} == {
        "archived", "empty", "broken:", "infrastructure_error", "attack_succeeded", "verdict_leak", "too_long", "unjudged", "unacceptable",
        "measure:", "unmeasured:", "duplicate_of", "max_sessions",
    }  # fmt: skip


CANDIDATES = st.lists(
    st.builds(
        candidate,
        session_id=st.text("abcdefgh", min_size=1, max_size=4),
        content_sha256=st.sampled_from("xyz"),
        created_at=st.sampled_from([None, NOON, NOON + timedelta(hours=1)]),
        archived=st.sampled_from([False, False, True]),
        messages=st.sampled_from([0, 2, 2]),
        error=st.sampled_from([None, None, "timeout"]),
        broken=st.sampled_from([None, None, "orphan_output"]),
        attack_succeeded=st.sampled_from([None, False, True]),
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
    decisions = curate(candidates, ["m"], Bounds(limit))
    assert [decision.session_id for decision in decisions] == [each.session_id for each in candidates]
    kept = [decision for decision in decisions if decision.reason is None]
    assert len(decisions) == len(kept) + sum(Counter(decision.reason for decision in decisions if decision.reason).values())
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert {decision.reason.partition(":")[0] for decision in decisions if decision.reason} <= {each.value.rstrip(":") for each in Reason}
    assert set(curate(shuffled, ["m"], Bounds(limit))) == set(decisions)
    content = {each.session_id: each.content_sha256 for each in candidates}
    assert len({content[decision.session_id] for decision in kept}) == len(kept), "no content is kept twice"
    if not limit:
        fit = {each.content_sha256 for each in candidates if reasons([each], ["m"])[each.session_id] is None}
        assert fit == {content[decision.session_id] for decision in kept}, "a content that one session could bring in is in"
