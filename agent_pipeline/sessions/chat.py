"""Readers that convert the messages and items of every SDK into plain items and chats.

All readers use this module. It reads OpenAI's chat messages (tool calls, legacy function calls) and
Responses items, Anthropic's content blocks, Gemini's and Bedrock's parts, the messages of
LangChain, llama-index, pydantic-ai and AutoGen, the AI SDK's messages and UI messages,
OpenTelemetry's GenAI parts, the messages of opencode and Goose, and the calls of AgentDojo and
Inspect.

A message, a part or an item is understood, known to be harmless, or damage (`unread`,
`invalid_item`). Order and ids stay as they are; `repair` pairs calls with results later. `parts`
recognizes the parts of a message, and `response_items` recognizes Responses items.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.evidence import is_cut, rests_on_a_search, shows_activity
from agent_pipeline.sessions.items import INVALID, Chat, Item, assemble_chat, mark_unread
from agent_pipeline.sessions.json_text import replace_surrogates
from agent_pipeline.sessions.message_fields import (
    ATTACHMENT_FIELDS,
    CONTENT_FIELDS,
    HARMLESS_FIELDS,
    PLAIN_FIELDS,
    THOUGHT_FIELDS,
    UNDERSTOOD_FIELDS,
    UNTRAINED_FLAGS,
    UNTRAINED_WEIGHTS,
)
from agent_pipeline.sessions.part_fields import (
    is_marked_failed,
    pick_first,
    read_id,
    read_part_type,
    read_thought,
)
from agent_pipeline.sessions.parts import (
    UNREAD_RESULT,
    read_call,
    read_result,
    read_text,
    read_tool_name,
    read_ui_tool,
    recognize_part,
)
from agent_pipeline.sessions.response_items import read_response_item
from agent_pipeline.sessions.sdk_messages import (
    AUTOGEN_ROLES,
    read_autogen_messages,
    read_langchain_message,
    read_pydantic_messages,
    shorten_langchain_type,
)
from agent_pipeline.sessions.session import canonicalize_arguments
from agent_pipeline.sessions.steps import MessageSteps

__all__ = [
    "ROLES",
    "VERSION",
    "is_message",
    "read_call",
    "read_chat",
    "read_items",
    "read_result",
    "read_text",
]

VERSION = 17
"""The version of this reader, which is part of every reader's version.

Raise it if the same messages produce different sessions than before.
"""

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation", "toolResult", "tool_result"), "tool"),
}
"""Mapping from every known role name to one of the four roles."""

_MODEL_NAME = re.compile(
    r"(?:[\w.-]+/)?(?:gpt-|chatgpt|o\d(?:-|$)|claude|gemini|gemma|(?:meta-)?llama|qwen|mistral"
    r"|ministral|mixtral|deepseek|grok|command-r|kimi|glm-)",
    re.IGNORECASE,
)
"""Beginnings of the names of models, which some logs write as the name of the assistant."""
_STREAM_PIECES = {"part input_json_delta", "part tool_call_chunk", "part server_tool_call_chunk"}
"""Fields with pieces of calls that streaming left behind in a message.

The pieces add nothing if a field of the message has the whole calls.
"""
_TOOL_NAME_FIELDS = {"function", "tool"}
_ANSWERED_CALL_FIELDS = {
    *("tool_call", "toolCall", "function_call", "input", "tool_input"),
    *("args", "arguments", "kwargs", "parameters"),
}
"""Fields of a tool message that repeat the call which the message answers (AgentDojo)."""
_RESULT_ID_FIELDS = (
    *("tool_call_id", "toolCallId", "call_id", "tool_use_id", "toolUseId", "callId"),
)


def read_chat(history: object) -> Chat:
    """Convert a history of messages and items into a chat.

    The messages and items may have the form of any SDK, even mixed. A history that is not a list
    becomes one invalid item.
    """
    return assemble_chat(read_items(history if isinstance(history, list) else [None]))


def is_message(record: object) -> bool:
    """Return whether a record is a message in the format of any supported SDK."""
    return any(
        item.role or item.kind in ("function_call", "function_call_output")
        for item in read_items([record])
    )


def read_items(history: Iterable[object]) -> list[Item]:
    """Return the items of a history as plain items, in order.

    A message, an item or a call that is malformed becomes an invalid item.
    """
    items: list[Item] = []
    for record in history:
        items += _read_record(record, items)
    return items


def _read_record(record: object, items_before: Sequence[Item]) -> Iterable[Item]:
    """Return the items that a record contains.

    The result depends on the items before the record.
    """
    if isinstance(record, Item):
        return (record,)
    if not isinstance(record, dict):
        return (INVALID,)
    if "kwargs" in record or "data" in record:
        record = read_langchain_message(record)
    kind = record["type"] if isinstance(record.get("type"), str) else ""
    response_items = read_response_item(record, kind)
    if response_items is not None:
        return response_items
    if isinstance(record.get("parts"), list) and record.get("kind") in ("request", "response"):
        return read_items(read_pydantic_messages(record))
    if kind in AUTOGEN_ROLES and "role" not in record:
        return read_items(read_autogen_messages(record))
    role_name = record.get("role", _read_role_in_type(kind))
    if isinstance(role_name, str):
        return _read_message(role_name, record, items_before)
    if kind == "reasoning":
        return (Item("reasoning", read_thought(record)),)
    if not kind or kind == "message":
        return (INVALID,)
    return (mark_unread(replace_surrogates(kind)),)


def _read_role_in_type(kind: str) -> str | None:
    """Return the role that a message's type names (LangChain), or None."""
    name = kind if kind in ROLES else shorten_langchain_type(kind)
    return name if name in ROLES else None


