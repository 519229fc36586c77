"""Repair: which result belongs to which call, and what is done about each kind of damage."""

import copy
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_pipeline.sessions import repair
from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.damage import (
    DAMAGE_KINDS,
    DEFAULT_REPAIR_POLICY,
    RepairPolicyError,
    find_breaking_kind,
    make_repair_policy,
)
from agent_pipeline.sessions.items import Chat
from agent_pipeline.sessions.json_text import MAX_DEPTH, repair_arguments
from agent_pipeline.sessions.repair import repair_messages
from agent_pipeline.sessions.session import Message, dump_canonical_json
from agent_pipeline_tests.stores import call, result, says, user


def roles(messages: list[Message]) -> str:
    return " ".join(message["role"] for message in messages)


def fixed(items: list[Any], **policy: Any) -> Chat:
    """Items as a repaired chat, with both counts together; the session's end is no matter of most of these tests."""
    chat = read_chat(items)
    found = repair_messages(chat.messages, chat.reasoning, DEFAULT_REPAIR_POLICY | policy)
    damage = chat.damage + found.damage
    for kind in {"trailing_user", "trailing_tool"} - set(policy):
        damage.pop(kind, None)
    return Chat(found.messages, found.reasoning, damage, chat.skipped + found.skipped)


def pairs(messages: list[Message]) -> list[tuple[str, str | None]]:
    """(name, result) of every call in order; asserts that each result follows the one message that made its call."""
    found = []
    expected: dict[str, str] = {}
    for message in messages:
        if message["role"] == "tool":
            assert message["tool_call_id"] in expected, (
                "a result before its call, or a second one for the same call"
            )
            found.append((expected.pop(message["tool_call_id"]), message["content"]))
            continue
        found += [(name, None) for name in expected.values()]
        expected = {each["id"]: each["function"]["name"] for each in message.get("tool_calls", ())}
    return found + [(name, None) for name in expected.values()]


DEEP = ['{"x":' + "[" * depth + "]" * depth + "}" for depth in (MAX_DEPTH + 1, 5_000, 100_000)]


# Arguments


@pytest.mark.parametrize(
    ("raw", "expected", "damage"),
    [
        ('{ "a":1 }', '{ "a":1 }', {}),
        ("", "{}", {}),
        (json.dumps('{"a": 1}'), '{"a": 1}', {"double_encoded_arguments": 1}),
        (json.dumps(json.dumps({"a": 1})), '{"a": 1}', {"double_encoded_arguments": 1}),
        ("[1]", "[1]", {"invalid_arguments": 1}),
        ('{"a": 1', '{"a": 1', {"invalid_arguments": 1}),
        ('{"a": NaN}', '{"a": NaN}', {"invalid_arguments": 1}),
        ('{"a": 1e999}', '{"a": 1e999}', {"invalid_arguments": 1}),
        ('{"a": Infinity}', '{"a": Infinity}', {"invalid_arguments": 1}),
        (r'{"a": "\ud83d"}', '{"a": "\ufffd"}', {"invalid_unicode": 1}),
        *((raw, raw, {"invalid_arguments": 1}) for raw in ("1" * 5000, *DEEP)),
    ],
)
def test_arguments_become_the_json_of_one_object_or_are_counted(raw, expected, damage):
    counted: Counter[str] = Counter()
    assert repair_arguments(raw, counted) == expected
    assert +counted == damage


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.one_of(st.integers(), st.text(st.characters(codec="utf-8")), st.none()),
    )
)
def test_arguments_that_are_well_keep_their_value_in_any_form(value):
    for raw in (json.dumps(value), json.dumps(json.dumps(value))):
        damage: Counter[str] = Counter()
        assert json.loads(repair_arguments(raw, damage)) == value
        assert not damage["invalid_arguments"]


# Pairing


