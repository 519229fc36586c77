"""Verdicts and measures."""

from typing import Any

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.traces.judging import MEASURES, MeasureResult, is_tool_error, judge
from agent_pipeline.traces.session import Session

ANSWERED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
CALLED = {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}


def session(messages: Any = ANSWERED, **fields: Any) -> Session:
    return Session(session_id="s", project="p", agent="a", source="test", messages=messages, **fields)


def taken(name: str, messages: Any, **fields: Any) -> bool | None:
    return judge(session(messages, **fields), [name]).measures[name].passed


@pytest.mark.parametrize(
    ("messages", "passed"),
    [
        (ANSWERED, True),
        ([*ANSWERED, {"role": "user", "content": "###STOP###"}], True),
        ([{"role": "system", "content": "x"}], False),
        ([], False),
        ([ANSWERED[0], CALLED], False),
        ([ANSWERED[0], CALLED, {"role": "tool", "tool_call_id": "1", "content": "x"}], False),
        ([ANSWERED[0], CALLED | {"content": "Let me see."}], False),
    ],
)
def test_a_session_ends_with_an_answer_if_the_agents_words_come_last(messages, passed):
    assert taken("ended_with_answer", messages) is passed


@pytest.mark.parametrize(
    ("text", "error"),
    [("Error: no such order", True), ("error", True), ('{"error": "x"}', True), ('{"is_error": true}', True), ('{"error": null}', False),
     ('{"result": "Error"}', False), ("[" * 100_000, False), ("fine", False), ("", False)],
)  # fmt: skip
def test_a_tool_result_reads_as_an_error(text, error):
    assert is_tool_error({"role": "tool", "content": text}) is error


def test_a_tool_error_counts_only_where_it_is_the_last_result():
    fine, error = ({"role": "tool", "tool_call_id": "1", "content": text} for text in ("fine", "Error: x"))
    assert taken("no_tool_error_at_end", [CALLED, error, CALLED, fine, ANSWERED[1]]) is True
    assert taken("no_tool_error_at_end", [CALLED, fine, CALLED, error, ANSWERED[1]]) is False


def test_a_call_without_a_result_is_told_by_the_damage():
    assert taken("all_calls_answered", ANSWERED, damage={"unanswered_call": 1}) is False


def test_a_judgment_decides_whatever_the_measures_say():
    judged = judge(session([CALLED], judgment="acceptable"), ["ended_with_answer"], "measures")
    assert (judged.verdict, judged.verdict_by, judged.measures["ended_with_answer"].passed) == ("acceptable", "judgment", False)


@pytest.mark.parametrize("judgment", [None, "", "Acceptable", "maybe"])
def test_what_is_no_judgment_gives_no_verdict_by_default(judgment):
    assert judge(session(judgment=judgment), ["ended_with_answer"])[:2] == (None, None)


def test_measures_judge_only_where_the_policy_says_so():
    assert judge(session(), ["ended_with_answer"], "measures")[:2] == ("acceptable", "measures")
    assert judge(session([CALLED]), ["ended_with_answer"], "measures")[:2] == ("unacceptable", "measures")
    assert judge(session(), [], "measures")[:2] == (None, None)


@pytest.mark.parametrize("broken", [lambda session: 1 / 0, lambda session: True, lambda session: None])
def test_a_measure_that_raises_or_returns_no_result_gives_null_and_a_reason(broken, monkeypatch):
    monkeypatch.setitem(MEASURES, "broken", broken)
    judged = judge(session(), ["broken", "ended_with_answer"], "measures")
    assert judged[:2] == (None, None)
    assert judged.measures["broken"].passed is None
    assert judged.measures["broken"].reason


def test_a_failed_measure_outweighs_one_that_could_not_be_taken(monkeypatch):
    monkeypatch.setitem(MEASURES, "broken", lambda session: 1 / 0)
    assert judge(session([CALLED]), ["broken", "ended_with_answer"], "measures").verdict == "unacceptable"


def test_an_unknown_measure_is_named_with_those_that_there_are():
    with pytest.raises(SettingsError, match=r"no measure 'polite': the registered ones are .*ended_with_answer"):
        judge(session(), ["polite"])


def test_a_measure_result_says_why():
    assert judge(session([CALLED]), ["ended_with_answer"]).measures["ended_with_answer"] == MeasureResult(False, "ends on a tool call")