def _read_message(role_name: str, message: JsonObject, items_before: Sequence[Item]) -> list[Item]:
    """Return the items that a message contains.

    Args:
        role_name: The role as the record names it. Langfuse writes the name of a LangChain tool
            instead of the role.
        message: The message.
        items_before: The items of the earlier messages.
    """
    role = ROLES.get(role_name)
    if role is None and any(
        item.kind == "function_call" and item.name == role_name for item in items_before
    ):
        role = "tool"
        message = {"name": role_name} | message
    if role is None:
        return [INVALID]
    if role == "tool":
        return _read_results(message)
    items = _read_turn(role, message, items_before)
    speaker = message.get("name")
    if not isinstance(speaker, str) or not speaker or role == "system":
        return items
    if speaker == message.get("model") or _MODEL_NAME.match(speaker):
        return items  # one agent may change its model
    return [replace(item, speaker=speaker) for item in items]


def _is_trained(message: JsonObject) -> bool:
    """Return whether a message is used for training."""
    return message.get("weight") not in UNTRAINED_WEIGHTS and not any(
        message.get(name) is False for name in UNTRAINED_FLAGS
    )


def _read_turn(role: str, message: JsonObject, items_before: Sequence[Item]) -> list[Item]:
    """Return the thoughts, text, calls and results in a message, unless it is a tool message.

    Args:
        role: The canonical role.
        message: The message.
        items_before: The items of the earlier messages.
    """
    content = message.get("content")
    if isinstance(content, str) and message.keys() <= PLAIN_FIELDS:  # most messages of most stores
        trained = message.get("weight") not in UNTRAINED_WEIGHTS
        return [Item("message", content, role=role, trained=trained)]
    steps = MessageSteps(role, _is_trained(message))
    parts = _list_parts(message)
    _add_thought(steps, message)
    if not any(read_part_type(part).startswith("tool-") for part in parts.values):
        _add_invocations(steps, message)
    named_calls = _read_named_calls(message)
    for part in parts.values:
        items = (_merge_with_named(item, named_calls) for item in recognize_part(part))
        steps.add_part([item for item in items if item is not None])
    for words in _read_words_in_fields(message):
        steps.add(Item("words", words))
    for attachment in _list_attachments(message):
        if isinstance(attachment, dict) and read_part_type(attachment):
            steps.add_part(list(recognize_part(attachment)))
        else:
            steps.add_part([Item("media", "[file]", name="file")])
    for call in named_calls.values():
        steps.add(call)
    steps.others += _mark_strange_fields(message, steps, parts.is_list)
    if message.get("audio") and not (steps.words or steps.done):
        # A later request repeats a spoken answer of OpenAI by its id only.
        steps.others.append(mark_unread("audio without a transcript"))
    last_items = [*items_before[-1:], *steps.done]
    follows_a_result = bool(steps.results) or any(
        item.kind == "function_call_output" for item in last_items
    )
    if role == "assistant" and rests_on_a_search(message, follows_a_result):
        steps.others.append(mark_unread("answer from a hosted search"))
    cut = is_cut(message) and role == "assistant"
    has_listed_parts = parts.is_list and bool(parts.values)
    return steps.finish(cut, empty=not has_listed_parts)


def _add_thought(steps: MessageSteps, message: JsonObject) -> None:
    """Add the thought that a message holds in a separate field."""
    for name in THOUGHT_FIELDS:
        if message.get(name):
            steps.thoughts.append(Item("reasoning", read_thought(message[name])))
            return


