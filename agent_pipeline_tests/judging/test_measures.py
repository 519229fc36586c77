"""Measures: how they are said, taken and registered, and what the built-in ones see."""

import sys
from contextlib import suppress
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline import plugins
from agent_pipeline.errors import SettingsError
from agent_pipeline.ingestion.reading import ReadingOptions, read_sessions
from agent_pipeline.judging import (
    MEASURES,
    EvaluationContext,
    JudgingRun,
    Labels,
    MeasureResult,
    VerdictPolicy,
    measure,
    parse_measure,
    parse_measures,
)
from agent_pipeline.judging.measures import ConfiguredMeasure
from agent_pipeline.keys import PartitionKey
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.sessions.transcript import is_tool_error
from agent_pipeline.sources import open_source
from agent_pipeline_tests.judging.sessions import ANSWERED, calls, result, session, tool

CALLED = calls(("f", {}))


def taken(text: str, messages: Any = ANSWERED, **fields: Any) -> MeasureResult:
    return parse_measure(text).take(EvaluationContext.from_session(session(messages, **fields)))


def passed(text: str, messages: Any = ANSWERED, **fields: Any) -> bool | None:
    return taken(text, messages, **fields).passed


def test_reasons_are_redacted():
    """A measure of the user's may quote another system, and its reason reaches every table and the metadata."""

    def quoting(context: EvaluationContext) -> tuple[bool, str]:
        return False, "the record of ann.lee@shop.io differs"

    told = [ConfiguredMeasure("m", quoting)]
    panel = JudgingRun(
        told, VerdictPolicy(), Labels(), redact=Redactor(RedactionOptions()).redact_text
    )
    ((_, judged),) = panel.judge([(None, session(ANSWERED))])
    assert [result.reason for result in judged.measures.values()] == [
        "the record of <EMAIL_1> differs"
    ]


# What a measure is given


def test_calls_are_given_decoded_with_their_results():
    messages = [
        ANSWERED[0],
        calls(("f", {"a": 1}), ("g", "[]")),
        result("two", "2"),
        result("one", "1"),
        calls(("h", {})),
    ]
    context = EvaluationContext.from_session(session(messages, task_id="t"))
    assert [(call.name, call.arguments, call.raw, call.result) for call in context.calls] == [
        ("f", {"a": 1}, '{"a": 1}', "one"),
        ("g", None, "[]", "two"),
        ("h", {}, "{}", None),
    ]
    assert (context.results, context.final_answer, context.metadata["task_id"]) == (
        ["two", "one"],
        "",
        "t",
    )
    assert "messages" not in context.metadata and "tools" not in context.metadata


def test_a_result_without_a_known_id_answers_the_oldest_open_call_of_its_message():
    messages = [
        calls(("f", {}), ("g", {})),
        result("two", "2"),
        result("?", "other"),
        calls(("h", {})),
        {"role": "tool", "content": "three"},
    ]
    assert [call.result for call in EvaluationContext.from_session(session(messages)).calls] == [
        "?",
        "two",
        "three",
    ]


@given(st.lists(st.tuples(st.integers(0, 3), st.randoms(use_true_random=False)), max_size=5))
def test_every_result_answers_its_own_call_in_whatever_order_they_came(turns):
    messages, expected = [], []
    for turn, (count, random) in enumerate(turns):
        results = [result(f"{turn}.{number}", str(number + 1)) for number in range(count)]
        expected += [each["content"] for each in results]
        random.shuffle(results)
        messages += [{"role": "user", "content": "?"}, calls(*[("f", {})] * count), *results]
    assert [
        call.result for call in EvaluationContext.from_session(session(messages)).calls
    ] == expected


# How a measure is said