@pytest.mark.parametrize(
    ("items", "found", "damage"),
    [
        (
            [call("f", "1"), call("g", "2"), result("y", "2"), result("x", "1")],
            [("f", "x"), ("g", "y")],
            {},
        ),
        (
            [call("f", ""), call("g", None), result("x", ""), result("y")],
            [("f", "x"), ("g", "y")],
            {"empty_call_id": 4},
        ),
        # A result that names its call goes before one that names none.
        (
            [call("f", "1"), call("g", ""), result("y", ""), result("x", "1")],
            [("f", "x"), ("g", "y")],
            {"empty_call_id": 2},
        ),
        # No result answers a call of another turn, or one that comes after it.
        (
            [call("f", "1"), user("b"), call("f", "1"), result("second", "1")],
            [("f", None), ("f", "second")],
            {"reused_call_id": 1, "unanswered_call": 1},
        ),
        (
            [result("x", "1"), call("f", "1")],
            [("f", None)],
            {"orphan_output": 1, "unanswered_call": 1},
        ),
        ([call("f", "1"), result("x", "2")], [("f", "x")], {"mismatched_call_id": 1}),
    ],
)
def test_a_result_answers_the_open_call_of_its_turn_that_it_names_else_the_oldest(
    items, found, damage
):
    chat = fixed([user("a"), *items])
    assert pairs(chat.messages) == found
    assert chat.damage == damage


def test_a_made_up_id_is_never_one_that_another_call_has():
    chat = fixed(
        [
            user("a"),
            call("f", "1"),
            call("g", "1"),
            call("h", "1_2"),
            call("i", ""),
            call("j", "call_4"),
        ]
    )
    ids = [each["id"] for each in chat.messages[1]["tool_calls"]]
    assert len(set(ids)) == 5
    assert chat.damage == {"reused_call_id": 1, "empty_call_id": 1, "unanswered_call": 5}


def test_five_thousand_calls_in_one_turn_take_no_longer_than_they_should():
    items = [item for number in range(5000) for item in (call("f", ""), result(str(number), ""))]
    chat = fixed([user("a"), *items])
    assert [content for _, content in pairs(chat.messages)] == [
        str(number) for number in range(5000)
    ]


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
            items.append(
                {"type": "reasoning"}
                if kind == "reasoning"
                else {"role": kind, "content": value and f"{value} {number}"}
            )
    return items


@given(STEPS)
@settings(max_examples=200)
def test_whatever_the_ids_no_call_and_no_result_is_lost_uncounted(steps):
    items = items_from(steps)
    chat = fixed(items)
    made = [item["name"] for item in items if item.get("type") == "function_call"]
    given_results = [item["output"] for item in items if item.get("type") == "function_call_output"]
    found = pairs(chat.messages)
    placed = [content for _, content in found if content is not None]
    assert sorted(name for name, _ in found) == sorted(made)
    assert len(set(placed)) == len(placed) and set(placed) <= set(given_results), (
        "a result answers one call at most"
    )
    assert chat.damage["orphan_output"] == len(given_results) - len(placed)
    assert chat.damage["unanswered_call"] == len(made) - len(placed)
    order = {
        item.get("name") or item.get("output"): place
        for place, item in enumerate(items)
        if "type" in item
    }
    assert all(order[name] < order[content] for name, content in found if content is not None), (
        "no result is older than its call"
    )
    ids = [each["id"] for message in chat.messages for each in message.get("tool_calls", ())]
    assert len(set(ids)) == len(ids) and all(ids)


@given(STEPS)
@settings(max_examples=200)
def test_words_keep_their_order_and_none_is_lost(steps):
    items = items_from(steps)
    said = [item["content"] for item in items if "role" in item and item["content"]]
    chat = fixed(items)
    assert [
        message["content"]
        for message in chat.messages
        if message["role"] != "tool" and message["content"]
    ] == said
    empty = [
        message
        for message in read_chat(items).messages
        if not message["content"] and message["role"] != "tool"
    ]
    assert chat.damage["empty_message"] == sum("tool_calls" not in message for message in empty)
    assert chat.skipped["reasoning"] == sum(kind == "reasoning" for kind, _ in steps)


# Policies

