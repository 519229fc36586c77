"""Items to messages: the words, the calls and the results in the order of the record."""

import json
from typing import Any

import pytest

from agent_pipeline.sessions.chat import read_chat, read_text
from agent_pipeline.sessions.session import Message
from agent_pipeline_tests.stores import call, result, says, user


def roles(messages: list[Message]) -> str:
    return " ".join(message["role"] for message in messages)


# Words


def test_parts_are_joined_in_order_and_what_is_no_text_is_counted():
    parts = [
        {"type": "input_text", "text": "a"},
        "b",
        {"type": "input_image", "image_url": "x"},
        {"type": "output_text", "text": "c"},
        5,
    ]
    assert read_text(parts) == ("a\nb\n[image]\nc", ("image", "part"))


@pytest.mark.parametrize("before", ["", "I look.\n"])
def test_calls_that_smolagents_tells_as_words_are_damage_and_not_what_a_model_said(before):
    told = (
        before
        + "Calling tools:\n[{'id': 'c1', 'type': 'function', 'function': {'name': 'find', 'arguments': {}}}]"
    )
    chat = read_chat(
        [
            user("hi"),
            {"role": "assistant", "content": [{"type": "text", "text": told}]},
            user("Observation:\nhere"),
        ]
    )
    assert (roles(chat.messages), chat.damage) == ("user assistant user", {"unread": 1})
    assert not read_chat([user(told), says("Calling tools: none")]).damage, "a person may quote it"


def test_what_an_agent_of_autogen_thought_beside_calls_is_what_it_said_and_what_is_no_result_is_counted():
    asked = {
        "type": "AssistantMessage",
        "content": [{"id": "c1", "name": "find", "arguments": "{}"}],
        "thought": "I look.",
        "source": "a",
    }
    found = {
        "type": "FunctionExecutionResultMessage",
        "content": [{"content": "here", "name": "find", "call_id": "c1"}, "x"],
    }
    told = {"type": "AssistantMessage", "content": "Here.", "thought": "Be brief.", "source": "a"}
    chat = read_chat(
        [
            {"type": "SystemMessage", "content": "Help."},
            asked,
            found,
            told,
            {"type": "UserMessage", "content": ["hi"]},
        ]
    )
    assert [message["content"] for message in chat.messages] == [
        "Help.",
        "I look.",
        "here",
        "Here.",
        "hi",
    ]
    assert (chat.messages[2]["tool_call_id"], chat.reasoning, chat.damage) == (
        "c1",
        [{"message": 3, "text": "Be brief."}],
        {"invalid_item": 1},
    )


@pytest.mark.parametrize(
    ("role", "text"),
    [("user", "<cwd>a</cwd>\nMend it. \n Now."), ("assistant", "<cwd>a</cwd>Mend it. \n Now.")],
)
def test_parts_are_paragraphs_and_a_models_own_parts_go_on(role, text):
    parts = [
        {"type": "text", "text": each} for each in ("<cwd>a</cwd>", "Mend it. ", "", "\n Now.")
    ]
    assert read_chat([{"role": role, "content": parts}]).messages[0]["content"] == text


@pytest.mark.parametrize(
    ("content", "unread"),
    [
        (
            [{"type": ["text"], "texts": "x"}, {"type": "text", "text": None}, "hi"],
            {"unread:part": 1, "unread:part text": 1},
        ),
        ({"type": "text", "text": "hi"}, {}),
    ],
)
def test_a_part_that_is_no_text_is_counted_and_one_without_its_list_is_its_text(content, unread):
    chat = read_chat([{"role": "user", "content": content}])
    assert (chat.messages, chat.skipped, chat.damage["unread"]) == (
        [user("hi")],
        unread,
        len(unread),
    )


def test_developer_messages_are_system_messages_and_empty_ones_stay_for_repair_to_count():
    chat = read_chat(
        [
            {"role": "developer", "content": "be kind"},
            user(" \n"),
            user("hi"),
            {"role": "assistant", "content": None},
        ]
    )
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
    chat = read_chat([user("hi"), item])
    assert chat.messages == [user("hi")]
    assert chat.damage == {"invalid_item": 1}


def test_other_items_are_damage_unless_they_are_known_to_be_harmless():
    listed = {"type": "mcp_list_tools", "tools": [{"name": "f", "input_schema": {}}]}
    chat = read_chat(
        [
            {"type": "reasoning", "summary": []},
            user("hi"),
            {"type": "web_search_call"},
            {"type": "reasoning"},
            listed,
        ]
    )
    assert chat.skipped == {"reasoning": 2, "unread:web_search_call": 1, "mcp_list_tools": 1}
    assert chat.damage == {"unread": 1}