@pytest.mark.parametrize(
    ("text", "name", "arguments", "keywords", "threshold"),
    [
        ("ended_with_answer", "ended_with_answer", (), {}, None),
        ("at_most_steps( 12 )", "at_most_steps(12)", (12,), {}, None),
        (
            'called_tool(name="refund", times=1)',
            "called_tool(name='refund', times=1)",
            (),
            {"name": "refund", "times": 1},
            None,
        ),
        (
            "answer_mentions('a, (b) >= c')",
            "answer_mentions('a, (b) >= c')",
            ("a, (b) >= c",),
            {},
            None,
        ),
        ("tool_success_rate >= .5", "tool_success_rate >= 0.5", (), {}, 0.5),
    ],
)
def test_a_measure_is_said_as_it_would_be_called(text, name, arguments, keywords, threshold):
    parsed = parse_measure(text)
    assert (parsed.name, parsed.arguments, parsed.keywords, parsed.threshold) == (
        name,
        arguments,
        keywords,
        threshold,
    )
    assert parse_measure(parsed.name).name == name


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("polite", "no measure .polite."),
        ("ended_with_anser", "did you mean ended_with_answer"),
        ("at_most_steps", "missing a required argument: 'steps'"),
        ("at_most_steps('12')", "steps .*valid integer.*got '12'"),
        ("at_most_steps(stepps=3)", "no parameter 'stepps': did you mean steps"),
        ("ended_with_answer(3)", "too many positional arguments"),
        ("ended_with_answer(context=3)", "no parameter 'context'"),
        ("called_tool(__import__('os').getcwd())", "measure: write name"),
        ("called_tool(*['a'])", "measure: write name"),
        ("lambda: 1", "measure: write name"),
        ("(called_tool)('a')('b')", "measure: write name"),
        ("at_most_steps(", "measure: write name"),
        ("", "measure: write name"),
        ("a\0b", "measure: write name"),
        ("(" * 5000, "measure: write name"),
        ("tool_success_rate > 0.5", "measure: write name"),
        ("tool_success_rate >= 7", "measure: write name"),
        ("tool_success_rate >= True", "measure: write name"),
        ("os.path.nowhere", "cannot be loaded"),
        ("no_such_package.polite", "cannot be loaded .ModuleNotFoundError"),
        ("os.sep", "type str"),
    ],
)
def test_what_is_no_measure_is_refused_in_one_sentence(text, says):
    with pytest.raises(SettingsError, match=says) as error:
        parse_measure(text)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_a_measure_or_one_sentence(text):
    with suppress(SettingsError):
        assert parse_measure(text).name


literals = st.one_of(
    st.integers(),
    st.text(),
    st.booleans(),
    st.none(),
    st.floats(allow_nan=False, allow_infinity=False),
)


@given(literals, st.lists(literals, max_size=3))
def test_a_parameter_arrives_as_it_was_written_and_the_name_reads_back(first, more):
    def given_back(context, *values):
        return True

    MEASURES["given_back"] = given_back
    try:
        parsed = parse_measure(f"given_back({', '.join(map(repr, [first, *more]))})")
        assert parsed.arguments == (first, *more) == parse_measure(parsed.name).arguments
    finally:
        del MEASURES["given_back"]


def test_a_users_measure_is_found_by_its_dotted_path_and_by_its_entry_point(monkeypatch):
    mine = ModuleType("mine_of_a_test")
    mine.short = lambda context, limit: len(context.final_answer) <= limit
    monkeypatch.setitem(sys.modules, "mine_of_a_test", mine)
    assert passed("mine_of_a_test.short(1)") is True and passed("mine_of_a_test.short(0)") is False

    points = [
        SimpleNamespace(name="terse", value="mine_of_a_test:short"),
        SimpleNamespace(name="broken", value="mine_of_a_test:gone"),
    ]
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: points if group == "agent_pipeline.measures" else []
    )
    assert passed("terse(1)") is True
    with pytest.raises(SettingsError, match=r"'broken' cannot be loaded .AttributeError"):
        parse_measure("broken")
    with pytest.raises(SettingsError, match="did you mean terse"):
        parse_measure("ters")


def test_two_measures_of_one_name_are_refused(monkeypatch):
    def ended_with_answer(context):
        return True

    with pytest.raises(SettingsError, match="ended_with_answer"):
        measure(ended_with_answer)
    assert measure(MEASURES["ended_with_answer"]) is MEASURES["ended_with_answer"]


# What a measure may return


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (True, MeasureResult(True)),
        ((False, "too rude"), MeasureResult(False, "too rude")),
        (MeasureResult(True, "fine"), MeasureResult(True, "fine")),
        (MeasureResult(True, "fine", 0.9), MeasureResult(True, "fine", 0.9)),
        (None, MeasureResult(None, "has no result for the session")),
        (0.7, MeasureResult(None, "has scores, so it needs a threshold", 0.7)),
        (1, MeasureResult(None, "has scores, so it needs a threshold", 1.0)),
        (
            float("nan"),
            MeasureResult(None, "returned the score nan, but scores must be from 0 to 1"),
        ),
        (7, MeasureResult(None, "returned the score 7, but scores must be from 0 to 1")),
        ("yes", MeasureResult(None, "returned 'yes', which is not a result")),
        ((1, "yes"), MeasureResult(None, "returned (1, 'yes'), which is not a result")),
        ((True, None), MeasureResult(None, "returned (True, None), which is not a result")),
    ],
)
def test_a_pass_a_failure_a_score_or_nothing_may_come_back(returned, expected, monkeypatch):
    monkeypatch.setitem(MEASURES, "made", lambda context: returned)
    assert taken("made") == expected


