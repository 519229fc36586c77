"""Items to messages: the words, the calls and the results in the order of the record."""

import json
from collections import Counter
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.sessions.chat import chat_items, chat_to_messages
from agent_pipeline.sessions.items import plain_chat, text_of, texts_to_messages, to_messages
from agent_pipeline.sessions.session import Message
from agent_pipeline.sources.formats.json_values import parsed_object
from agent_pipeline_tests.stores import call, result, says, user


def roles(messages: list[Message]) -> str:
    return " ".join(message["role"] for message in messages)


# Words


def test_parts_are_joined_in_order_and_what_is_no_text_is_counted():
    skipped: Counter[str] = Counter()
    parts = [{"type": "input_text", "text": "a"}, "b", {"type": "input_image", "image_url": "x"}, {"type": "output_text", "text": "c"}, 5]
    assert text_of(parts, skipped) == "abc"
    assert skipped == {"part:input_image": 1, "part": 1}


def test_a_part_whose_type_is_no_text_is_counted_and_breaks_nothing():
    chat = to_messages([{"role": "user", "content": [{"type": ["text"], "text": "x"}, {"type": "text", "text": None}, "hi"]}])
    assert chat.messages == [user("hi")]
    assert chat.skipped == {"part": 1, "part:text": 1}


def test_a_single_part_without_its_list_is_its_text_and_not_its_json():
    assert to_messages([{"role": "user", "content": {"type": "input_text", "text": "hi"}}]).messages == [user("hi")]


def test_developer_messages_are_system_messages_and_empty_ones_stay_for_repair_to_count():
    chat = to_messages([{"role": "developer", "content": "be kind"}, user(" \n"), user("hi"), {"role": "assistant", "content": None}])
    assert [(message["role"], message["content"]) for message in chat.messages] == [
        ("system", "be kind"), ("user", " \n"), ("user", "hi"), ("assistant", "")
    ]  # fmt: skip
    assert not chat.skipped


@pytest.mark.parametrize(
    "item",
    [None, 5, [], {}, {"type": 5}, {"role": "robot"}, {"role": ["user"], "content": "x"}, {"type": "message"}, {"type": "function_call"},
     {"type": "function_call", "name": " "}, {"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}],
)  # fmt: skip
def test_an_item_that_is_none_is_counted(item):
    chat = to_messages([user("hi"), item])
    assert chat.messages == [user("hi")]
    assert chat.damage == {"invalid_item": 1}


def test_other_items_are_skipped_and_counted_by_type():
    chat = to_messages([{"type": "reasoning", "summary": []}, user("hi"), {"type": "web_search_call"}, {"type": "reasoning"}])
    assert chat.skipped == {"reasoning": 2, "web_search_call": 1}
    assert not chat.damage


def test_nul_and_a_megabyte_pass_unchanged():
    text = "\0" + "x" * (1 << 20)
    chat = to_messages([user("a"), call("f", "1"), result(text, "1")])
    assert chat.messages[-1]["content"] == text
    assert not chat.damage


def test_an_item_nested_deeper_than_anybody_can_walk_is_invalid_and_costs_only_its_session():
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    chat = to_messages([user("a"), call("f", "1"), result({"x": deep}, "1")])
    assert chat.damage == {"invalid_item": 1}
    assert roles(chat.messages) == "user assistant"


# Outputs


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": 1}, '{"a": 1}'),
        ([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}], "ab"),
        ([{"flight": "HAT1"}, {"flight": "HAT2"}], '[{"flight": "HAT1"}, {"flight": "HAT2"}]'),
        ([{"type": "certificate", "amount": 5}], '[{"type": "certificate", "amount": 5}]'),
        ([1, 2], "[1, 2]"),
        ([], "[]"),
        (5, "5"),
        (False, "false"),
    ],
)
def test_an_output_is_text_parts_or_json_and_never_lost(output, content):
    chat = to_messages([user("a"), call("f", "1"), result(output, "1")])
    assert chat.messages[-1] == {"role": "tool", "tool_call_id": "1", "content": content}
    assert not chat.damage and not chat.skipped