REPLAY = [call("f", "1"), result("x", "1")]
SAID = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
DAMAGED: dict[str, list[Any]] = {
    "invalid_arguments": [
        user("a"),
        says("b"),
        user("c"),
        call("f", "1", "{"),
        result("x", "1"),
        says("d"),
    ],
    "orphan_output": [user("a"), says("b"), user("c"), result("x", "1"), says("d")],
    "unanswered_call": [user("a"), says("b"), user("c"), call("f", "1"), says("d")],
    "mismatched_call_id": [
        user("a"),
        says("b"),
        user("c"),
        call("f", "1"),
        result("x", "2"),
        says("d"),
    ],
    "empty_call_id": [user("a"), says("b"), user("c"), call("f", ""), result("x", "1"), says("d")],
    "reused_call_id": [
        user("a"),
        call("f", "1"),
        result("x", "1"),
        says("b"),
        user("c"),
        call("g", "1"),
        result("x", "1"),
        says("d"),
    ],
    "double_encoded_arguments": [
        user("a"),
        says("b"),
        user("c"),
        call("f", "1", '"{}"'),
        result("x", "1"),
        says("d"),
    ],
    "invalid_unicode": [user("a"), says("b"), user("c"), says("\ud800")],
    "empty_message": [
        user("a"),
        says("b"),
        user("c"),
        call("f", "1"),
        result("x", "1"),
        says(" "),
        says("d"),
    ],
    "call_said_twice": [
        user("a"),
        says(f"I look.\n{SAID}"),
        call("f", "1", '{"a": 1}'),
        result("x", "1"),
        says("d"),
    ],
    "duplicated_history": [user("a"), says("b"), user("c"), *REPLAY, *REPLAY, says("d")],
    "trailing_user": [user("a"), says("b"), user("c")],
    "trailing_tool": [user("a"), says("b"), user("c"), *REPLAY],
}


def test_every_kind_that_repair_finds_is_tried_here():
    of_readers = {
        *("unread", "torn_record", "cut_text", "missing_media", "several_speakers", "cut_message"),
    }
    assert (
        set(DAMAGE_KINDS) - set(DAMAGED)
        == {"invalid_item", "invalid_context", "invalid_tools"} | of_readers
    )
    assert all(each.default in each.allowed for each in DAMAGE_KINDS.values())


@pytest.mark.parametrize(
    ("kind", "action"),
    [(kind, action) for kind in DAMAGED for action in DAMAGE_KINDS[kind].allowed],
)
def test_each_kind_is_counted_and_treated_as_the_policy_says(kind, action):
    chat = fixed(DAMAGED[kind], **{kind: action})
    assert chat.damage[kind] >= 1
    assert find_breaking_kind(chat.damage, DEFAULT_REPAIR_POLICY | {kind: action}) == (
        kind if action == "drop_session" else None
    )
    if action == "drop_turn":
        assert roles(chat.messages) == roles(
            fixed(
                DAMAGED[kind][: [each.get("content") for each in DAMAGED[kind]].index("c")]
            ).messages
        )
        assert chat.skipped["message:drop_turn"] > 0
    again = repair_messages(chat.messages, chat.reasoning, DEFAULT_REPAIR_POLICY | {kind: action})
    assert again.messages == chat.messages
    assert kind not in again.damage or action in ("keep", "drop_session"), (
        "what was repaired is met no more"
    )


@pytest.mark.parametrize(
    ("kind", "left"),
    [
        ("invalid_arguments", "user assistant user assistant"),
        ("orphan_output", "user assistant user assistant"),
        ("unanswered_call", "user assistant user assistant"),
        ("mismatched_call_id", "user assistant user assistant tool assistant"),
        ("empty_message", "user assistant user assistant tool assistant"),
        ("call_said_twice", "user assistant tool assistant"),
        ("duplicated_history", "user assistant user assistant tool assistant"),
        ("trailing_user", "user assistant"),
        ("trailing_tool", "user assistant user"),
    ],
)
def test_repair_leaves_a_sound_rest(kind, left):
    assert roles(fixed(DAMAGED[kind], **{kind: "repair"}).messages) == left


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (SAID, ""),
        (f"I look.\n{SAID}", "I look."),
        (f"{SAID}\n{SAID.replace('1', '2')}", SAID.replace("1", "2")),
        ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', ""),
        ("I look.\n<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call>", "I look."),
        ('So: <function=f>{"a": 1}</function>', "So:"),
        ('<function=f>{"a": 1}</function> <function=g></function>', ""),
        (f"I look.\n\n```\n{SAID}\n```", "I look."),
        (f"```py\na\n```\n\n```json\n{SAID}```\nThen:", "```py\na\n```\n\n\nThen:"),
        (f"```\na\n```\n{SAID}\n```\nb\n```", "```\na\n```\n\n```\nb\n```"),
        *[(other, None) for other in (
            SAID.replace("f", "h"), SAID.replace("1", "true"), SAID.replace("1", '"1"'), SAID.replace("1}", '1, "b": 2}'), SAID[:-12],
            "<function=f>\n<parameter=a>\n2\n</parameter>\n</function>", "<function=f></function>", '{"name": "f", "arguments": {"a": 1}}',
            "<function=f>", "<tool_call>{</tool_call>", "<tool_call>[]</tool_call>", "<tool_call>{}</tool_call>",
        )],
    ],
)  # fmt: skip
def test_the_raw_text_of_a_call_is_taken_out_only_beside_the_very_same_call(text, left):
    calls = [call("f", "1", '{"a": 1}'), call("g", "2"), result("x", "1"), result("y", "2")]
    chat = fixed([user("a"), says(text), *calls, says("d")])
    assert chat.messages[1]["content"] == (text if left is None else left)
    assert chat.damage == ({} if left is None else {"call_said_twice": 1})
    alone = read_chat([user("a"), says(text)])
    assert alone.damage or "tool_calls" in alone.messages[-1], (
        "the words of a call alone are a call, or damage, and never what was said"
    )


