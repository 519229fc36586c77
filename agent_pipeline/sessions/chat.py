"""The messages and items of every SDK → plain items and chats: the one reader that all containers use.

It knows OpenAI's chat messages (tool calls, legacy function calls) and Responses items, Anthropic's content blocks, Gemini's and Bedrock's
parts, LangChain's, llama-index's, pydantic-ai's and AutoGen's messages, the AI SDK's and OpenTelemetry's GenAI parts, and the calls of
AgentDojo and Inspect. What it does not know is counted. Order and ids stay as they are: pairing is done afterwards.
"""

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from agent_pipeline.sessions.items import INVALID, Chat, Item, assembled
from agent_pipeline.sessions.json_text import json_text, without_surrogates

VERSION = 7
"""Raise it where the same messages give other sessions than before: the versions of all readers have it."""

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
"""The four roles by all their names."""

_CALLS = {"tool_use", "tool_call", "toolCall", "server_tool_use", "tool-call"}
_RESULTS = {"tool_result", "tool_call_response", "toolResult", "tool-result", "tool-error"}
_REASONING = {"thinking", "redacted_thinking", "reasoning"}
_WRAPPED = {
    **dict.fromkeys(("functionCall", "function_call"), "tool_call"),
    **dict.fromkeys(("functionResponse", "function_response", "toolResult"), "tool_result"),
    "toolUse": "tool_use",
}
"""Parts of Gemini and Bedrock, which say what they are by the field that they have."""
_CONTENTS = ("parts", "blocks")
"""A message's content without the name that most give it: as OpenTelemetry and Gemini call it, as llama-index does."""
_PYDANTIC = {"system-prompt": "system", "user-prompt": "user", "retry-prompt": "user", "tool-return": "tool"}
_AUTOGEN = {"SystemMessage": "system", "UserMessage": "user", "AssistantMessage": "assistant", "FunctionExecutionResultMessage": "tool"}
_TEXT_PARTS = {"text", "input_text", "output_text"}
_PARTS = {*_TEXT_PARTS, "refusal", "resource", "computer_screenshot"} | {
    f"{direction}{kind}" for direction in ("", "input_", "output_") for kind in ("image", "image_url", "file", "audio", "video")
}
_CALL_IDS = ("call_id", "toolCallId", "tool_call_id", "toolUseId", "id")
_RESULT_IDS = ("tool_use_id", "tool_call_id", "toolUseId", "toolCallId", "id")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "tool_kwargs")
_OUTPUT = ("content", "response", "result", "output", "error")
_FAILED_STATES = ("error", "failed", "denied")
_FAILED_TYPES = ("tool-error", "error-text", "error-json", "execution-denied")
_OF_THOUGHTS = {"thought", "thought_signature", "thoughtSignature"}
_BESIDE_WORDS = {"reasoning_content", "reasoning", "thinking", "refusal", "tool_calls", "additional_kwargs", "function_call"}
"""The fields of a message that say more than its words."""
_CALLS_AS_WORDS = "Calling tools:\n[{'id': "
"""How smolagents tells a model its own calls: a model that is trained on that writes of calls and makes none."""
_THOUGHT_TEXT = ("thinking", "reasoning", "text", "content", "summary")


def to_messages(history: Any) -> Chat:
    """The chat of a history: messages and items of any spelling, mixed. Anything that is not a list is one invalid item."""
    return assembled(plain_items(history if isinstance(history, list) else [None]))


def is_message(record: Any) -> bool:
    """Whether a record is a message in any spelling."""
    return any(item.role or item.kind in ("function_call", "function_call_output") for item in plain_items([record]))


def plain_items(history: Iterable[Any]) -> list[Item]:
    """The plain items of a history in order; an invalid one where a message, an item or a call is not what it should be."""
    items: list[Item] = []
    for record in history:
        items += _items_of(record, items)
    return items