def test_an_item_nested_deeper_than_anybody_can_walk_is_invalid_and_costs_only_its_session():
    deep: Any = 1
    for _ in range(600):
        deep = [deep]
    chat = read_chat([user("a"), call("f", "1"), result({"x": deep}, "1")])
    assert chat.damage == {"invalid_item": 1}
    assert roles(chat.messages) == "user assistant"


# Outputs


CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{}"}}],
}


def of_ai_sdk(**output: Any) -> dict[str, Any]:
    return {
        "role": "tool",
        "content": [{"type": "tool-result", "toolCallId": "c1", "output": output}],
    }


def of_pydantic(kind: str, **more: str) -> dict[str, Any]:
    return {
        "kind": "request",
        "parts": [
            {"part_kind": kind, "tool_name": "f", "tool_call_id": "c1", "content": "gone"} | more
        ],
    }


OF_LANGCHAIN = {"type": "tool", "tool_call_id": "c1", "content": "gone", "status": "error"}


@pytest.mark.parametrize(
    "told",
    [
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "gone", "is_error": True}]},
        {"type": "function_call_output", "call_id": "c1", "output": "gone", "is_error": True},
        {"type": "tool", "data": OF_LANGCHAIN},
        {"lc": 1, "id": ["x", "ToolMessage"], "kwargs": OF_LANGCHAIN},
        {"role": "user", "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "gone"}], "status": "error"}}]},
        of_ai_sdk(type="error-text", value="gone"),
        of_ai_sdk(type="error-json", value="gone"),
        of_ai_sdk(type="execution-denied", reason="gone"),
        {"role": "assistant", "content": [{"type": "tool-error", "toolCallId": "c1", "toolName": "f", "input": {}, "error": "gone"}]},
        of_pydantic("retry-prompt"),
        of_pydantic("tool-return", outcome="denied"),
        {"type": "FunctionExecutionResultMessage", "content": [{"content": "gone", "call_id": "c1", "is_error": True}]},
        {"role": "tool", "tool_call_id": "c1", "content": "gone", "error": True},
        {"role": "tool", "tool_call_id": "c1", "content": "", "error": {"type": "timeout", "message": "gone"}},
    ],
    ids=["anthropic", "item", "langchain", "langchain dumps", "bedrock", "ai sdk text", "ai sdk json", "ai sdk denied", "ai sdk error",
         "pydantic-ai retry", "pydantic-ai denied", "autogen", "tau2", "inspect"],
)  # fmt: skip
def test_a_result_that_its_own_record_calls_an_error_is_one_whatever_its_words(told):
    chat = read_chat([user("a"), CALLED, told])
    assert (
        chat.messages[-1]
        == {"role": "tool", "tool_call_id": "c1", "content": "gone", "is_error": True}
        and not chat.damage
    )


@pytest.mark.parametrize(
    "told",
    [
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "here", "is_error": False}
            ],
        },
        {"type": "tool", "data": {"tool_call_id": "c1", "content": "here", "status": "success"}},
        of_ai_sdk(type="text", value="here"),
        of_pydantic("tool-return", content="here", outcome="success"),
        {"role": "tool", "tool_call_id": "c1", "content": "here", "error": None},
    ],
)
def test_a_result_that_its_record_calls_none_is_as_it_was(told):
    assert read_chat([user("a"), CALLED, told]).messages[-1] == {
        "role": "tool",
        "tool_call_id": "c1",
        "content": "here",
    }


