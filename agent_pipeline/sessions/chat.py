"""The messages and items of every SDK → plain items and chats: the one reader that all containers use.

It knows OpenAI's chat messages (tool calls, legacy function calls) and Responses items, Anthropic's content blocks, Gemini's and Bedrock's
parts, LangChain's messages, the AI SDK's parts, OpenTelemetry's GenAI parts, and the calls of AgentDojo and Inspect. What it does not know
is counted. Order and ids stay as they are: pairing is done afterwards.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agent_pipeline.sessions.items import INVALID, Chat, Item, assembled
from agent_pipeline.sessions.json_text import json_text, without_surrogates

ROLES = {
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "ai", "gpt", "model"), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
}
"""The four roles by all their names."""

_CALLS = {"tool_use", "tool_call", "toolCall", "server_tool_use", "tool-call"}
_RESULTS = {"tool_result", "tool_call_response", "toolResult", "tool-result"}
_REASONING = {"thinking", "redacted_thinking", "reasoning"}
_WRAPPED = {"functionCall": "tool_call", "toolUse": "tool_use", "functionResponse": "tool_result", "toolResult": "tool_result"}
"""Parts of Gemini and Bedrock, which say what they are by their one field."""
_TEXT_PARTS = {"text", "input_text", "output_text"}
_PARTS = {*_TEXT_PARTS, "refusal", "resource", "computer_screenshot"} | {
    f"{direction}{kind}" for direction in ("", "input_", "output_") for kind in ("image", "image_url", "file", "audio", "video")
}
_CALL_IDS = ("call_id", "id", "toolCallId", "toolUseId")
_RESULT_IDS = ("tool_use_id", "tool_call_id", "toolUseId", "toolCallId", "id")
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_OUTPUT = ("content", "response", "result", "output")
_THOUGHT = ("reasoning_content", "reasoning", "thinking")
_THOUGHT_TEXT = ("thinking", "reasoning", "text", "content", "summary")


def to_messages(history: Any) -> Chat:
    """The chat of a history: messages and items of any spelling, mixed. Anything that is no list is one invalid item."""
    return assembled(plain_items(history if isinstance(history, list) else [None]))


def plain_items(history: Iterable[Any]) -> Iterator[Item]:
    """The plain items of a history in order; an invalid one where a message, an item or a call is not what it should be."""
    for record in history:
        if not isinstance(record, dict):
            yield INVALID
            continue
        kind = record["type"] if isinstance(record.get("type"), str) else ""
        role = record.get("role", kind if kind in ROLES else None)  # LangChain says a message's role by its type
        if kind == "function_call":
            yield call_item(record, record.get("weight") != 0)
        elif kind == "custom_tool_call":
            yield call_item(record | {"arguments": {"input": record.get("input")}})
        elif kind == "local_shell_call":
            yield call_item(record | {"name": "local_shell", "arguments": record.get("action")})
        elif kind in ("function_call_output", "custom_tool_call_output"):
            yield result_item(_id(record, "call_id"), record.get("output"))
        elif kind == "local_shell_call_output":
            yield result_item(_id(record, "call_id", "id"), record.get("output"))
        elif isinstance(role, str):
            yield from _results(record) if ROLES.get(role) == "tool" else _spoken(ROLES.get(role), record)
        elif kind == "reasoning":
            yield Item("reasoning", _thought_text(record))
        else:
            yield Item(without_surrogates(kind)) if kind and kind != "message" else INVALID


def call_item(call: Any, trained: bool = True) -> Item:
    """A call in any spelling."""
    if not isinstance(call, dict):
        return INVALID
    function = call.get("function")
    inner = function if isinstance(function, dict) else call
    name = function if isinstance(function, str) else inner.get("name") or inner.get("toolName")
    arguments = next((each[key] for each in (inner, call) for key in _ARGUMENTS if each.get(key) is not None), "")
    text = arguments if isinstance(arguments, str) else json_text(arguments)
    if not isinstance(name, str) or not name.strip() or text is None:
        return INVALID
    return Item("function_call", text, name=name, call_id=_id(call, *_CALL_IDS), trained=trained)


def result_item(call_id: Any, output: Any) -> Item:
    """A result: a text or a list of parts as in a message; any other value of the tool's as JSON."""
    has_parts = isinstance(output, list) and output and all(isinstance(part, str) or _kind(part) in _PARTS for part in output)
    if has_parts or output is None or isinstance(output, str):
        text, left_out = text_of(output)
        return Item("function_call_output", text, call_id=call_id, left_out=left_out)
    value = json_text(output)
    return INVALID if value is None else Item("function_call_output", value, call_id=call_id)


