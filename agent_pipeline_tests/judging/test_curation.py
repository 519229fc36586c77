"""What each session may be used for: every one decided, whatever their order, the better of two equals first."""

import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.errors import DataError
from agent_pipeline.judging.curation import (
    CurationBounds,
    curate,
    curate_rows,
    make_candidate,
    was_stopped_while_calling,
)
from agent_pipeline.judging.decisions import CurationCandidate, DropReason, SessionUse
from agent_pipeline.judging.labels import Label
from agent_pipeline.judging.tables import make_verdict_columns
from agent_pipeline.judging.verdict_leaks import LEAK_PATTERNS
from agent_pipeline.sessions.damage import DAMAGE_KINDS
from agent_pipeline.sessions.session import THOUGHT, Message, Session, add_thoughts
from agent_pipeline.sessions.tables import make_session_row
from agent_pipeline.sessions.transcript import count_characters
from agent_pipeline_tests.conftest import REPOSITORY
from agent_pipeline_tests.judging.sessions import judge

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def chat(*turns: str) -> list[Message]:
    return [
        {"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(turns)
    ]


def candidate(session_id: str = "s", **fields: Any) -> CurationCandidate:
    """The candidate of a row with these fields, and `passed`, `failed`, `by_person`, `required_measures`, `leak`, `max_characters`, `beginnings`."""
    measures = {
        name: {"passed": passed}
        for passed in (True, False)
        for name in fields.pop("passed" if passed else "failed", "m" * passed)
    }
    given_fields = {
        name: fields.pop(name)
        for name in ("leak", "required_measures", "max_characters")
        if name in fields
    }
    beginnings = fields.pop("beginnings", ())
    content = fields.pop("content_sha256", f"content of {session_id}")
    row = {
        "tools": [], "created_at": NOON, "verdict": "acceptable", "messages": chat("Hi"),
        "archived": False, "error": None, "broken": None, "attack_succeeded": None, "measures": measures, "damage": {}, "opinions": {},
        "verdict_by": "label" if fields.pop("by_person", False) else "score",
    }  # fmt: skip
    made = make_candidate(row | fields | {"session_id": session_id}, **given_fields)
    return replace(made, beginnings=beginnings, content_sha256=content)


def reasons(candidates: list[CurationCandidate], max_sessions: int = 0) -> dict[str, str | None]:
    return {decision.session_id: decision.reason for decision in curate(candidates, max_sessions)}


def judged_row(
    session_id: str,
    messages: list[Message],
    measures: tuple[str, ...] = ("ended_with_answer",),
    **fields: Any,
) -> dict[str, Any]:
    """A row of `judged_sessions`; `label` is a person's."""
    label = fields.pop("label", None)
    session = Session(
        session_id=session_id, project="p", agent="a", source="t", messages=messages, **fields
    )
    return make_session_row(session) | make_verdict_columns(judge(session, measures, label=label))


CALL = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
CALLED = {
    "role": "assistant",
    "content": "",
    "tool_calls": [CALL | {"id": "1"}, CALL | {"id": "2"}],
}
BAD = {"verdict": "unacceptable"}
STOPPED = BAD | {
    "messages": [*chat("x"), CALLED],
    "broken": "unanswered_call",
    "damage": {"unanswered_call": 2, "empty_call_id": 5},
    "opinions": {"judgment": BAD},
}


@pytest.mark.parametrize(
    ("fields", "reason", "detail", "use"),
    [
        ({}, None, None, SessionUse.POSITIVE),
        ({"archived": True, "messages": []}, "archived", None, SessionUse.NEITHER),
        ({"messages": [], "broken": "orphan_output"}, "empty", None, SessionUse.NEITHER),
        ({"broken": "invalid_item", "error": "x"}, "broken", "invalid_item", SessionUse.NEITHER),
        (
            {"error": "timeout", "verdict": "unacceptable", "attack_succeeded": True},
            "infrastructure_error",
            "timeout",
            SessionUse.NEITHER,
        ),
        (
            {"attack_succeeded": True, "leak": "reward = 1"},
            "attack_succeeded",
            None,
            SessionUse.NEITHER,
        ),
        ({"attack_succeeded": False}, None, None, SessionUse.POSITIVE),
        ({"leak": "reward = 1", "verdict": None}, "verdict_leak", "reward = 1", SessionUse.NEITHER),
        ({"messages": chat("x" * 101)}, "too_long", "101", SessionUse.NEITHER),
        ({"messages": chat("x" * 100)}, None, None, SessionUse.POSITIVE),
        ({"verdict": None, "passed": [], "failed": ["m"]}, "unjudged", None, SessionUse.NEITHER),
        (
            {"verdict": "unacceptable", "passed": [], "failed": ["m"]},
            "unacceptable",
            None,
            SessionUse.NEGATIVE,
        ),
        (
            {"passed": [], "failed": ["other", "m"]},
            "measure",
            "m",
            SessionUse.NEITHER,
        ),  # judged good: never a bad answer
        ({"passed": ["other"]}, "unmeasured", "m", SessionUse.NEITHER),
        (STOPPED, "unacceptable", None, SessionUse.NEGATIVE),
        (STOPPED | {"error": "x"}, "infrastructure_error", "x", SessionUse.NEITHER),
    ],
)
def test_the_first_reason_decides_what_a_session_may_be_used_for(fields, reason, detail, use):
    (decision,) = curate([candidate(required_measures=["m"], max_characters=100, **fields)])
    assert (decision.reason, decision.detail, decision.use) == (reason, detail, use)
    assert list(decision.missed_measures) == ([] if "m" in fields.get("passed", ["m"]) else ["m"])
    assert decision.make_columns()["kept"] == (use == "positive")


@pytest.mark.parametrize(
    ("measure", "messages"),
    [
        ("tool_success_rate >= 0.9", chat("Hi")),
        ("arguments_match_schema", [*chat("x"), CALLED]),
        ("no_refusal", chat("Hi")[:1]),
    ],
)
def test_required_measure_without_result(measure: str, messages: list[Message]) -> None:
    """A good session in which a required measure has no result is unmeasured, as the page says."""
    row: Any = judged_row("s", messages, (measure,), judgment="acceptable")
    decision = make_candidate(row, required_measures=[measure]).decision
    assert (decision.reason, decision.detail) == ("unmeasured", measure)
    page = (REPOSITORY / "docs" / "explanation" / "judging.md").read_text("utf-8")
    assert f"- `{measure.split()[0]}`, if the session" in page


def test_a_bad_agent_that_was_stopped_while_it_called_is_a_bad_answer_and_not_a_broken_record():
    assert was_stopped_while_calling(STOPPED) and was_stopped_while_calling(
        STOPPED | {"opinions": {"measures": BAD, "llm": BAD}}
    )
    for fields in (
        {"damage": {"unanswered_call": 3}},  # one before lacks its result: the record may lack more
        {"broken": "mismatched_call_id"},
        {"broken": None},
        {"opinions": {"measures": BAD}},  # measures see the missing result and nothing else
        {"opinions": {}},
        {"verdict": "acceptable"},
        {"messages": [*STOPPED["messages"], *chat("x")]},
        {"messages": []},
    ):
        assert not was_stopped_while_calling(STOPPED | fields)
    assert list(DAMAGE_KINDS)[-1] == "unanswered_call", (
        "so that it is named only where no other kind drops the session"
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"created_at": NOON + timedelta(hours=1)}, {}),
        ({"verdict": "unacceptable"}, {"created_at": NOON + timedelta(days=1)}),
    ],
)
def test_of_two_equals_the_better_judged_then_the_earlier_is_kept_and_the_other_names_it(
    first, second
):
    decisions = curate(
        [candidate("a", content_sha256="x", **first), candidate("b", content_sha256="x", **second)]
    )
    assert [(each.reason, each.duplicate_of, each.use) for each in decisions] == [
        ("duplicate", "b", "neither"),
        (None, None, "positive"),
    ]