@pytest.mark.parametrize(
    ("output", "content"),
    [
        ("text", "text"),
        (None, ""),
        ({"a": 1}, '{"a": 1}'),
        ([{"type": "input_text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"),
        ([{"flight": "HAT1"}, {"flight": "HAT2"}], '[{"flight": "HAT1"}, {"flight": "HAT2"}]'),
        ([{"type": "certificate", "amount": 5}], '[{"type": "certificate", "amount": 5}]'),
        ([1, 2], "[1, 2]"),
        ([], "[]"),
        (5, "5"),
        (False, "false"),
    ],
)
def test_an_output_is_text_parts_or_json_and_never_lost(output, content):
    chat = read_chat([user("a"), call("f", "1"), result(output, "1")])
    assert chat.messages[-1] == {"role": "tool", "tool_call_id": "1", "content": content}
    assert not chat.damage and not chat.skipped


# Calls and messages


def test_calls_join_the_words_before_them_and_one_another():
    chat = read_chat(
        [
            user("a"),
            says("Let me see."),
            call("f", "1"),
            {"type": "reasoning"},
            call("g", "2"),
            result("x", "1"),
            result("y", "2"),
        ]
    )
    assert roles(chat.messages) == "user assistant tool tool"
    assert chat.messages[1]["content"] == "Let me see."
    assert [each["function"]["name"] for each in chat.messages[1]["tool_calls"]] == ["f", "g"]


@pytest.mark.parametrize("nothing", [None, "", []])
def test_a_message_of_calls_does_not_join_words_that_were_a_message_of_their_own(nothing):
    calls = [
        {"id": each, "type": "function", "function": {"name": "find", "arguments": "{}"}}
        for each in ("c1", "c2")
    ]
    asked = [{"role": "assistant", "content": nothing, "tool_calls": [each]} for each in calls]
    chat = read_chat([user("Which tools?"), {"role": "assistant", "content": "find"}, *asked])
    assert [(each["content"], len(each.get("tool_calls", ()))) for each in chat.messages[1:]] == [
        ("find", 0),
        ("", 2),
    ]


def test_a_call_does_not_join_words_from_before_a_message_that_was_only_an_image():
    picture = {"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}
    chat = read_chat(
        [user("a"), says("Show me."), picture, call("look", "1"), result("a cat", "1")]
    )
    assert roles(chat.messages) == "user assistant user assistant tool"
    assert "tool_calls" not in chat.messages[1]
    assert (chat.damage, chat.skipped) == ({"missing_media": 1}, {"media:image": 1}), (
        "an answer to what nobody sees is not trained"
    )


def test_results_stay_where_they_are_and_ids_as_they_are():
    chat = read_chat(
        [user("a"), result("x", "1"), call("f", 7), call("g"), says("Wait."), result("y")]
    )
    assert roles(chat.messages) == "user tool assistant assistant tool"
    assert [each["id"] for each in chat.messages[2]["tool_calls"]] == ["7", ""]
    assert [message["tool_call_id"] for message in chat.messages if message["role"] == "tool"] == [
        "1",
        "",
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"a":1', '{"a":1'),
        ({"a": "ü"}, '{"a": "ü"}'),
        (None, ""),
        ([1], "[1]"),
        ({"a": float("inf")}, '{"a": Infinity}'),
    ],
)
def test_arguments_are_a_text_whatever_they_were(arguments, text):
    chat = read_chat([user("a"), call("f", "1", arguments)])
    assert chat.messages[1]["tool_calls"][0]["function"]["arguments"] == text


# Reasoning


def test_what_was_thought_goes_to_the_assistants_message_that_follows():
    thought = {
        "type": "reasoning",
        "summary": [
            {"type": "summary_text", "text": "First"},
            {"type": "summary_text", "text": "then"},
        ],
    }
    more = {
        "type": "reasoning",
        "content": [{"type": "reasoning_text", "text": "all of it"}],
        "summary": [{"text": "short"}],
    }
    chat = read_chat(
        [
            user("a"),
            thought,
            says("Hm."),
            more,
            call("f", "1"),
            {"type": "reasoning", "text": "why"},
            call("g", "2"),
            result("x", "1"),
        ]
    )
    assert chat.reasoning == [
        {"message": 1, "text": "First\n\nthen"}, {"message": 1, "text": "all of it"}, {"message": 1, "text": "why"}
    ]  # fmt: skip
    assert roles(chat.messages) == "user assistant tool"
    assert not chat.skipped


def test_what_was_thought_before_nothing_or_is_encrypted_is_counted():
    chat = read_chat(
        [
            user("a"),
            {"type": "reasoning", "encrypted_content": "x"},
            says("b"),
            {"type": "reasoning", "text": "what now"},
        ]
    )
    assert chat.reasoning == []
    assert chat.skipped == {"reasoning": 2}


def test_what_was_thought_before_an_empty_message_waits_for_words():
    chat = read_chat(
        [
            user("a"),
            says("b"),
            {"type": "reasoning", "text": "c"},
            says(""),
            call("f", "1"),
            result("x", "1"),
            says("d"),
        ]
    )
    assert roles(chat.messages) == "user assistant assistant tool assistant"
    assert chat.reasoning == [{"message": 1, "text": "c"}]


# Spellings

WORDS = [user("Where?"), {"role": "assistant", "content": "In Ulm."}]
FUNCTION = {"name": "find", "arguments": '{"order": 7}'}
SPELLINGS: dict[str, list[Any]] = {
    "openai": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": FUNCTION}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ],
    "openai legacy": [
        {"role": "assistant", "content": None, "function_call": FUNCTION},
        {"role": "function", "name": "find", "content": "ok"},
    ],
    "responses": [
        {"type": "function_call", "call_id": "c1", "id": "fc_1", **FUNCTION},
        result("ok", "c1"),
    ],
    "responses parts": [
        call("find", "c1", {"order": 7}),
        result([{"type": "output_text", "text": "ok"}], "c1"),
    ],
    "anthropic": [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "find", "input": {"order": 7}}],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "c1",
                    "content": [{"type": "text", "text": "ok"}],
                }
            ],
        },
    ],
    "gemini": [
        {"role": "model", "parts": [{"functionCall": {"name": "find", "args": {"order": 7}}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "find", "response": "ok"}}]},
    ],
    "bedrock": [
        {
            "role": "assistant",
            "content": [{"toolUse": {"toolUseId": "c1", "name": "find", "input": {"order": 7}}}],
        },
        {
            "role": "user",
            "content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "ok"}]}}],
        },
    ],
    "langchain": [
        {
            "type": "ai",
            "content": "",
            "tool_calls": [{"name": "find", "args": {"order": 7}, "id": "c1", "type": "tool_call"}],
        },
        {"type": "tool", "content": "ok", "tool_call_id": "c1"},
    ],
    "ai sdk": [
        {
            "role": "assistant",
            "content": [
                {"type": "tool-call", "toolCallId": "c1", "toolName": "find", "input": {"order": 7}}
            ],
        },
        {
            "role": "tool",
            "content": [
                {"type": "tool-result", "toolCallId": "c1", "toolName": "find", "result": "ok"}
            ],
        },
    ],
    "opentelemetry": [
        {
            "role": "assistant",
            "parts": [{"type": "tool_call", "id": "c1", "name": "find", "arguments": {"order": 7}}],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "ok"}]},
    ],
    "agentdojo": [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"function": "find", "args": {"order": 7}, "id": "c1"}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "content": "ok"}]},
    ],
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_call_and_its_result_are_read_in_every_spelling(name):
    chat = read_chat([WORDS[0], *SPELLINGS[name], WORDS[1]])
    asked, made, answered, said = chat.messages
    assert [asked, said] == WORDS and not chat.damage and not chat.skipped
    (called,) = made["tool_calls"]
    call_id = "" if name in ("openai legacy", "gemini") else "c1"
    assert made == {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": FUNCTION}],
    }
    assert called["id"] == answered["tool_call_id"] and answered["content"] == "ok"