def text_of(content: Any) -> tuple[str, tuple[str, ...]]:
    """The text of a content, a string or a list of parts joined in order; and the types of the parts that are no text."""
    texts, left_out = [], []
    for part in content if isinstance(content, list) else [] if content is None else [content]:
        kind = _kind(part)
        # AgentDojo and OpenTelemetry call a part's text `content`.
        candidates = [part] if isinstance(part, str) else [part.get("text"), part.get("content")] if kind in _TEXT_PARTS else []
        if (text := next((each for each in candidates if isinstance(each, str)), None)) is not None:
            texts.append(text)
        else:
            left_out.append(f"part:{without_surrogates(kind)}" if kind else "part")
    return "".join(texts), tuple(left_out)


def _results(message: dict[str, Any]) -> Iterator[Item]:
    """The results in a tool's message; where it has an error beside its content, the error is what the model was given."""
    content = _content(message)
    blocks = [block for block in content if _kind(block) in _RESULTS] if isinstance(content, list) else []
    for block in blocks:
        yield _block_result(block)
    if not blocks:
        error, ids = message.get("error"), message.get("tool_call_ids")
        reason = error.get("message") if isinstance(error, dict) else error
        first_id = ids[0] if isinstance(ids, list) and ids else None  # SWE-agent
        call_id = _id({"": first_id} | message, "tool_call_id", "toolCallId", "")
        yield result_item(call_id, reason if reason and isinstance(reason, str) else content)


def _spoken(role: str | None, message: dict[str, Any]) -> Iterator[Item]:
    """Results (they answer what came before), reasoning, words, calls."""
    trained = message.get("weight") != 0
    content = _content(message)
    thoughts = [message[name] for name in _THOUGHT if message.get(name)][:1]
    calls: list[Any] = []
    parts: list[Any] = []
    for block in content if isinstance(content, list) else []:
        kind = _kind(block)
        if kind in _RESULTS:
            yield _block_result(block)
        elif kind in _CALLS:
            calls.append(block)
        elif kind in _REASONING:
            thoughts.append(block)
        else:
            parts.append(block)
    yield from (Item("reasoning", _thought_text(thought)) for thought in thoughts)
    if message.get("refusal"):
        yield Item("refusal")
    is_all_calls = isinstance(content, list) and bool(content) and not parts
    named = message.get("tool_calls") or []
    calls += named if isinstance(named, list) else [None]
    calls += [message["function_call"]] if message.get("function_call") else []
    words = parts if isinstance(content, list) else content
    if words or not (calls or is_all_calls):
        text, left_out = text_of(words)
        yield Item("message", text, role=role, trained=trained, left_out=left_out) if role else INVALID
    yield from (call_item(call, trained) for call in calls)


def _content(message: dict[str, Any]) -> Any:
    """A message's content, which OpenTelemetry and Gemini call `parts`; what Gemini and Bedrock wrap is a part with a type."""
    content = message.get("parts") if message.get("content") is None else message.get("content")
    return [_unwrapped(block) for block in content] if isinstance(content, list) else message.get("content")


def _unwrapped(block: Any) -> Any:
    name = next((name for name in _WRAPPED if isinstance(block, dict) and isinstance(block.get(name), dict)), None)
    return block[name] | {"type": _WRAPPED[name]} if name else block


def _block_result(block: dict[str, Any]) -> Item:
    return result_item(_id(block, *_RESULT_IDS), next((block[key] for key in _OUTPUT if block.get(key) is not None), None))


def _kind(part: Any) -> str:
    """A part's type; Bedrock's and Gemini's texts have none."""
    kind = part.get("type", "text" if part.keys() == {"text"} else None) if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else ""


def _id(record: dict[str, Any], *names: str) -> str:
    """A call's id as text; empty where there is none (some stores number their calls)."""
    value = next((record[name] for name in names if record.get(name) not in (None, "")), "")
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _thought_text(thought: Any, depth: int = 4) -> str:
    """The first readable text of a thought (a string, a list of parts, a block with the text under one of its usual names), if any."""
    if isinstance(thought, str):
        return thought if thought.strip() else ""
    if isinstance(thought, list) and depth:
        return "\n\n".join(text for text in (_thought_text(part, depth - 1) for part in thought) if text)
    if isinstance(thought, dict) and depth:
        return next((text for name in _THOUGHT_TEXT if (text := _thought_text(thought.get(name), depth - 1))), "")
    return ""