def _items_of(record: Any, before: list[Item]) -> Iterable[Item]:
    """The items in a record that follows others."""
    if isinstance(record, Item):
        return (record,)
    if not isinstance(record, dict):
        return (INVALID,)
    if "kwargs" in record or "data" in record:
        record = _of_langchain(record)
    kind = record["type"] if isinstance(record.get("type"), str) else ""
    if kind in _ITEMS:
        return (_ITEMS[kind](record),)
    if "parts" in record and isinstance(record["parts"], list) and record.get("kind") in ("request", "response"):
        return plain_items(_of_pydantic(record))
    if kind in _AUTOGEN and "role" not in record:
        return plain_items(_of_autogen(record))
    role = record.get("role", kind if kind in ROLES else None)  # LangChain says a message's role by its type
    if isinstance(role, str):
        # Langfuse writes a LangChain tool's name for its role.
        is_tool = role not in ROLES and any(item.name == role for item in before if item.name)
        name = "tool" if is_tool else ROLES.get(role)
        return _results(record) if name == "tool" else _spoken(name, record)
    if kind == "reasoning":
        return (Item("reasoning", _thought_text(record)),)
    return (Item(without_surrogates(kind)) if kind and kind != "message" else INVALID,)


def call_item(call: Any, trained: bool = True) -> Item:
    """A call in any spelling."""
    if not isinstance(call, dict):
        return INVALID
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    name = function if isinstance(function, str) else inner.get("name") or inner.get("toolName") or inner.get("tool_name")
    arguments = _first(inner, _ARGUMENTS)
    if arguments is None:
        arguments = _first(call, _ARGUMENTS)
    text = "" if arguments is None else arguments if isinstance(arguments, str) else json_text(arguments)
    if not isinstance(name, str) or not name.strip() or text is None:
        return INVALID
    return Item("function_call", text, name=name, call_id=_id(call, *_CALL_IDS), trained=trained)


def result_item(call_id: Any, output: Any, failed: bool = False) -> Item:
    """A result: a text or a list of parts as in a message; any other value of the tool's as JSON."""
    has_parts = isinstance(output, list) and output and all(isinstance(part, str) or _kind(part) in _PARTS for part in output)
    if has_parts or output is None or isinstance(output, str):
        text, left_out = text_of(output)
        return Item("function_call_output", text, call_id=call_id, left_out=left_out, failed=failed)
    value = json_text(output)
    return INVALID if value is None else Item("function_call_output", value, call_id=call_id, failed=failed)


def text_of(content: Any, seam: str = "\n") -> tuple[str, tuple[str, ...]]:
    """The text of a content, a string or a list of parts in order; and the types of the parts that are no text.

    `seam` stands between two texts where neither has white space there: parts are paragraphs, as clients show them.
    """
    if isinstance(content, str):
        return content, ()
    text, left_out = "", []
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        words, kind = part, _kind(part)
        if kind in _TEXT_PARTS:  # AgentDojo and OpenTelemetry call a part's text `content`
            words = part["text"] if isinstance(part.get("text"), str) else part.get("content")
        if isinstance(words, str):
            text += (seam if text and words and not (text[-1].isspace() or words[0].isspace()) else "") + words
        else:
            left_out.append(f"part:{without_surrogates(kind)}" if kind else "part")
    return text, tuple(left_out)


def _results(message: dict[str, Any]) -> list[Item]:
    """The results in a tool's message; where it has an error beside its content, the error is what the model was given."""
    content = _content(message)
    if blocks := [block for block in content if _kind(block) in _RESULTS] if isinstance(content, list) else []:
        return list(map(_block_result, blocks))
    error, ids = message.get("error"), message.get("tool_call_ids")
    reason = error.get("message") if isinstance(error, dict) else error
    first_id = ids[0] if isinstance(ids, list) and ids else None  # SWE-agent
    call_id = _id(message, "tool_call_id") or _id({"": first_id} | _additional(message) | message, "tool_call_id", "toolCallId", "")
    return [result_item(call_id, reason if reason and isinstance(reason, str) else content, _failed(message))]