def test_a_score_passes_from_its_threshold_up(monkeypatch):
    monkeypatch.setitem(MEASURES, "made", lambda context: 0.7)
    assert taken("made >= 0.7") == MeasureResult(True, "scores 0.7", 0.7)
    assert taken("made >= 0.71") == MeasureResult(False, "scores 0.7", 0.7)
    monkeypatch.setitem(MEASURES, "made", lambda context: True)
    assert taken("made >= 0.7") == MeasureResult(None, "has no score that can be compared with 0.7")


def test_a_measure_that_raises_has_no_value_and_says_why(monkeypatch):
    monkeypatch.setitem(MEASURES, "broken", lambda context: 1 / 0)
    assert taken("broken") == MeasureResult(
        None, "raised ZeroDivisionError: division by zero", raised=True
    )


# The built-in ones

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "maximum": 9}},
    "required": ["id"],
    "additionalProperties": False,
}
FINE, ERROR = result("fine"), result("Error: x")
ANSWER = ANSWERED[1]
SHIPPED = [ANSWERED[0], {"role": "assistant", "content": "Your order\nW-7 is  SHIPPED."}]
TWO_CALLS = calls(("f", {}), ("f", {}))
POLL = [
    calls(("f", {"a": 1, "b": 2})),
    result("wait"),
    calls(("f", {"b": 2, "a": 1})),
    result("done"),
]
LOOP = [
    calls(("f", {"a": 1})),
    result("x"),
    calls(("g", {})),
    result("y"),
    calls(("f", {"a": 1})),
    result("x"),
]


@pytest.mark.parametrize(
    ("text", "messages", "expected"),
    [
        ("ended_with_answer", ANSWERED, True),
        ("ended_with_answer", [*ANSWERED, {"role": "user", "content": "###STOP###"}], True),
        ("ended_with_answer", [{"role": "system", "content": "x"}], False),
        ("ended_with_answer", [], False),
        ("ended_with_answer", [ANSWERED[0], CALLED], False),
        ("ended_with_answer", [ANSWERED[0], CALLED, result("x")], False),
        ("ended_with_answer", [ANSWERED[0], CALLED | {"content": "Let me see."}], False),
        ("no_tool_error_at_end", [CALLED, ERROR, CALLED, FINE, ANSWER], True),
        ("no_tool_error_at_end", [CALLED, FINE, CALLED, ERROR, ANSWER], False),
        ("no_tool_errors", [CALLED, ERROR, CALLED, FINE, ANSWER], False),
        ("no_tool_errors", [CALLED, FINE], True),
        ("tool_success_rate >= 0.5", [CALLED, ERROR, CALLED, FINE, ANSWER], True),
        ("tool_success_rate >= 0.5", ANSWERED, None),
        ("all_calls_answered", [calls(("f", {}), ("g", {})), result("x"), ANSWER], False),
        (
            "all_calls_answered",
            [calls(("f", {}), ("g", {})), result("x"), result("", "2"), ANSWER],
            True,
        ),
        ("called_tool('f')", [TWO_CALLS], True),
        ("called_tool('f', 2)", [TWO_CALLS], True),
        ("called_tool('f', times=1)", [TWO_CALLS], False),
        ("called_tool('g')", [TWO_CALLS], False),
        ("called_tool('g', 0)", [TWO_CALLS], True),
        ("no_repeated_call", POLL, True),
        ("no_repeated_call", LOOP, False),
        ("no_repeated_call(allowed=1)", LOOP, True),
        ("answer_mentions('order w-7 is shipped')", SHIPPED, True),
        ("answer_mentions('is shipped', ignore_case=False)", SHIPPED, False),
        ("answer_mentions('shipped')", [CALLED], False),
        ("at_most_steps(2)", [ANSWERED[0], TWO_CALLS, FINE, result("y", "2"), ANSWER], True),
        ("at_most_steps(1)", [ANSWERED[0], TWO_CALLS, FINE, result("y", "2"), ANSWER], False),
    ],
)
def test_a_built_in_measure_passes_fails_or_does_not_apply(text, messages, expected):
    assert passed(text, messages) is expected


@pytest.mark.parametrize(
    ("text", "error"),
    [("Error: no such order", True), ("error", True), ('{"error": "x"}', True), ('{"is_error": true}', True), ('{"error": null}', False),
     ('{"isError": true, "content": []}', True),
     ("ValueError: File with ID '26' not found.", True), ("Traceback (most recent call last):", True), ("The ValueError: x", False),
     ("Exit code 1\ngone", True), ("Wall time: 0.0000 seconds\nProcess exited with code 127\nOutput:\n", True),
     ("Chunk ID: 224793\nWall time: 0.0000 seconds\nProcess exited with code 0\n", False),
     ("An error occurred while running the tool. Please try again. Error: x", True), ("An error in the order was mended", False),
     ('{"result": "Error"}', False), ("[" * 100_000, False), ('{"a":' * 100_000, False), ("fine", False), ("", False)],
)  # fmt: skip
def test_a_tool_result_reads_as_an_error(text, error):
    assert is_tool_error(text) is error