def _list_attachments(message: JsonObject) -> list[object]:
    """Return the pictures and files that a message lists in its own fields."""
    attachments: list[object] = []
    for name in ATTACHMENT_FIELDS:
        if isinstance(message.get(name), list):
            attachments += message[name]
    return attachments


def _read_results(message: JsonObject) -> list[Item]:
    """Return the tool results that a tool message contains.

    If the message has both an error and content, the model saw the error.
    """
    responses = message.get("tool_responses")
    if isinstance(responses, list) and responses:  # AG2 repeats several results in one content
        items: list[Item] = []
        for response in responses:
            items += _read_results(response) if isinstance(response, dict) else [INVALID]
        return items
    parts = _list_parts(message)
    items = [item for part in parts.values for item in recognize_part(part)]
    results = [item for item in items if item.kind == "function_call_output"]
    other_fields = {
        name: value for name, value in message.items() if name not in _ANSWERED_CALL_FIELDS
    }
    strange = [mark_unread(f"field {name}") for name in _list_active_fields(other_fields)]
    has_unread_result = any(
        item.kind == "unread" and item.name.startswith(UNREAD_RESULT) for item in items
    )
    if results or has_unread_result:
        return results + _mark_items_beside_results(items) + strange
    error = message.get("error")
    reason = error.get("message") if isinstance(error, dict) else error
    if reason and isinstance(reason, str):
        output: object = reason
    elif parts.is_list:
        output = parts.values or ""  # a list without parts is an empty result
    else:
        output = message.get("content", message.get("text"))
    result = read_result(
        _read_result_id(message),
        output,
        is_marked_failed(message),
        tool=read_tool_name(message),
    )
    return [result, *strange]


def _mark_items_beside_results(items: list[Item]) -> list[Item]:
    """Return an unread item for each part that a tool message contains next to its results."""
    marked = []
    for item in items:
        if item.kind in ("function_call_output", "harmless", "border"):
            continue
        if item.text.strip() or not item.text:
            is_unread = item.kind == "unread"
            marked.append(item if is_unread else mark_unread("words beside a result"))
    return marked


def _read_result_id(message: JsonObject) -> str:
    """Return the id of the call that a tool message answers."""
    call_id = read_id(message, "tool_call_id")
    if call_id:
        return call_id
    fields = _read_additional(message) | message
    ids = message.get("tool_call_ids")  # SWE-agent
    if isinstance(ids, list) and ids:
        fields["first of tool_call_ids"] = ids[0]
    return read_id(fields, *_RESULT_ID_FIELDS, "first of tool_call_ids")


@dataclass(frozen=True)
class _Parts:
    """The parts of a message, and whether the message stores the parts as a list."""

    values: list[Any]
    is_list: bool


def _list_parts(message: JsonObject) -> _Parts:
    """Return the parts of a message, no matter which field holds its content.

    If a message has both text and a list of parts (the AI SDK's UI messages), the parts are used,
    because they hold more than the text.
    """
    content = message.get("content")
    listed: list[object] = []
    for name in CONTENT_FIELDS:
        if isinstance(message.get(name), list):
            listed = message[name]
            break
    if any(isinstance(part, dict) for part in listed) and not isinstance(content, list):
        if isinstance(content, str) and content.strip():
            words_in_parts = read_text(listed, "").text
            if _remove_space(content) not in _remove_space(words_in_parts):
                return _Parts([*listed, {"type": "content beside parts"}], is_list=True)
        return _Parts(listed, is_list=True)
    value = pick_first(message, ("content", *CONTENT_FIELDS, "text"))
    if isinstance(value, list):
        return _Parts(value, is_list=True)
    return _Parts([] if value is None else [value], is_list=False)


def _remove_space(text: str) -> str:
    """Remove all white space from a text."""
    return "".join(text.split())


def _read_words_in_fields(message: JsonObject) -> list[str]:
    """Return the texts in special fields of a message: a refusal, a plan, a transcript."""
    content = message.get("content")
    texts = [message.get("refusal") or _read_additional(message).get("refusal")]
    texts.append(message.get("tool_plan"))  # Cohere: the model's text before its calls
    audio = message.get("audio")
    if isinstance(audio, dict) and not content:
        texts.append(audio.get("transcript"))
    return [text for text in texts if isinstance(text, str) and text.strip() and text != content]


