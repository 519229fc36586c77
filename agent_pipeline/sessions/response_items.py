"""The items of OpenAI's Responses API, by their type: calls and results of functions, and of the tools that OpenAI hosts.

A hosted call whose item holds its result becomes a call and a result. If the item holds no result (a web search, say), the answer
that follows rests on something that nobody recorded: the item is `unread`, which is damage.
"""

from collections.abc import Callable
from typing import Any

from agent_pipeline.sessions.evidence import is_cut
from agent_pipeline.sessions.items import Item, mark_unread
from agent_pipeline.sessions.part_fields import is_marked_failed, pick_first, read_id
from agent_pipeline.sessions.parts import read_call, read_result

HARMLESS_ITEMS = {"mcp_list_tools", "ghost_snapshot"}
"""Items that say nothing that the agent, its tools or a user said: which tools a server has, a copy of the working folder."""

_CALL_ID = ("call_id", "id")


def read_response_item(item: dict[str, Any], kind: str) -> tuple[Item, ...] | None:
    """Return what an item says; `None` if its type is not one of an item."""
    if reader := _READERS.get(kind):
        return reader(item)
    return (Item("harmless", name=kind),) if kind in HARMLESS_ITEMS else None


def _call(item: dict[str, Any]) -> tuple[Item, ...]:
    return (read_call(item, item.get("weight") != 0, is_cut(item)),)


def _result(item: dict[str, Any]) -> tuple[Item, ...]:
    return (read_result(read_id(item, *_CALL_ID), item.get("output"), is_marked_failed(item)),)


def _named_call(name: str, *fields: str) -> Callable[[dict[str, Any]], tuple[Item, ...]]:
    """Return a reader of calls that are named by their item's type; the arguments are the first of `fields` that is there."""

    def read(item: dict[str, Any]) -> tuple[Item, ...]:
        return _call(item | {"name": name, "arguments": pick_first(item, fields) or {}})

    return read


def _custom_call(item: dict[str, Any]) -> tuple[Item, ...]:
    return _call(item | {"arguments": {"input": item.get("input")}})


def _mcp_call(item: dict[str, Any]) -> tuple[Item, ...]:
    call_id = read_id(item, "id", "call_id")
    (call,) = _call(item | {"call_id": call_id})
    error = item.get("error")
    if item.get("output") is None and not error:
        return (mark_unread("mcp_call without a result"),)
    return call, read_result(
        call_id, error if item.get("output") is None else item["output"], bool(error)
    )


def _code_interpreter(item: dict[str, Any]) -> tuple[Item, ...]:
    outputs = item.get("outputs")
    if not isinstance(outputs, list):
        return (mark_unread("code_interpreter_call without a result"),)
    call_id = read_id(item, "id", "call_id")
    parts = [
        {"type": "text", "text": out["logs"]}
        if isinstance(out, dict) and isinstance(out.get("logs"), str)
        else out
        for out in outputs
    ]
    (call,) = _call(
        item
        | {"name": "code_interpreter", "arguments": {"code": item.get("code")}, "call_id": call_id}
    )
    return call, read_result(call_id, parts or "", item.get("status") == "failed")


def _file_search(item: dict[str, Any]) -> tuple[Item, ...]:
    if not isinstance(item.get("results"), list):
        return (mark_unread("file_search_call without a result"),)
    call_id = read_id(item, "id", "call_id")
    (call,) = _call(
        item
        | {"name": "file_search", "arguments": {"queries": item.get("queries")}, "call_id": call_id}
    )
    return call, read_result(call_id, item["results"])


def _screenshot(item: dict[str, Any]) -> tuple[Item, ...]:
    output = item.get("output")
    return (
        read_result(
            read_id(item, *_CALL_ID),
            [output] if isinstance(output, dict) else output,
            is_marked_failed(item),
        ),
    )


def _found_tools(item: dict[str, Any]) -> tuple[Item, ...]:
    return (
        read_result(
            read_id(item, *_CALL_ID), pick_first(item, ("output", "tools")), is_marked_failed(item)
        ),
    )


_READERS: dict[str, Callable[[dict[str, Any]], tuple[Item, ...]]] = {
    "function_call": _call,
    "function_call_output": _result,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _result,
    "local_shell_call": _named_call("local_shell", "action"),
    "local_shell_call_output": _result,
    "shell_call": _named_call("shell", "action"),
    "shell_call_output": _result,
    "apply_patch_call": _named_call("apply_patch", "operation"),
    "apply_patch_call_output": _result,
    "computer_call": _named_call("computer", "action", "actions"),
    "computer_call_output": _screenshot,
    "tool_search_call": _named_call("tool_search", "arguments", "action"),
    "tool_search_output": _found_tools,
    "mcp_call": _mcp_call,
    "code_interpreter_call": _code_interpreter,
    "file_search_call": _file_search,
}