def _spoken(role: str | None, message: dict[str, Any]) -> list[Item]:
    """Results (they answer what came before), reasoning, words, calls."""
    trained = message.get("weight") != 0
    words = content = _content(message)
    if not isinstance(content, list) and _BESIDE_WORDS.isdisjoint(message):  # what most messages of most stores are
        return [_said(role, words, trained)]
    thought = message.get("reasoning_content") or message.get("reasoning") or message.get("thinking")
    thoughts = [thought] if thought else []
    items: list[Item] = []
    calls: list[Item] = []
    if isinstance(content, list):
        words = []
        for block in content:
            kind = _kind(block)
            if kind in _RESULTS:
                items.append(_block_result(block))
            elif kind in _CALLS:
                calls.append(call_item(block, trained))
            elif kind in _REASONING:
                thoughts.append(block)
            else:
                words.append(block)
    for thought in thoughts:
        items.append(Item("reasoning", _thought_text(thought)))
    if message.get("refusal"):
        items.append(Item("refusal"))
    is_all_calls = isinstance(content, list) and bool(content) and not words
    named, legacy = message.get("tool_calls") or _additional(message).get("tool_calls"), message.get("function_call")
    if named or legacy:
        known = {item.call_id or item for item in calls if item.kind}  # LangChain says both
        named = [*(named if isinstance(named, list | tuple) else [None] if named else []), *([legacy] if legacy else [])]
        calls += [item for call in named if ((item := call_item(call, trained)).call_id or item) not in known]
    if words or not (calls or is_all_calls):
        items.append(_said(role, words, trained))
    elif calls:
        calls[0] = replace(calls[0], first=True)
    return items + calls


def _said(role: str | None, words: Any, trained: bool) -> Item:
    """The words of a message."""
    # What a model says comes in parts that may end within a sentence (before a citation, say).
    text, left_out = text_of(words, "" if role == "assistant" else "\n")
    is_said = role and not (role == "assistant" and _CALLS_AS_WORDS in text)
    return Item("message", text, role=role or "", trained=trained, left_out=left_out) if is_said else INVALID


def _content(message: dict[str, Any]) -> Any:
    """A message's content by any of its names: its text where that is all, else its parts; what Gemini and Bedrock wrap has a type then."""
    content = message.get("content")
    wrapped = _first(message, _CONTENTS) if content is None else content
    if not isinstance(wrapped, list):
        return content
    parts = list(map(_unwrapped, wrapped))
    if len(parts) == 1 and _kind(parts[0]) in _TEXT_PARTS and isinstance(text := parts[0].get("text"), str):
        return text or parts
    return parts


def _unwrapped(block: Any) -> Any:
    if not isinstance(block, dict) or _WRAPPED.keys().isdisjoint(block):
        return block
    name = next((name for name in _WRAPPED if isinstance(block.get(name), dict)), None)
    return block[name] | {"type": _WRAPPED[name]} if name else block


def _block_result(block: dict[str, Any]) -> Item:
    output, failed = _first(block, _OUTPUT), _failed(block)
    if isinstance(output, dict) and (output.keys() == {"type", "value"} or output.get("type") == "execution-denied"):  # the AI SDK
        failed = failed or _failed(output)
        output = output.get("value", output.get("reason"))
    return result_item(_id(block, *_RESULT_IDS), output, failed)


def _failed(record: dict[str, Any]) -> bool:
    """Whether a result's own record calls it an error: `is_error` (Anthropic, AutoGen), `isError` (MCP), `status` (LangChain, Bedrock),
    `outcome` (pydantic-ai), `error` (tau2, Inspect), a type (the AI SDK, pydantic-ai)."""
    return (
        record.get("is_error") is True
        or record.get("isError") is True
        or record.get("status") in _FAILED_STATES
        or record.get("outcome") in _FAILED_STATES
        or bool(record.get("error"))
        or record.get("type") in _FAILED_TYPES
        or record.get("part_kind") == "retry-prompt"
    )


