"""Items to messages: the words, the calls, and which result belongs to which call."""

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.traces.items import MAX_DEPTH, arguments_json, text_of, to_messages
from agent_pipeline.traces.session import Message
from agent_pipeline_tests.traces.stores import call, result, says, user

UNPAIRED = ("orphan_output", "unanswered_call")


def roles(messages: list[Message]) -> str:
    return " ".join(message["role"] for message in messages)


def pairs(messages: list[Message]) -> list[tuple[str, str | None]]:
    """(name, result) of every call in order; asserts that each result follows the one message that made its call."""
    found = []
    expected: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in expected, "a result before its call, or a second one for the same call"
            found.append((expected.pop(message["tool_call_id"]), message["content"]))
            continue
        found += [(name, None) for name in expected.values()]
        expected = {each["id"]: each["function"]["name"] for each in message.get("tool_calls", ())}
    return found + [(name, None) for name in expected.values()]


def items_of(messages: list[Message]) -> list[dict[str, Any]]:
    """A chat back in the form of items."""
    items: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            items.append(result(message["content"], message["tool_call_id"]))
            continue
        if message["content"]:
            items.append({"role": message["role"], "content": message["content"]})
        for each in message.get("tool_calls", ()):
            items.append(call(each["function"]["name"], each["id"], each["function"]["arguments"]))
    return items


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


def test_developer_messages_are_system_messages_and_empty_messages_are_counted():
    chat = to_messages([{"role": "developer", "content": "be kind"}, user(" \n"), user("hi"), {"role": "assistant", "content": None}])
    assert roles(chat.messages) == "system user"
    assert chat.skipped == {"empty_message": 2}


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


def test_half_an_emoji_becomes_a_replacement_character_and_is_counted():
    chat = to_messages([user("a\ud83d"), {"role": "assistant", "content": [{"type": "text", "text": "\udc00"}]}])
    assert [message["content"] for message in chat.messages] == ["a\ufffd", "\ufffd"]
    assert chat.damage == {"invalid_unicode": 2}


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
    assert chat.damage == {"invalid_item": 1, "unanswered_call": 1}


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 5_000, 100_000])
def test_arguments_nested_too_deeply_are_invalid(depth):
    damage: Counter[str] = Counter()
    raw = '{"x":' + "[" * depth + "]" * depth + "}"
    assert arguments_json(raw, damage) == raw
    assert damage == {"invalid_arguments": 1}


# Arguments


@pytest.mark.parametrize(
    ("raw", "expected", "damage"),
    [
        ({"a": "ü"}, '{"a": "ü"}', {}),
        ('{ "a":1 }', '{ "a":1 }', {}),
        (None, "{}", {}),
        ("", "{}", {}),
        (json.dumps('{"a": 1}'), '{"a": 1}', {"double_encoded_arguments": 1}),
        (json.dumps(json.dumps({"a": 1})), '{"a": 1}', {"double_encoded_arguments": 1}),
        ("[1]", "[1]", {"invalid_arguments": 1}),
        ([1], "[1]", {"invalid_arguments": 1}),
        ('{"a": 1', '{"a": 1', {"invalid_arguments": 1}),
        ('{"a": NaN}', '{"a": NaN}', {"invalid_arguments": 1}),
        ('{"a": 1e999}', '{"a": 1e999}', {"invalid_arguments": 1}),
        ({"a": float("inf")}, '{"a": Infinity}', {"invalid_arguments": 1}),
        (r'{"a": "\ud83d"}', '{"a": "\ufffd"}', {"invalid_unicode": 1}),
        ("1" * 5000, "1" * 5000, {"invalid_arguments": 1}),
    ],
)
def test_arguments_become_the_json_of_one_object_or_are_counted(raw, expected, damage):
    counted: Counter[str] = Counter()
    assert arguments_json(raw, counted) == expected
    assert +counted == damage


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.one_of(st.integers(), st.text(st.characters(codec="utf-8")), st.none())))
def test_arguments_that_are_well_keep_their_value_in_any_form(value):
    for raw in (value, json.dumps(value), json.dumps(json.dumps(value))):
        damage: Counter[str] = Counter()
        assert json.loads(arguments_json(raw, damage)) == value
        assert not damage["invalid_arguments"]


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
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]


def test_a_call_after_a_result_is_a_message_of_its_own():
    chat = to_messages([user("a"), call("f", "1"), result("x", "1"), call("g", "2"), result("y", "2"), says("Done.")])
    assert roles(chat.messages) == "user assistant tool assistant tool assistant"


def test_a_call_does_not_join_words_from_before_a_message_that_was_only_an_image():
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    chat = to_messages([user("a"), says("Show me."), picture, call("look", "1"), result("a cat", "1")])
    assert roles(chat.messages) == "user assistant assistant tool"
    assert "tool_calls" not in chat.messages[1]


def test_a_result_moves_to_its_call_past_what_was_said_meanwhile():
    chat = to_messages([user("a"), call("f", "1"), says("Wait."), result("x", "1"), says("Done.")])
    assert roles(chat.messages) == "user assistant tool assistant assistant"
    assert pairs(chat.messages) == [("f", "x")]


# Pairing


def test_results_in_another_order_find_their_calls_by_id():
    chat = to_messages([user("a"), call("f", "1"), call("g", "2"), result("y", "2"), result("x", "1")])
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]
    assert not chat.damage


def test_numbered_calls_are_matched_by_their_numbers():
    chat = to_messages([user("a"), call("f", 1), call("g", 2), result("y", 2), result("x", 1)])
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]


