"""What is right about a generated text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.scoring import Score, same, score
from agent_pipeline.training.families import Call, read_reply
from agent_pipeline_tests.training.world import call, row

WEATHER = Call("weather", {"city": "Oslo", "days": 1})
JSON = '{"name": "weather", "arguments": {"city": "Oslo", "days": 1}}'
CALLS = turn_samples([row(0, "test")])[0][0]
ANSWER = turn_samples([row(0, "test")])[0][1]


@pytest.mark.parametrize(
    "text",
    [
        f"<tool_call>\n{JSON}\n</tool_call>",
        f"Let me see.\n<tool_call>{JSON}",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>",
        f"[TOOL_CALLS][{JSON}]",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo", "days": 1}',
        '<|python_tag|>{"name": "weather", "parameters": {"city": "Oslo", "days": 1}}',
        JSON,
        '{"type": "function", "function": {"name": "weather", "arguments": "{\\"city\\": \\"Oslo\\", \\"days\\": 1}"}}',
    ],
)
def test_every_documented_form_of_a_call_is_read(text):
    assert read_reply(text).calls == (WEATHER,)
    assert score(CALLS, text).exact


def test_an_answer_is_an_answer_even_when_it_holds_json():
    for text in ("It is sunny.", '{"city": "Oslo"}', "Use <tool> tags", '{"name": 3}', ""):
        assert not read_reply(text).is_call and read_reply(text).text == text


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>\nweather(Oslo)\n</tool_call>",
        "<tool_call>",
        '<tool_call>{"name": "weather", "arguments": [1]}</tool_call>',
    ],
)
def test_a_call_that_is_no_json_call_is_a_wrong_call(text):
    assert score(CALLS, text) == Score(True, False, False, False, True)
    assert score(ANSWER, text) == Score(False, None, None, None, True)


def test_name_and_arguments_are_judged_apart():
    assert score(CALLS, JSON.replace("weather", "time")) == Score(True, False, True, False, False)
    assert score(CALLS, JSON.replace("Oslo", "Rome")) == Score(True, True, False, False, False)
    assert score(CALLS, "Sunny.") == Score(False, False, False, False, False)
    assert score(ANSWER, "Anything said.") == Score(True, None, None, None, False)


def test_all_calls_of_a_turn_must_be_there_and_no_other():
    two = row(0, "test")
    two["messages"][2]["tool_calls"].append(call("weather", {"city": "Rome"}, "2"))
    sample = turn_samples([two])[0][0]
    one, other = f"<tool_call>{JSON}</tool_call>", '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'
    assert score(sample, one + "\n" + other).exact
    assert not score(sample, one).exact and not score(sample, other + one).exact and not score(CALLS, one + one).exact


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(values, values)
def test_equality_is_that_of_json(left, right):
    import json

    assert same(left, json.loads(json.dumps(left)))
    assert same(left, right) == (json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True))


def test_numbers_are_equal_by_value_and_booleans_are_no_numbers():
    assert same({"a": [1, 2.0]}, {"a": [1.0, 2]}) and not same(1, True) and not same(0, False) and not same("1", 1)
