"""Items of OpenAI's Responses API: calls and results of functions and of hosted tools.

A hosted call whose item holds its result becomes a call and a result. If the item holds no result,
as for a web search, the next answer relies on content that was not recorded. Such an item is
`unread`, which is damage. `chat` and `parts` read messages and their parts.
"""

from collections.abc import Callable

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.evidence import is_cut
from agent_pipeline.sessions.items import Item, mark_unread
from agent_pipeline.sessions.message_fields import UNTRAINED_WEIGHTS
from agent_pipeline.sessions.part_fields import is_marked_failed, pick_first, read_id
from agent_pipeline.sessions.parts import read_call, read_result

HARMLESS_ITEM_TYPES = {"mcp_list_tools", "ghost_snapshot"}
"""Types of items without content of a person or a model: the tools of a server, and a copy of the
working folder.
"""

_RESULT_ID_FIELDS = ("call_id", "id")
_HOSTED_ID_FIELDS = ("id", "call_id")
"""Id fields of a hosted call. The call's own id takes precedence over the id of the call that it
belongs to.
"""


def read_response_item(item: JsonObject, kind: str) -> tuple[Item, ...] | None:
    """Return the plain items in a Responses item.

    Return None if `kind` is not the type of a Responses item.
    """
    reader = _READERS.get(kind)
    if reader is not None:
        return reader(item)
    if kind in HARMLESS_ITEM_TYPES:
        return (Item("harmless", name=kind),)
    return None


def _read_call(item: JsonObject) -> tuple[Item, ...]:
    return (_make_call(item),)


def _make_call(item: JsonObject) -> Item:
    """Return the tool call that a Responses item contains."""
    return read_call(item, item.get("weight") not in UNTRAINED_WEIGHTS, is_cut(item))


def _read_result(item: JsonObject) -> tuple[Item, ...]:
    return (_make_result(item, item.get("output")),)


def _make_result(item: JsonObject, output: object) -> Item:
    """Return a tool result that has the id of a Responses item and the given output."""
    return read_result(read_id(item, *_RESULT_ID_FIELDS), output, is_marked_failed(item))


def _make_call_reader(name: str, *fields: str) -> Callable[[JsonObject], tuple[Item, ...]]:
    """Return a reader for calls whose item type names the tool.

    The arguments are the first of `fields` that the item has.
    """

    def read(item: JsonObject) -> tuple[Item, ...]:
        return _read_call(item | {"name": name, "arguments": pick_first(item, fields) or {}})

    return read


def _read_custom_call(item: JsonObject) -> tuple[Item, ...]:
    return _read_call(item | {"arguments": {"input": item.get("input")}})


def _read_mcp_call(item: JsonObject) -> tuple[Item, ...]:
    call_id = read_id(item, *_HOSTED_ID_FIELDS)
    output, error = item.get("output"), item.get("error")
    if output is None and not error:
        return (mark_unread("mcp_call without a result"),)
    call = _make_call(item | {"call_id": call_id})
    return call, read_result(call_id, error if output is None else output, bool(error))


def _read_code_interpreter_call(item: JsonObject) -> tuple[Item, ...]:
    outputs = item.get("outputs")
    if not isinstance(outputs, list):
        return (mark_unread("code_interpreter_call without a result"),)
    parts = []
    for output in outputs:
        if isinstance(output, dict) and isinstance(output.get("logs"), str):
            parts.append({"type": "text", "text": output["logs"]})
        else:
            parts.append(output)
    call_id = read_id(item, *_HOSTED_ID_FIELDS)
    arguments = {"code": item.get("code")}
    call = _make_call(
        item | {"name": "code_interpreter", "arguments": arguments, "call_id": call_id}
    )
    return call, read_result(call_id, parts or "", item.get("status") == "failed")


def _read_file_search_call(item: JsonObject) -> tuple[Item, ...]:
    if not isinstance(item.get("results"), list):
        return (mark_unread("file_search_call without a result"),)
    call_id = read_id(item, *_HOSTED_ID_FIELDS)
    arguments = {"queries": item.get("queries")}
    call = _make_call(item | {"name": "file_search", "arguments": arguments, "call_id": call_id})
    return call, read_result(call_id, item["results"])


def _read_screenshot(item: JsonObject) -> tuple[Item, ...]:
    output = item.get("output")
    return (_make_result(item, [output] if isinstance(output, dict) else output),)


def _read_tool_search_result(item: JsonObject) -> tuple[Item, ...]:
    return (_make_result(item, pick_first(item, ("output", "tools"))),)


_READERS: dict[str, Callable[[JsonObject], tuple[Item, ...]]] = {
    "function_call": _read_call,
    "function_call_output": _read_result,
    "custom_tool_call": _read_custom_call,
    "custom_tool_call_output": _read_result,
    "local_shell_call": _make_call_reader("local_shell", "action"),
    "local_shell_call_output": _read_result,
    "shell_call": _make_call_reader("shell", "action"),
    "shell_call_output": _read_result,
    "apply_patch_call": _make_call_reader("apply_patch", "operation"),
    "apply_patch_call_output": _read_result,
    "computer_call": _make_call_reader("computer", "action", "actions"),
    "computer_call_output": _read_screenshot,
    "tool_search_call": _make_call_reader("tool_search", "arguments", "action"),
    "tool_search_output": _read_tool_search_result,
    "mcp_call": _read_mcp_call,
    "code_interpreter_call": _read_code_interpreter_call,
    "file_search_call": _read_file_search_call,
}
"""Readers of Responses items, by type."""