def test_a_result_with_an_empty_id_answers_the_oldest_open_call():
    chat = to_messages([user("a"), call("f", ""), call("g", None), result("x", ""), result("y")])
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]
    assert chat.damage == {"empty_call_id": 4}


def test_a_result_that_names_its_call_goes_before_one_that_names_none():
    chat = to_messages([user("a"), call("f", "1"), call("g", ""), result("y", ""), result("x", "1")])
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]


def test_an_id_that_is_used_again_is_two_calls_with_ids_of_their_own():
    chat = to_messages([user("a"), call("f", "1"), result("x", "1"), call("g", "1"), result("y", "1")])
    assert pairs(chat.messages) == [("f", "x"), ("g", "y")]
    assert chat.damage == {"reused_call_id": 1}


def test_a_made_up_id_is_never_one_that_another_call_has():
    chat = to_messages([user("a"), call("f", "1"), call("g", "1"), call("h", "1_2"), call("i", ""), call("j", "call_4")])
    ids = [each["id"] for each in chat.messages[1]["tool_calls"]]
    assert len(set(ids)) == 5
    assert chat.damage == {"reused_call_id": 1, "empty_call_id": 1, "unanswered_call": 5}


def test_a_result_never_answers_a_call_of_another_turn():
    chat = to_messages([user("a"), call("f", "1"), user("b"), call("f", "1"), result("second", "1")])
    assert pairs(chat.messages) == [("f", None), ("f", "second")]
    assert chat.damage == {"reused_call_id": 1, "unanswered_call": 1}


def test_a_result_before_its_call_is_an_orphan():
    chat = to_messages([user("a"), result("x", "1"), call("f", "1")])
    assert pairs(chat.messages) == [("f", None)]
    assert chat.damage == {"orphan_output": 1, "unanswered_call": 1}


def test_a_result_that_names_another_call_is_counted_as_a_guess():
    chat = to_messages([user("a"), call("f", "1"), result("x", "2")])
    assert pairs(chat.messages) == [("f", "x")]
    assert chat.damage == {"mismatched_call_id": 1}


def test_five_thousand_calls_in_one_turn_take_no_longer_than_they_should():
    items = [item for number in range(5000) for item in (call("f", ""), result(str(number), ""))]
    chat = to_messages([user("a"), *items])
    assert [content for _, content in pairs(chat.messages)] == [str(number) for number in range(5000)]


IDS = st.sampled_from(["", None, "a", "a", "b", "c", "call_1", "call_2", "a_2", 7, "7"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), IDS), st.tuples(st.just("result"), IDS),
        st.sampled_from([("user", "hi"), ("user", ""), ("assistant", "so"), ("assistant", ""), ("system", "rule"), ("reasoning", "")]),
    ),
    max_size=25,
)  # fmt: skip


def items_from(steps: list[tuple[str, Any]]) -> list[dict[str, Any]]:
    items = []
    for number, (kind, value) in enumerate(steps):
        if kind == "call":
            items.append(call(f"f{number}", value))
        elif kind == "result":
            items.append(result(f"r{number}", value))
        else:
            items.append({"type": "reasoning"} if kind == "reasoning" else {"role": kind, "content": value and f"{value} {number}"})
    return items


@given(STEPS)
@settings(max_examples=400)
def test_whatever_the_ids_no_call_and_no_result_is_lost_uncounted(steps):
    items = items_from(steps)
    chat = to_messages(items)
    made = [item["name"] for item in items if item.get("type") == "function_call"]
    given_results = [item["output"] for item in items if item.get("type") == "function_call_output"]
    found = pairs(chat.messages)
    placed = [content for _, content in found if content is not None]
    assert sorted(name for name, _ in found) == sorted(made)
    assert len(set(placed)) == len(placed) and set(placed) <= set(given_results), "a result answers one call at most"
    assert chat.damage["orphan_output"] == len(given_results) - len(placed)
    assert chat.damage["unanswered_call"] == len(made) - len(placed)
    order = {item.get("name") or item.get("output"): place for place, item in enumerate(items) if "type" in item}
    assert all(order[name] < order[content] for name, content in found if content is not None), "no result is older than its call"
    ids = [each["id"] for message in chat.messages for each in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids) and all(ids)


@given(STEPS)
@settings(max_examples=200)
def test_words_keep_their_order_and_none_is_lost(steps):
    items = items_from(steps)
    said = [item["content"] for item in items if "role" in item and item["content"]]
    chat = to_messages(items)
    assert [message["content"] for message in chat.messages if message["role"] != "tool" and message["content"]] == said
    assert chat.skipped["empty_message"] == sum("role" in item and not item["content"] for item in items)
    assert chat.skipped["reasoning"] == sum(kind == "reasoning" for kind, _ in steps)


@given(STEPS)
@settings(max_examples=200)
def test_converting_a_clean_chat_again_changes_nothing(steps):
    chat = to_messages(items_from(steps))
    answered = {message.get("tool_call_id") for message in chat.messages}
    for message in chat.messages:  # a clean chat: without the calls that were never answered
        if "tool_calls" in message:
            message["tool_calls"] = [each for each in message["tool_calls"] if each["id"] in answered]
    clean = [message for message in chat.messages if message["content"] or message.get("tool_calls") or message["role"] == "tool"]
    clean = [{name: value for name, value in message.items() if name != "tool_calls" or value} for message in clean]
    once = to_messages(items_of(clean))
    twice = to_messages(items_of(once.messages))
    assert not once.damage and not twice.damage
    assert twice.messages == once.messages
    assert pairs(once.messages) == pairs(clean)