@pytest.mark.parametrize(
    ("call", "tools", "expected", "says"),
    [
        (("f", {"id": 3}), [tool("f", **SCHEMA)], True, ""),
        (("f", {"id": 3.0}), [tool("f", **SCHEMA)], True, ""),
        (
            ("f", {"id": "3"}),
            [tool("f", **SCHEMA)],
            False,
            "call 1 (f): id breaks the schema's 'type'",
        ),
        (
            ("f", {}),
            [tool("f", **SCHEMA)],
            False,
            "call 1 (f): the arguments breaks the schema's 'required'",
        ),
        (
            ("f", {"id": 3, "x": 1}),
            [tool("f", **SCHEMA)],
            False,
            "call 1 (f): the arguments breaks the schema's 'additionalProperties'",
        ),
        (
            ("f", "[1"),
            [tool("f", **SCHEMA)],
            False,
            "call 1 (f): its arguments are not a JSON object",
        ),
        (
            ("g", {}),
            [tool("f", **SCHEMA)],
            False,
            ("call 1 (g): the session has no tool with this name"),
        ),
        (("f", {"x": 1}), [tool("f")], True, ""),
        (("f", {}), [], None, "the session has no tools to check with"),
    ],
)
def test_arguments_match_the_schema_of_their_tool(call, tools, expected, says):
    assert taken("arguments_match_schema", [calls(call)], tools=tools) == MeasureResult(
        expected, says
    )


@pytest.mark.parametrize("schema", [{"type": "objekt"}, {"$ref": "http://127.0.0.1:1/x.json"}])
def test_a_schema_that_is_broken_or_elsewhere_passes_and_fails_nothing(schema):
    found = taken("arguments_match_schema", [calls(("f", {"a": 1}))], tools=[tool("f", **schema)])
    assert found.passed is None and found.raised
    assert passed("arguments_match_schema", tools=[tool("f", **schema)]) is True, (
        "nothing was called"
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("I'm sorry, but I can't help with that.", False),
        ("I\u2019m sorry, but I cannot assist with this request.", False),
        ("Unfortunately, I am not able to help you here.", False),
        ("As an AI language model, I cannot provide that.", False),
        ("I'm sorry, your order is late. It arrives on Monday.", True),
        ("I can help with that: the answer is 4.", True),
        ("I'm sorry that I can't see an older order; the newest is W-7.", True),
    ],
)
def test_a_refusal_begins_by_declining(answer, expected):
    assert passed("no_refusal", [ANSWERED[0], {"role": "assistant", "content": answer}]) is expected


messages = st.lists(
    st.one_of(
        st.builds(lambda text: {"role": "user", "content": text}, st.text(max_size=5)),
        st.builds(lambda text: {"role": "assistant", "content": text}, st.text(max_size=5)),
        st.builds(lambda text: calls(("f", text)), st.text(max_size=5)),
        st.builds(result, st.text(max_size=5), st.sampled_from(["1", "2", ""])),
    ),
    max_size=6,
)


@given(messages)
def test_no_built_in_measure_raises_on_any_conversation(messages):
    texts = [
        *(set(MEASURES) - {"called_tool", "answer_mentions", "at_most_steps"}),
        "called_tool('f')",
        "answer_mentions('x')",
        "at_most_steps(3)",
    ]
    for text in texts:
        found = taken(text, messages, tools=[tool("f", **SCHEMA)])
        assert "raised" not in found.reason and "returned" not in found.reason, text


def test_every_built_in_measure_has_a_value_on_real_sessions(real_traces):
    source = open_source(real_traces / "stores" / "omniagents_home")
    texts = ["called_tool('get_user_details')", "answer_mentions('flight')", "at_most_steps(20)"]
    texts += [name for name in MEASURES if not any(text.startswith(name) for text in texts)]
    panel = JudgingRun(parse_measures(texts), VerdictPolicy(), Labels())
    sessions = list(read_sessions(source, PartitionKey("tau", "airline"), ReadingOptions()))
    assert len(list(panel.judge((None, session) for session in sessions))) == 100
    # Two measures could not be taken: nothing was called, nothing was answered.
    assert set(panel.not_taken) == {
        "tool_success_rate has no result for the session",
        "no_refusal the session does not end with an answer",
    }
    assert panel.verdicts == {
        "acceptable by judgment": 30,
        "unacceptable by judgment": 64,
        "none": 6,
    }
    assert {row.name: row.sessions for row in panel.agreement.list_rows()}[
        "called_tool('get_user_details')"
    ] == 94