def run_of(*ids: str, verdict: str) -> dict[str, Any]:
    """A row of `judged_sessions` with two parallel calls, whose ids are those of a run."""
    first, second, *order = ids
    calls = [
        {"id": id_, "type": "function", "function": {"name": name, "arguments": "{}"}}
        for id_, name in ((first, "get"), (second, "count"))
    ]
    messages: list[Message] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": calls},
        *(
            {"role": "tool", "tool_call_id": id_, "content": text}
            for id_, text in zip(order, ("an order", "two orders"), strict=True)
        ),
        {"role": "assistant", "content": "Done."},
    ]
    run = Session(
        session_id="-".join(ids), project="p", agent="a", source="test", messages=messages
    )
    judged = judge(run, [])._replace(verdict=verdict, verdict_by="score")
    return make_session_row(run) | make_verdict_columns(judged)


def test_copies_with_other_call_ids():
    """Two runs that differ only in ids were a good row and a bad row with the same texts."""
    good = run_of("call_1", "call_2", "call_1", "call_2", verdict="acceptable")
    bad = run_of("x7", "x8", "x7", "x8", verdict="unacceptable")
    decisions = curate(map(make_candidate, (good, bad)))
    assert [each.reason for each in decisions] == [None, DropReason.DUPLICATE]
    assert decisions[1].duplicate_of == good["session_id"]
    swapped = run_of("x7", "x8", "x8", "x7", verdict="unacceptable")
    decisions = curate(map(make_candidate, (good, swapped)))
    assert [each.reason for each in decisions] == [None, DropReason.UNACCEPTABLE]


