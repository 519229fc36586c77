"""Results without an id that name their tool, as Gemini and OpenAI's function messages write them."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.sessions.chat import read_chat
from agent_pipeline.sessions.repair import RepairedChat, repair_messages

TOOLS = ("weather", "clock", "rates", "news")

Spell = Callable[[list[str]], list[dict[str, Any]]]


def gemini_calls(tools: list[str]) -> list[dict[str, Any]]:
    parts = [{"functionCall": {"name": tool, "args": {}}} for tool in tools]
    return [{"role": "model", "parts": parts}]


def gemini_results(tools: list[str]) -> list[dict[str, Any]]:
    parts = [{"functionResponse": {"name": tool, "response": text(tool)}} for tool in tools]
    return [{"role": "user", "parts": parts}]


def chat_calls(tools: list[str], call_id: str | None = None) -> list[dict[str, Any]]:
    calls = [
        {"id": call_id and f"{call_id}{tool}", "function": {"name": tool, "arguments": "{}"}}
        for tool in tools
    ]
    return [{"role": "assistant", "content": None, "tool_calls": calls}]


def function_messages(tools: list[str]) -> list[dict[str, Any]]:
    return [{"role": "function", "name": tool, "content": text(tool)} for tool in tools]


def tool_named_roles(tools: list[str]) -> list[dict[str, Any]]:
    return [{"role": tool, "content": text(tool)} for tool in tools]


def ai_sdk_results(tools: list[str]) -> list[dict[str, Any]]:
    parts = [{"type": "tool-result", "toolName": tool, "result": text(tool)} for tool in tools]
    return [{"role": "tool", "content": parts}]


def otel_results(tools: list[str]) -> list[dict[str, Any]]:
    return [
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "name": tool, "response": text(tool)}],
        }
        for tool in tools
    ]


SPELLINGS: dict[str, tuple[Spell, Spell]] = {
    "gemini": (gemini_calls, gemini_results),
    "function messages": (chat_calls, function_messages),
    "calls with ids": (lambda tools: chat_calls(tools, "c-"), function_messages),
    "langfuse": (chat_calls, tool_named_roles),
    "ai sdk": (chat_calls, ai_sdk_results),
    "opentelemetry": (chat_calls, otel_results),
}


def text(tool: str) -> str:
    return f"result of {tool}"


def repaired(turn: list[dict[str, Any]]) -> RepairedChat:
    history = [{"role": "user", "content": "go"}, *turn, {"role": "assistant", "content": "so"}]
    return repair_messages(read_chat(history).messages)


def pairs(chat: RepairedChat) -> dict[str, str]:
    """The result of each called tool."""
    results = {
        message["tool_call_id"]: message["content"]
        for message in chat.messages
        if message["role"] == "tool"
    }
    return {
        call["function"]["name"]: results[call["id"]]
        for message in chat.messages
        for call in message.get("tool_calls", ())
    }


@pytest.mark.parametrize("name", SPELLINGS)
@given(called=st.permutations(TOOLS), order=st.permutations(range(len(TOOLS))))
def test_named_results_in_any_order(name: str, called: list[str], order: list[int]) -> None:
    """By position, the weather would be twelve o'clock, and no damage would say so."""
    spell_calls, spell_results = SPELLINGS[name]
    chat = repaired([*spell_calls(called), *spell_results([called[index] for index in order])])
    assert pairs(chat) == {tool: text(tool) for tool in TOOLS}
    assert chat.damage.keys() == {"empty_call_id"}
    assert all("name" not in message for message in chat.messages)


def test_calls_of_one_tool() -> None:
    """Calls of the same tool are answered in their order."""
    chat = repaired(
        [
            *chat_calls(["clock", "clock", "news"]),
            *function_messages(["news"]),
            {"role": "function", "name": "clock", "content": "first"},
            {"role": "function", "name": "clock", "content": "second"},
        ]
    )
    assert [m["content"] for m in chat.messages if m["role"] == "tool"] == [
        "first",
        "second",
        text("news"),
    ]


def test_result_of_another_tool() -> None:
    """A result of an offered tool that was not called is damage, if its call is a guess."""
    chat = repaired([*chat_calls(["clock", "rates"]), *function_messages(["news", "weather"])])
    assert chat.damage.keys() == {"empty_call_id"}
    history = read_chat([*chat_calls(["clock", "rates"]), *function_messages(["news", "rates"])])
    offered = repair_messages(history.messages, offered=TOOLS)
    assert not offered.damage["mismatched_call_id"]
    history = read_chat([*chat_calls(["clock", "rates"]), *function_messages(["news", "weather"])])
    assert repair_messages(history.messages, offered=TOOLS).damage["mismatched_call_id"] == 1


def test_result_that_is_recorded_twice() -> None:
    """The second result of one tool is no result of another tool, although only its call is open."""
    chat = repaired([*chat_calls(["clock", "rates"]), *function_messages(["rates", "rates"])])
    assert chat.damage["mismatched_call_id"] == 1


@given(st.lists(st.sampled_from(TOOLS), min_size=1, max_size=4), st.sampled_from(["tool", "bot"]))
def test_name_that_is_no_tool(called: list[str], name: str) -> None:
    """Some logs write a word instead of the tool, so the results are paired by position."""
    results = [{"role": "tool", "name": name, "content": text(tool)} for tool in called]
    chat = repaired([*chat_calls(called), *results])
    assert chat.damage.keys() == {"empty_call_id"}
    assert [m["content"] for m in chat.messages if m["role"] == "tool"] == list(map(text, called))


@given(st.permutations(TOOLS), st.permutations(TOOLS), st.booleans())
def test_namespaces(called: list[str], order: list[str], is_on_result: bool) -> None:
    """A call of `functions.search` is answered by a result of `search`."""
    calls = chat_calls(called if is_on_result else [f"functions.{tool}" for tool in called])
    results = function_messages(order)
    for result in results:
        result["name"] = f"default_api:{result['name']}" if is_on_result else result["name"]
    chat = repaired([*calls, *results])
    assert {name.split(".")[-1]: output for name, output in pairs(chat).items()} == {
        tool: text(tool) for tool in TOOLS
    }
    assert chat.damage.keys() == {"empty_call_id"}


def test_one_name_in_two_namespaces() -> None:
    """A name without its namespace is a guess if two tools have it."""
    tools = ["a.search", "b.search"]
    assert pairs(repaired([*chat_calls(tools), *function_messages(tools[::-1])])) == {
        tool: text(tool) for tool in tools
    }
    chat = repaired([*chat_calls(tools), *function_messages(["search", "search"])])
    assert chat.damage["mismatched_call_id"] == 1


def test_result_without_a_name() -> None:
    """A result without an id and a name answers the oldest call that is left."""
    chat = repaired(
        [
            *chat_calls(["clock", "news"]),
            {"role": "tool", "content": "unnamed"},
            *function_messages(["clock"]),
        ]
    )
    assert pairs(chat) == {"clock": text("clock"), "news": "unnamed"}