def test_many_beginnings_of_calls_take_no_long_time():
    text = "<tool_call>{<function=f>" * 20_000
    assert (
        fixed([user("a"), says(text), call("f", "1"), result("x", "1"), says("d")]).messages[1][
            "content"
        ]
        == text
    )


def test_a_policy_for_no_kind_or_no_action_is_a_sentence():
    with pytest.raises(RepairPolicyError) as unknown_kind:
        make_repair_policy({"trailing_users": "repair"})
    assert (unknown_kind.value.kind, unknown_kind.value.allowed) == ("trailing_users", ())
    with pytest.raises(RepairPolicyError) as unknown_action:
        make_repair_policy({"orphan_output": "keep"})
    assert unknown_action.value.allowed == ("drop_session", "drop_turn", "repair")
    assert make_repair_policy({"trailing_user": "repair"}) == DEFAULT_REPAIR_POLICY | {
        "trailing_user": "repair"
    }


def test_a_session_is_dropped_by_the_first_kind_that_drops_it():
    assert (
        find_breaking_kind({"unanswered_call": 1, "invalid_item": 2, "empty_message": 1})
        == "invalid_item"
    )
    assert (
        find_breaking_kind(
            {
                "reused_call_id": 3,
                "empty_call_id": 1,
                "double_encoded_arguments": 1,
                "invalid_unicode": 1,
            }
        )
        is None
    )
    assert {kind for kind, action in DEFAULT_REPAIR_POLICY.items() if action == "drop_session"} == {
        "invalid_item", "unread", "torn_record", "cut_text", "missing_media", "several_speakers",
        "invalid_context", "invalid_arguments", "orphan_output", "unanswered_call", "mismatched_call_id"
    }  # fmt: skip


# Replays


def test_a_history_that_begins_again_with_each_run_is_one_history():
    one = [user("a"), says("b")]
    two = [*one, user("c"), call("f", "1"), result("x", "1"), says("d")]
    chat = fixed([{"role": "system", "content": "rule"}, *one, *two, *two, user("e"), says("f")])
    assert (
        roles(chat.messages) == "system user assistant user assistant tool assistant user assistant"
    )
    assert chat.damage == {"duplicated_history": 2}


def test_a_block_that_was_replayed_stands_once_however_often_it_was():
    turn = [user("c"), call("f", "1"), result("x", "1"), says("d")]
    chat = fixed([user("a"), says("b"), *turn, *turn, *turn, user("e"), says("f")])
    assert roles(chat.messages) == "user assistant user assistant tool assistant user assistant"
    assert chat.damage == {"duplicated_history": 2}


@pytest.mark.parametrize("ids", [("1", "2"), ("", ""), ("f", "f")])
def test_a_call_that_is_made_twice_is_no_replay(ids):
    chat = fixed(
        [
            user("a"),
            *(item for each in ids for item in (call("f", each), result("x", each))),
            says("b"),
        ]
    )
    assert [name for name, _ in pairs(chat.messages)] == ["f", "f"]
    assert not chat.damage["duplicated_history"]


def test_an_agent_that_is_asked_the_same_again_and_calls_without_ids_is_no_replay():
    again = [user("a"), call("f", ""), result("x", "")]
    assert (
        roles(fixed([*again, *again, *again, says("b")]).messages)
        == "user assistant tool user assistant tool user assistant tool assistant"
    )