def test_an_image_in_an_output_is_counted():
    chat = to_messages([user("a"), call("f", "1"), result([{"type": "input_image", "image_url": "x"}], "1")])
    assert chat.messages[-1]["content"] == ""
    assert chat.skipped == {"part:input_image": 1}


# Calls and messages


def test_calls_join_the_words_before_them_and_one_another():
    chat = to_messages(
        [user("a"), says("Let me see."), call("f", "1"), {"type": "reasoning"}, call("g", "2"), result("x", "1"), result("y", "2")]
    )
    assert roles(chat.messages) == "user assistant tool tool"
    assert chat.messages[1]["content"] == "Let me see."
    assert [each["function"]["name"] for each in chat.messages[1]["tool_calls"]] == ["f", "g"]


def test_a_call_after_a_result_is_a_message_of_its_own():
    chat = to_messages([user("a"), call("f", "1"), result("x", "1"), call("g", "2"), result("y", "2"), says("Done.")])
    assert roles(chat.messages) == "user assistant tool assistant tool assistant"


def test_a_call_does_not_join_words_from_before_a_message_that_was_only_an_image():
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    chat = to_messages([user("a"), says("Show me."), picture, call("look", "1"), result("a cat", "1")])
    assert roles(chat.messages) == "user assistant user assistant tool"
    assert "tool_calls" not in chat.messages[1]


def test_results_stay_where_they_are_and_ids_as_they_are():
    chat = to_messages([user("a"), result("x", "1"), call("f", 7), call("g"), says("Wait."), result("y")])
    assert roles(chat.messages) == "user tool assistant assistant tool"
    assert [each["id"] for each in chat.messages[2]["tool_calls"]] == ["7", ""]
    assert [message["tool_call_id"] for message in chat.messages if message["role"] == "tool"] == ["1", ""]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"a":1', '{"a":1'), ({"a": "ü"}, '{"a": "ü"}'), (None, ""), ([1], "[1]"), ({"a": float("inf")}, '{"a": Infinity}')],
)
def test_arguments_are_a_text_whatever_they_were(arguments, text):
    chat = to_messages([user("a"), call("f", "1", arguments)])
    assert chat.messages[1]["tool_calls"][0]["function"]["arguments"] == text


# Reasoning


def test_what_was_thought_goes_to_the_assistants_message_that_follows():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "First"}, {"type": "summary_text", "text": "then"}]}
    more = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "all of it"}], "summary": [{"text": "short"}]}
    chat = to_messages(
        [user("a"), thought, says("Hm."), more, call("f", "1"), {"type": "reasoning", "text": "why"}, call("g", "2"), result("x", "1")]
    )
    assert chat.reasoning == [
        {"message": 1, "text": "First\n\nthen"}, {"message": 1, "text": "all of it"}, {"message": 1, "text": "why"}
    ]  # fmt: skip
    assert roles(chat.messages) == "user assistant tool"
    assert not chat.skipped


def test_what_was_thought_before_nothing_or_is_encrypted_is_counted():
    chat = to_messages([user("a"), {"type": "reasoning", "encrypted_content": "x"}, says("b"), {"type": "reasoning", "text": "what now"}])
    assert chat.reasoning == []
    assert chat.skipped == {"reasoning": 2}


def test_what_was_thought_before_an_empty_message_waits_for_words():
    chat = to_messages([user("a"), says("b"), {"type": "reasoning", "text": "c"}, says(""), call("f", "1"), result("x", "1"), says("d")])
    assert roles(chat.messages) == "user assistant assistant tool assistant"
    assert chat.reasoning == [{"message": 1, "text": "c"}]


# Texts