def test_the_limit_keeps_the_latest_and_drops_those_without_a_time_first():
    everyone = [
        candidate("timeless", created_at=None),
        candidate("late", created_at=NOON + timedelta(days=1)),
        candidate("early"),
    ]
    assert reasons(everyone, 2) == {"timeless": "max_sessions", "late": None, "early": None}
    assert reasons(everyone, 1) == {
        "timeless": "max_sessions",
        "late": None,
        "early": "max_sessions",
    }


@pytest.mark.parametrize(
    ("short", "long", "dropped"),
    [
        ("acceptable", "acceptable", True),
        ("unacceptable", "acceptable", True),
        ("unacceptable", "unacceptable", True),
        ("acceptable", "unacceptable", False),  # it was good up to there
        ("acceptable", None, False),
    ],
)
def test_a_session_that_another_one_goes_on_from_is_trained_on_once(short, long, dropped):
    rows = [
        judged_row("short", chat("Hi", "Hello"), judgment=short),
        judged_row("long", chat("Hi", "Hello", "A bike?", "Here."), judgment=long),
        judged_row("other", chat("Hi", "Hello!"), judgment="acceptable"),
    ]
    decision, _, other = curate(map(make_candidate, rows))
    assert (decision.reason == DropReason.CONTINUED, decision.continued_by) == (
        (True, "long") if dropped else (False, None)
    )
    assert other.use == "positive"


def test_of_equal_sessions_the_one_that_a_person_judged_stands_even_against_a_better_verdict():
    good = candidate("good", content_sha256="same")
    bad = candidate("bad", content_sha256="same", verdict="unacceptable", by_person=True)
    assert reasons([good, bad]) == {"good": "duplicate", "bad": "unacceptable"}
    assert reasons([good, replace(bad, authority=1)]) == {"good": None, "bad": "duplicate"}


@pytest.mark.parametrize("label", ["acceptable", None])
def test_what_a_person_called_bad_is_not_trained_as_the_beginning_of_what_another_judge_calls_good(
    label,
):
    rows = [
        judged_row("short", chat("Hi", "Go away!"), label=Label("unacceptable")),
        judged_row(
            "long",
            chat("Hi", "Go away!", "A bike?", "Here."),
            score=1.0,
            label=Label(label) if label else None,
        ),
        judged_row(
            "longer", chat("Hi", "Go away!", "A bike?", "Here.", "Thanks", "Bye"), score=1.0
        ),
    ]
    short, long, longer = curate(map(make_candidate, rows))
    if label:  # the person saw what it came to
        assert [short.reason, long.reason, longer.use] == ["continued", "continued", "positive"]
    else:
        assert short.use == "negative"
        for decision in (long, longer):
            assert (decision.reason, decision.detail) == ("begins_badly", "short")
            assert decision.use == "neither"


def test_a_session_that_goes_on_without_training_what_came_before_leaves_that_to_the_shorter_one():
    answered: list[Message] = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "weight": 0},
    ]
    rows = [
        judged_row("short", chat("Hi", "Hello"), judgment="acceptable"),
        judged_row("long", [*answered, *chat("A bike?", "Here.")], judgment="acceptable"),
    ]
    assert [decision.use for decision in curate(map(make_candidate, rows))] == [
        "positive",
        "positive",
    ]