def _add_invocations(steps: MessageSteps, message: JsonObject) -> None:
    """Add the calls and results of the AI SDK's version 4, step by step.

    The text of the message follows all of these steps.
    """
    invocations = message.get("toolInvocations")
    items_by_step: dict[str, list[Item]] = {}
    for invocation in invocations if isinstance(invocations, list) else ():
        if isinstance(invocation, dict):
            step, items = read_id(invocation, "step"), read_ui_tool(invocation)
        else:
            step, items = "", (mark_unread("toolInvocations"),)
        items_by_step.setdefault(step, []).extend(items)
    for step_items in items_by_step.values():
        for item in step_items:
            steps.add(item)
        steps.close()


def _read_named_calls(message: JsonObject) -> dict[str | int, Item]:
    """Return the tool calls in the fields of a message, in order, by call id.

    A call whose id is empty or used twice is stored by its index.
    """
    additional = _read_additional(message)
    listed = message.get("tool_calls") or additional.get("tool_calls")
    calls: list[object] = []
    if isinstance(listed, list | tuple):
        calls += listed
    elif listed:
        calls.append(None)  # None is read as an invalid call
    invalid_calls = message.get("invalid_tool_calls")  # LangChain: the arguments are not JSON
    if isinstance(invalid_calls, list):
        calls += invalid_calls
    legacy = message.get("function_call")
    if not legacy and not calls:
        legacy = additional.get("function_call")
    if legacy and not any(_is_same_call(legacy, call) for call in calls):
        calls.append(legacy)
    trained = _is_trained(message)
    named_calls: dict[str | int, Item] = {}
    for index, call in enumerate(calls):
        item = read_call(call, trained)
        has_own_id = item.call_id and item.call_id not in named_calls
        named_calls[item.call_id if has_own_id else index] = item
    return named_calls


def _is_same_call(left: object, right: object) -> bool:
    """Return whether two calls have the same name and arguments. Their ids may differ."""
    left_item, right_item = read_call(left), read_call(right)
    return left_item.name == right_item.name and canonicalize_arguments(
        left_item.text
    ) == canonicalize_arguments(right_item.text)


def _merge_with_named(item: Item, named_calls: dict[str | int, Item]) -> Item | None:
    """Return the item of a message part, or None if a field of the message has the same call.

    LangChain writes a call into a part and into a field, and a stream leaves the part without
    arguments. If the two calls differ, the call is unread, because it is unknown which of them was
    made.
    """
    if item.kind == "unread" and item.name in _STREAM_PIECES and named_calls:
        return None
    if item.kind != "function_call":
        return item
    named: Item | None = None
    if item.call_id:
        named = named_calls.get(item.call_id)
    else:
        for call in named_calls.values():
            if replace(call, call_id="") == item:
                named = call
                break
    if named is None:
        return item
    both_have_arguments = item.text not in ("", "{}") and named.text
    if item.name != named.name or (
        both_have_arguments
        and canonicalize_arguments(item.text) != canonicalize_arguments(named.text)
    ):
        return mark_unread("a call that is told twice, differently")
    return None


def _mark_strange_fields(message: JsonObject, steps: MessageSteps, is_list: bool) -> list[Item]:
    """Return unread items for unknown fields that may hold content.

    Args:
        message: The message.
        steps: The items that were read in the message.
        is_list: Whether the message has a list of parts.
    """
    holds_something = (
        is_list
        or steps.words
        or steps.calls
        or steps.results
        or steps.done
        or message.get("content") is not None
    )
    names = _list_active_fields(message) if holds_something else _list_filled_fields(message)
    return [mark_unread(f"field {name}") for name in names]


def _list_strange_fields(message: JsonObject) -> list[str]:
    """Return the unknown fields of a message that are not known to be harmless."""
    strange = []
    for name, value in message.items():
        if name in UNDERSTOOD_FIELDS or name in HARMLESS_FIELDS:
            continue
        if name in _TOOL_NAME_FIELDS and isinstance(value, str):
            continue
        strange.append(name)
    return strange


def _list_active_fields(message: JsonObject) -> list[str]:
    """Return the unknown fields of a message that contain a call or a result."""
    return [
        replace_surrogates(str(name))
        for name in _list_strange_fields(message)
        if shows_activity({name: message[name]})
    ]


def _list_filled_fields(message: JsonObject) -> list[str]:
    """Return the unknown fields of a message that are not empty."""
    return [
        replace_surrogates(str(name))
        for name in _list_strange_fields(message)
        if message[name] not in (None, "", [], {}, False)
    ]


def _read_additional(message: JsonObject) -> JsonObject:
    """Return the additional fields of a message that LangChain and llama-index keep separately."""
    additional = message.get("additional_kwargs")
    return additional if isinstance(additional, dict) else {}
