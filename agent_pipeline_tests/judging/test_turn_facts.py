"""Facts about turns: what each call came to, never a verdict."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.judging import EvaluationContext, Label, parse_measures
from agent_pipeline.judging.tables import make_verdict_columns
from agent_pipeline.judging.turn_facts import find_turn_facts, list_true_facts
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import JUDGED, make_session_row, to_batches, to_rows
from agent_pipeline.sessions.tool_schemas import find_call_shapes
from agent_pipeline_tests.datasets.chats import chats
from agent_pipeline_tests.judging.sessions import ANSWERED, calls, judge, result, session, tool

USER, ANSWER = ANSWERED
INTEGER = tool("f", type="object", properties={"id": {"type": "integer"}}, required=["id"])


def facts(messages: list[Message], **fields: Any) -> list[list[str]]:
    """The names of each turn's facts."""
    context = EvaluationContext.from_session(
        session(messages, **({"tools_origin": "source"} | fields))
    )
    return [list_true_facts(turn._asdict()) for turn in find_turn_facts(context)]


def test_a_turn_that_went_wrong_and_is_corrected_later_says_both_and_its_correction_says_nothing():
    messages = [
        USER,
        calls(("f", {"id": "1"})),
        result("ValueError: no integer"),
        calls(("f", {"id": 1})),
        result("fine"),
        ANSWER,
    ]
    assert facts(messages, tools=[INTEGER]) == [
        ["tool_error", "breaks_schema", "corrected_later"],
        [],
        [],
    ]
    assert facts(messages[:3], tools=[INTEGER]) == [["tool_error", "breaks_schema"]]
    other = calls(("g", {}))
    assert facts([*messages[:3], other, result("fine")])[0] == ["tool_error"], (
        "another tool corrects nothing"
    )


def test_a_result_that_its_record_calls_an_error_is_one_in_facts_measures_and_inferred_schemas():
    failed = [USER, calls(("f", {"id": 1})), result("no such order") | {"is_error": True}]
    assert facts([*failed, ANSWER]) == [["tool_error"], []]
    context = EvaluationContext.from_session(session(failed))
    measures = ("no_tool_errors", "no_tool_error_at_end", "tool_success_rate >= 0.5")
    assert [each.take(context).passed for each in parse_measures(measures)] == [False, False, False]
    assert not find_call_shapes(failed) and find_call_shapes([*failed[:2], result("fine")])


def test_of_parallel_calls_each_is_corrected_by_its_own_tool():
    both, f, g = calls(("f", {}), ("g", {})), calls(("f", {"a": 1})), calls(("g", {"a": 1}))
    one_failed = [USER, both, result("Error: x", "1"), result("fine", "2")]
    assert facts([*one_failed, g, result("fine too")]) == [["tool_error"], []], (
        "what went well needs no correction, and is none"
    )
    assert facts([*one_failed, f, result("fine too")]) == [["tool_error", "corrected_later"], []]
    assert facts([USER, g, result("Error: x"), *one_failed[1:]]) == [
        ["tool_error", "corrected_later"],
        ["tool_error"],
    ]


def test_a_call_repeats_only_where_its_result_is_the_same_too():
    poll, same = (
        [calls(("f", {"a": 1, "b": 2})), result("wait")],
        [calls(("f", {"b": 2, "a": 1})), result("wait")],
    )
    assert facts([*poll, ANSWER, *same]) == [[], [], ["repeated_call"]]
    assert facts([*poll, same[0], result("done")]) == [[], []]
    assert facts([calls(("f", {}), ("f", {})), result("x"), result("x", "2")]) == [
        ["repeated_call"]
    ]


@pytest.mark.parametrize("origin", ["inferred", "none"])
def test_a_schema_that_was_inferred_from_the_calls_or_is_none_says_nothing_of_them(origin):
    context = EvaluationContext.from_session(
        session([calls(("g", {})), result("x"), ANSWER], tools=[INTEGER], tools_origin=origin)
    )
    assert [turn.breaks_schema for turn in find_turn_facts(context)] == [None, False]
    assert facts([calls(("g", {})), result("x")], tools=[INTEGER]) == [["breaks_schema"]], (
        "there is no such tool"
    )
    assert facts([calls(("f", {})), result("x")], tools=[tool("f", type="objekt")]) == [[]]


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("Error: unknown tool find", True),
        ("ToolNotFoundException: The requested function `send_email` is not available.", True),
        ("Unknown action: jump", True),
        ("Permission denied: /etc/shadow", True),
        ("Error: permission to use Bash has been denied", True),
        ("The tool use was rejected", True),
        ("The user doesn't want to proceed with this tool use.", True),
        ("<tool_use_error>Error: No such tool available: Raed</tool_use_error>", True),
        ("Error: flight HAT120 not available on date 2024-05-01", False),
        ("Error: payment method not found", False),
        ("ValueError: File with ID '26' not found.", False),
        ("The function of the liver is not available to beginners.", False),
        ("3 results: 'Unknown tool' (song), 'Access denied' (film)", False),
    ],
)
def test_the_environment_refuses_a_call_by_what_its_result_begins_with(text, refused):
    assert ("refused" in facts([calls(("f", {})), result(text)])[0]) is refused


def test_a_verdict_says_nothing_about_a_turn():
    messages = [USER, calls(("f", {})), result("Error: x"), ANSWER]
    turns = [
        judge(session(messages, judgment=judgment, score=score), [], label=label).turns
        for judgment, score, label in (
            ("acceptable", 1.0, None),
            ("unacceptable", 0.0, None),
            (None, None, Label("unacceptable")),
        )
    ]
    assert all(each == turns[0] for each in turns)


def test_measures_of_turns_are_taken_of_the_turn_on_its_own():
    def failed(*names: str) -> list[list[str]]:
        context = EvaluationContext.from_session(
            session([USER, calls(("f", {})), result("Error: x"), ANSWER])
        )
        return [turn.failed_measures for turn in find_turn_facts(context, parse_measures(names))]

    assert failed("no_tool_errors", "ended_with_answer") == [
        ["no_tool_errors", "ended_with_answer"],
        [],
    ]
    assert (
        failed(f"{__name__}.raises", f"{__name__}.has_nothing_to_say")
        == [[f"{__name__}.raises"]] * 2
    )


def raises(context):
    raise ZeroDivisionError


def has_nothing_to_say(context):
    return None, "raised its voice, which is neither good nor bad"


@given(st.lists(chats(), min_size=1, max_size=4))
def test_there_is_one_entry_for_each_message_of_the_agent_and_it_survives_the_lake(everyone):
    sessions = [
        session(messages, str(number), tools=[INTEGER]) for number, messages in enumerate(everyone)
    ]
    rows = [
        make_session_row(each) | make_verdict_columns(judge(each, ["ended_with_answer"]))
        for each in sessions
    ]
    read = list(to_rows(to_batches(rows, JUDGED)))
    for row, messages in zip(read, everyone, strict=True):
        assert len(row["turns"]) == sum(message["role"] == "assistant" for message in messages)
    assert [row["turns"] for row in read] == [row["turns"] for row in rows]