def _of_langchain(record: dict[str, Any]) -> dict[str, Any]:
    """A message out of LangChain's `{"lc", "id", "kwargs"}` or `{"type", "data"}`; anything else as it is."""
    if isinstance(record.get("kwargs"), dict) and isinstance(record.get("id"), list) and record["id"]:
        return {"type": str(record["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()} | record["kwargs"]
    return record["data"] | {"type": record.get("type")} if isinstance(record.get("data"), dict) and "role" not in record else record


def _of_pydantic(record: dict[str, Any]) -> list[Any]:
    """The messages in a request or a response of pydantic-ai."""
    if record["kind"] == "response":
        return [{"role": "assistant", "content": record["parts"]}]
    messages: list[Any] = [{"role": "system", "content": record["instructions"]}] if record.get("instructions") else []
    for part in record["parts"]:
        kind = _kind(part)
        role = "tool" if kind == "retry-prompt" and part.get("tool_name") else _PYDANTIC.get(kind)
        messages.append(part | {"role": role} if role else part)
    return messages


def _of_autogen(record: dict[str, Any]) -> list[Any]:
    """The messages in one of AutoGen's, whose parts say what they are by their fields. Beside calls, its thought is what was said."""
    content = record.get("content")
    parts = content if isinstance(content, list) else [content]
    role, thought = _AUTOGEN[record["type"]], record.get("thought")
    if role == "tool":
        return [part | {"role": role, "tool_call_id": part.get("call_id")} if isinstance(part, dict) else None for part in parts]
    calls = [part for part in parts if isinstance(part, dict) and "arguments" in part]
    if calls:
        return [{"role": role, "content": thought, "tool_calls": calls}]
    return [{"role": role, "content": content, "reasoning": thought}]


def _additional(message: dict[str, Any]) -> dict[str, Any]:
    """What LangChain and llama-index say of a message beside its own fields."""
    more = message.get("additional_kwargs")
    return more if isinstance(more, dict) else {}


def _kind(part: Any) -> str:
    """A part's type; Bedrock's and Gemini's texts have none, and Gemini marks a text that is a thought."""
    if not isinstance(part, dict):
        return ""
    kind = part["type"] if "type" in part else part.get("part_kind", part.get("block_type"))
    if kind is None and {name for name, value in part.items() if value is not None} - _OF_THOUGHTS == {"text"}:
        kind = "thinking" if part.get("thought") is True else "text"
    return kind if isinstance(kind, str) else ""


def _id(record: dict[str, Any], *names: str) -> str:
    """A call's id as text; empty where there is none (some stores number their calls)."""
    for name in names:
        if (value := record.get(name)) not in (None, ""):
            return value if isinstance(value, str) else str(value) if isinstance(value, int) and not isinstance(value, bool) else ""
    return ""


def _first(record: dict[str, Any], names: Iterable[str]) -> Any:
    """The first of these fields that is neither absent nor `None`."""
    for name in names:
        if (value := record.get(name)) is not None:
            return value
    return None


def _thought_text(thought: Any, depth: int = 4) -> str:
    """The first readable text of a thought (a string, a list of parts, a block with the text under one of its usual names), if any."""
    if isinstance(thought, str):
        return thought if thought.strip() else ""
    if isinstance(thought, list) and depth:
        return "\n\n".join(text for text in (_thought_text(part, depth - 1) for part in thought) if text)
    if isinstance(thought, dict) and depth:
        return next((text for name in _THOUGHT_TEXT if (text := _thought_text(thought.get(name), depth - 1))), "")
    return ""


_ITEMS: dict[str, Callable[[dict[str, Any]], Item]] = {
    "function_call": lambda item: call_item(item, item.get("weight") != 0),
    "custom_tool_call": lambda item: call_item(item | {"arguments": {"input": item.get("input")}}),
    "local_shell_call": lambda item: call_item(item | {"name": "local_shell", "arguments": item.get("action")}),
    "function_call_output": lambda item: result_item(_id(item, "call_id"), item.get("output"), _failed(item)),
    "custom_tool_call_output": lambda item: result_item(_id(item, "call_id"), item.get("output"), _failed(item)),
    "local_shell_call_output": lambda item: result_item(_id(item, "call_id", "id"), item.get("output"), _failed(item)),
}
"""How the Responses items of calls and results are read, by type."""
