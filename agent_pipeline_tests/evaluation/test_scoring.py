"""What is right about a generated text. The hard cases are in `test_hard_cases`."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.evaluation.answer_scoring import score, values
from agent_pipeline.evaluation.call_matching import normal, same, same_calls
from agent_pipeline.evaluation.model_comparison import measure_answers
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.models.families import parse_reply
from agent_pipeline.models.tool_call_parsers import ParsedCall, list_parameter_schemas
from agent_pipeline.tokenization.loss_masks import encode_conversation
from agent_pipeline_tests.training.world import TOOL, row

JSON = '{"name": "weather", "arguments": {"city": "Oslo", "days": 1}}'
CALL, ANSWER = turn_samples([row(0, "test")])[0]


def test_name_and_arguments_are_judged_apart():
    def judged(text):
        given = score(CALL, f"<tool_call>{text}</tool_call>")
        return given.tool_name, given.arguments, given.exact

    assert judged(JSON) == (True, True, True)
    assert judged(JSON.replace("weather", "time")) == (False, True, False)
    assert judged(JSON.replace("Oslo", "Rome")) == (True, False, False)


def test_a_turn_that_does_not_call_has_no_figures_of_calls():
    given = score(ANSWER, "It is sunny.")
    assert given.right_class and given.answer and given.right and not given.called
    assert (given.tool_name, given.arguments, given.exact, given.lenient) == (None,) * 4


def test_a_call_that_the_limit_ended_is_wrong_and_counted_apart():
    begun = score(CALL, JSON[:-9], cut=True)
    assert begun.truncated and begun.called and not begun.right and not begun.invalid_call
    assert not begun.whole_call, (
        "it counted as a call behind which the model goes on, and the check said so of a limit that is too low"
    )
    assert score(CALL, JSON, cut=True).right and score(CALL, JSON, cut=True).whole_call, (
        "it had ended"
    )
    means = measure_answers(["a", "b"], [score(CALL, JSON), begun])
    assert means.exact_call_accuracy == 0.5, "rambling on where it is wrong makes no model better"
    assert (
        score(CALL, JSON, cut=False).right
        and not score(CALL, JSON[:-9]).truncated
        and score(CALL, JSON[:-9]).invalid_call
    )


def test_what_our_template_renders_is_read_back(tiny_renderer):
    conversation = row(0)["messages"]
    encoded = encode_conversation(tiny_renderer, conversation, [TOOL])
    start, end = encoded.turns[0]
    assert (
        parse_reply(tiny_renderer.tokenizer.decode(encoded.input_ids[start:end]), [TOOL]).calls
        == CALL.calls
    )


def test_words_before_a_call_are_its_text():
    reply = parse_reply(f"<think>hm</think>Let me see.\n<tool_call>{JSON}</tool_call>", [TOOL])
    assert reply.calls and reply.text == "Let me see."


def test_without_a_list_of_tools_a_bare_call_needs_arguments():
    assert (
        parse_reply(JSON, []).is_call
        and not parse_reply('{"name": "Anna"}', []).is_call
        and not parse_reply(JSON, [{"name": "other"}]).is_call
    )


def test_values_are_words_with_a_digit_and_numbers_by_value():
    assert values(["$20.00 for K100, of 1,200."]) == {"20", "k100", "1200"}
    assert values(['{"a":[1,2]}', "no. 7_b"]) == {"1", "2", "7_b"}


jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(jsons, jsons)
def test_equality_is_that_of_json(left, right):
    assert same(left, json.loads(json.dumps(left)))
    assert same(left, right) == (
        json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    )


def test_numbers_are_equal_by_value_and_booleans_are_no_numbers():
    assert (
        same({"a": [1, 2.0]}, {"a": [1.0, 2]})
        and not same(1, True)
        and not same(0, False)
        and not same("1", 1)
    )


@given(
    st.dictionaries(
        st.sampled_from(["city", "days", "other"]),
        st.none() | st.integers() | st.text(),
        max_size=3,
    ),
    st.booleans(),
)
def test_a_call_is_the_same_as_itself_in_normal_form(arguments, lenient):
    schema = list_parameter_schemas([TOOL])["weather"]
    once = normal(arguments, schema, lenient)
    assert same(once, normal(once, schema, lenient))


@pytest.mark.parametrize("lenient", [False, True])
def test_any_order_of_independent_calls_is_the_same(lenient):
    calls = [ParsedCall("weather", {"city": city}) for city in ("Oslo", "Rome", "Oslo")]
    schemas = list_parameter_schemas([TOOL])
    assert same_calls(calls, calls[::-1], schemas, lenient) and not same_calls(
        calls, calls[:2], schemas, lenient
    )
    assert not same_calls(calls[:2], [calls[0], calls[0]], schemas, lenient)