ODD = st.sampled_from(
    [None, b"", b"{", b"[]", b"1", b'{"role": null}', b'{"type": "", "role": "user", "content": "x"}', b'{"role": "robot", "content": "x"}',
     b'{"role": "user", "content": 5}', b'{"role": "user", "content": null}', b'{"type": "reasoning", "summary": [{"text": "why"}]}',
     b'{"role": "assistant", "content": "x", "tool_calls": [{}]}', b'{"role": "assistant", "content": "x", "tool_calls": []}',
     b'{"type": "function_call", "name": " "}', b'{"type": "function_call", "name": "f", "arguments": {"a": 1}, "id": "x"}',
     b'{"type": "function_call_output", "output": [1], "call_id": 7}',
     b'{"role": "user", "content": "\\ud83d"}', b'{"role": "user", "content": "\xff"}',
     b'{"role": "user", "content": [{"type": "input_image"}]}', b'{"role": "user", "content": [{"type": "text", "text": null}]}',
     b'{"type": "function_call_output", "output": "a", "output": null}', b'{"type": 5}', b'{"role": "developer", "content": [" "]}']
)  # fmt: skip
PLAIN = st.one_of(
    st.sampled_from(["a", " ", ""]).map(user),
    st.sampled_from(["a", " ", ""]).map(says),
    st.builds(call, st.sampled_from("fg"), st.sampled_from(["", "1", None]), st.sampled_from(["{}", "", None])),
    st.builds(result, st.sampled_from(["x", "", None]), st.sampled_from(["", "1", None])),
).map(lambda item: json.dumps(item).encode())


@given(st.one_of(st.lists(PLAIN), st.lists(st.one_of(PLAIN, ODD))))
@settings(max_examples=500)
def test_texts_are_read_all_at_once_as_they_are_one_by_one(texts):
    assert texts_to_messages(texts, parsed_object) == to_messages(map(parsed_object, texts))


def test_common_items_are_read_all_at_once():
    def never(text: Any) -> None:
        raise AssertionError(text)

    texts = [json.dumps(item).encode() for item in (user("a"), says("b"), call("f", "1"), result("x", "1"))]
    assert roles(texts_to_messages(texts, never).messages) == "user assistant tool"


# Chats in OpenAI's own form

CALLS = st.builds(
    lambda call_id, name, arguments: {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}},
    st.sampled_from(["1", "", "1", None]), st.sampled_from(["f", "g", " "]), st.sampled_from(["{}", "", "{}", None, {"a": 1}]),
)  # fmt: skip
TEXTS = st.sampled_from(["a", "b", "", " ", None])
ODD_MESSAGES = [
    None,
    {},
    {"role": "assistant", "tool_calls": None},
    {"role": "tool", "content": "x", "name": "f", "tool_call_id": "1"},
    {"role": "user", "content": ["a"]},
    {"role": "assistant", "content": "a", "reasoning_content": "why"},
]
ROLES = st.sampled_from(["system", "user", "assistant", "developer"])
CHATS = st.lists(
    st.one_of(
        st.builds(lambda role, text: {"role": role, "content": text}, ROLES, TEXTS),
        st.builds(lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls}, TEXTS, st.lists(CALLS, max_size=3)),
        st.builds(
            lambda text, call_id: {"role": "tool", "content": text, "tool_call_id": call_id}, TEXTS, st.sampled_from(["1", "", None])
        ),
        st.sampled_from(ODD_MESSAGES),
    )
)


@given(CHATS)
@settings(max_examples=500)
def test_a_plain_chat_is_what_its_items_make_whether_it_is_decoded_or_not(messages):
    plain = plain_chat(messages)
    assert plain == plain_chat(msgspec.Raw(json.dumps(messages).encode()))
    if plain is not None:
        assert plain == to_messages(chat_items(messages))


def test_a_chat_of_the_common_form_is_plain():
    call_ = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    chat = [user("a"), {"role": "assistant", "content": None, "tool_calls": [call_]}, {"role": "tool", "content": "x", "tool_call_id": "1"}]
    plain = plain_chat(chat)
    assert plain is not None and roles(plain.messages) == "user assistant tool"


@pytest.mark.parametrize("content", ["said", [{"type": "text", "text": "said"}]])  # decoded as it is, and coerced
def test_a_weight_of_zero_stays_with_the_words_and_the_calls_that_are_not_to_be_trained_on(content):
    call_ = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    spoken = {"role": "assistant", "content": content, "weight": 0}
    called = {"role": "assistant", "content": None, "tool_calls": [call_], "weight": 0}
    chat = [user("a"), spoken, user("b"), called, result("x", "1") | {"role": "tool", "content": "x"}, says("end") | {"weight": 1}]
    messages = chat_to_messages([{name: value for name, value in each.items() if name not in ("type", "output")} for each in chat]).messages
    assert [message.get("weight") for message in messages] == [None, 0, None, 0, None, None]