def test_words_that_are_said_twice_are_no_replay():
    items = [user("a"), says("b"), user("yes"), says("ok"), user("yes"), says("ok")]
    assert roles(fixed(items).messages) == "user assistant user assistant user assistant"


# What was thought


def test_what_was_thought_follows_its_message():
    thought = {"type": "reasoning", "text": "why"}
    chat = fixed(
        [
            user(" "),
            user("a"),
            result("x", "9"),
            thought,
            says("b"),
            call("f", "1"),
            says("c"),
            result("y", "1"),
            says("d"),
        ]
    )
    (found,) = chat.reasoning
    assert chat.messages[found["message"]]["content"] == "b"


def test_what_was_thought_before_a_message_that_is_gone_goes_to_the_next_or_is_counted():
    thought = {"type": "reasoning", "text": "why"}
    items = [
        user("a"),
        says("b"),
        user("c"),
        thought,
        call("f", "1"),
        says("d"),
        user("e"),
        thought,
        call("f", "2"),
    ]
    chat = fixed(items, unanswered_call="repair")
    assert [chat.messages[each["message"]]["content"] for each in chat.reasoning] == ["d"]
    assert chat.skipped == {"reasoning": 1}


# Properties


ANYTHING = st.one_of(
    st.sampled_from(["a", "b", " ", "", "\ud800"]).map(user),
    st.sampled_from(["a", "b", "", "x"]).map(says),
    st.sampled_from(["rule", ""]).map(lambda text: {"role": "system", "content": text}),
    st.builds(
        call,
        st.sampled_from("fg"),
        IDS,
        st.sampled_from(["{}", '{"a": 1}', "{", '"{}"', "", r'{"a": "\ud83d"}']),
    ),
    st.builds(result, st.sampled_from(["x", "y", ""]), IDS),
    st.just({"type": "reasoning", "text": "why"}),
    st.none(),
)
HISTORIES = st.one_of(
    st.lists(ANYTHING, max_size=20),
    st.lists(ANYTHING, min_size=2, max_size=5).flatmap(
        lambda start: st.lists(ANYTHING, max_size=4).map(lambda rest: [*start, *start, *rest])
    ),
)
POLICIES = st.fixed_dictionaries(
    {kind: st.sampled_from(each.allowed) for kind, each in DAMAGE_KINDS.items()}
)


@given(HISTORIES, st.one_of(st.just(DEFAULT_REPAIR_POLICY), POLICIES))
@settings(max_examples=400)
def test_repairing_again_changes_nothing(items, policy):
    chat = read_chat(items)
    before = copy.deepcopy(chat)
    once = repair_messages(chat.messages, chat.reasoning, policy)
    assert chat == before, "what is given is left as it is"
    twice = repair_messages(once.messages, once.reasoning, policy)
    assert twice.messages == once.messages and twice.reasoning == once.reasoning
    assert not [kind for kind in twice.damage if policy[kind] in ("repair", "drop_turn")]
    assert (
        len(chat.reasoning) == len(once.reasoning) + once.skipped["reasoning"]
        or once.damage["duplicated_history"]
    )
    assert all(once.messages[each["message"]]["role"] == "assistant" for each in once.reasoning)


@given(STEPS)
@settings(max_examples=150)
def test_a_sound_session_passes_unchanged_to_the_byte(steps):
    sound = fixed(
        items_from(steps),
        **dict.fromkeys(("unanswered_call", "trailing_user", "trailing_tool"), "repair"),
    )
    before = dump_canonical_json(sound.messages)
    found = repair_messages(sound.messages, sound.reasoning)
    assert found.messages is sound.messages
    assert dump_canonical_json(found.messages) == before
    assert not found.damage and not found.skipped


@given(HISTORIES, st.one_of(st.just(DEFAULT_REPAIR_POLICY), POLICIES))
@settings(max_examples=150)
def test_a_pass_changes_nothing_of_what_is_sound(items, policy):
    chat = read_chat(items)
    result = repair_messages(chat.messages, [], policy)
    if result.messages is chat.messages:
        full = repair._RepairPass(chat.messages, [], policy).run()
        assert (full.messages, full.damage) == (chat.messages, result.damage)