def test_a_run_that_its_source_lets_end_on_a_tool_misses_no_answer():
    call = {"id": "1", "type": "function", "function": {"name": "Finish", "arguments": "{}"}}
    messages = [*chat("Do it"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    measures = ("ended_with_answer", "all_calls_answered")
    ends = judged_row("a", messages, measures, judgment="acceptable", ends_on_tool=True)
    other = judged_row("b", messages, measures, judgment="acceptable")
    uses = [
        each.use for each in curate(make_candidate(row, None, measures) for row in (ends, other))
    ]
    assert uses == ["positive", "neither"]


def test_rows_are_curated_in_two_readings_that_must_agree():
    rows = [
        judged_row("a", chat("Hi", "Yes.", "Bye.\nReward: 1.0"), judgment="acceptable"),
        judged_row("b", chat("Hi", "No.")),
    ]
    curation, curated = curate_rows(
        lambda: rows, ["ended_with_answer"], CurationBounds(), LEAK_PATTERNS
    )
    found = list(curated)
    assert [row["use"] for row in found] == ["positive", "neither"] and curation.reasons == [
        "kept",
        "unjudged",
    ]
    assert (
        found[0]["messages"][-1]["content"] == "Bye."
        and found[0]["content_sha256"] != rows[0]["content_sha256"]
    )
    assert curation.stripped == {"a"}
    readings = iter([rows, [rows[1], rows[0]]])
    with pytest.raises(DataError):
        list(curate_rows(lambda: next(readings), [], CurationBounds(), LEAK_PATTERNS)[1])


def test_memory_holds_columns_and_no_object_of_a_session():
    begun = candidate()
    many = 4000
    tracemalloc.start()
    own = (replace(begun.decision, session_id=f"{at:032x}") for at in range(many))
    decisions = curate(
        replace(begun, decision=each, content_sha256=f"{at:064x}", beginnings=range(5))
        for at, each in enumerate(own)
    )
    held = tracemalloc.get_traced_memory()[0] / many
    tracemalloc.stop()
    assert len(decisions) == many and held < 300, f"{held:.0f} bytes a session"


def test_a_verdict_that_is_taken_out_moves_no_thought_to_another_message():
    messages = [
        {"role": "system", "content": "reward = 1"},
        *chat("Hi", "Yes."),
        {"role": "assistant", "content": "Or no."},
    ]
    row = judged_row(
        "a", messages, judgment="acceptable", reasoning=[{"message": 2, "text": "about the yes"}]
    )
    [curated] = curate_rows(lambda: [row], [], CurationBounds(), LEAK_PATTERNS)[1]
    thought = add_thoughts(curated["messages"], curated["reasoning"])
    assert {each["content"]: each[THOUGHT] for each in thought if THOUGHT in each} == {
        "Yes.": "about the yes"
    }


def test_the_length_of_a_conversation_is_what_is_said_called_and_answered():
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert (
        count_characters(
            [
                {"role": "user", "content": "abc"},
                {"role": "assistant", "content": "", "tool_calls": [call]},
            ]
        )
        == 5
    )


CANDIDATES = st.lists(
    st.builds(
        candidate,
        session_id=st.text("abcdefgh", min_size=1, max_size=4),
        content_sha256=st.sampled_from("xyz"),
        created_at=st.sampled_from([None, NOON, NOON + timedelta(hours=1)]),
        archived=st.sampled_from([False, False, True]),
        messages=st.sampled_from([[], chat("Hi"), chat("Hi")]),
        error=st.sampled_from([None, None, "timeout"]),
        broken=st.sampled_from([None, None, "orphan_output"]),
        attack_succeeded=st.sampled_from([None, False, True]),
        verdict=st.sampled_from(["acceptable", "acceptable", "unacceptable", None]),
        failed=st.sampled_from([[], ["m"]]),
        passed=st.sampled_from([[], ["m"]]),
        beginnings=st.sampled_from([[], [1], [1, 2], [1, 2, 3], [4]]),
        by_person=st.booleans(),
        required_measures=st.just(["m"]),
    ),
    unique_by=lambda each: each.session_id,
    max_size=12,
)


@given(CANDIDATES, st.randoms(use_true_random=False), st.integers(0, 4))
@settings(max_examples=100)
def test_every_session_is_decided_the_same_whatever_the_order(candidates, random, limit):
    decisions = curate(candidates, limit)
    assert [decision.session_id for decision in decisions] == [
        each.session_id for each in candidates
    ]
    shuffled = list(candidates)
    random.shuffle(shuffled)
    assert sorted(curate(shuffled, limit), key=str) == sorted(decisions, key=str)
    by_id = {each.session_id: each for each in candidates}
    kept = [
        by_id[decision.session_id].content_sha256
        for decision in decisions
        if decision.use == "positive"
    ]
    assert len(set(kept)) == len(kept), "no content is kept twice"
    for decision in decisions:
        alone = by_id[decision.session_id].decision.use
        assert decision.use in (alone, "neither"), (
            "what others are takes a session out, and never turns it round"
        )