@pytest.mark.parametrize(
    "words",
    [
        {"role": "assistant", "content": "hi"},
        {"role": "model", "parts": [{"text": "hi"}]},
        {"type": "ai", "content": "hi"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "hi"}],
        },
        {"role": "assistant", "parts": [{"type": "text", "content": "hi"}]},
        {"role": "gpt", "content": [{"text": "hi"}]},
    ],
)
def test_words_are_read_in_every_spelling(words):
    assert read_chat([words]).messages == [{"role": "assistant", "content": "hi"}]


@pytest.mark.parametrize(
    "value",
    [{"type": "file", "text": "x"}, [{"type": "file", "n": 1}, 5], [{"text": "x", "id": 1}]],
)
def test_a_value_of_a_tool_that_looks_like_a_part_is_not_lost(value):
    assert (
        json.loads(read_chat([call("f", "1"), result(value, "1")]).messages[1]["content"]) == value
    )


@pytest.mark.parametrize(
    "content", ["said", [{"type": "text", "text": "said"}]]
)  # decoded as it is, and coerced
def test_a_weight_of_zero_stays_with_the_words_and_the_calls_that_are_not_to_be_trained_on(content):
    call_ = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    spoken = {"role": "assistant", "content": content, "weight": 0}
    called = {"role": "assistant", "content": None, "tool_calls": [call_], "weight": 0}
    chat = [
        user("a"),
        spoken,
        user("b"),
        called,
        result("x", "1") | {"role": "tool", "content": "x"},
        says("end") | {"weight": 1},
    ]
    messages = read_chat(
        [
            {name: value for name, value in each.items() if name not in ("type", "output")}
            for each in chat
        ]
    ).messages
    assert [message.get("weight") for message in messages] == [None, 0, None, 0, None, None]
