"""Chat messages of any common spelling, and Responses items of their newer kinds → the items that `items.to_messages` knows.

One walk knows OpenAI's messages (tool calls, legacy function calls), Anthropic's content blocks, AgentDojo's and Inspect's calls
(`{function, args, id}`, `{function, arguments, id}`), and OpenTelemetry's GenAI parts; what it does not know is left to be counted there.
Order and ids stay as they are: pairing is done afterwards.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from agent_pipeline.sessions.items import ROLES as ROLES
from agent_pipeline.sessions.items import Chat, Item, plain_chat, to_messages

_CALLS = {"tool_use", "tool_call", "toolCall", "server_tool_use"}
_RESULTS = {"tool_result", "tool_call_response", "toolResult"}
_REASONING = {"thinking", "redacted_thinking", "reasoning"}
_ARGUMENTS = ("arguments", "args", "input", "parameters")
_THOUGHT = ("reasoning_content", "reasoning", "thinking")
_THOUGHT_TEXT = ("thinking", "reasoning", "text", "content", "summary")


def chat_to_messages(messages: Any) -> Chat:
    """Convert one chat; anything that is no list is one invalid item."""
    if not isinstance(messages, list):
        return to_messages([None])
    plain = plain_chat(messages)
    return to_messages(chat_items(messages)) if plain is None else plain


def chat_items(messages: Iterable[Any]) -> Iterator[Item | None]:
    """The items of a chat in order; `None` where a message or a call is not what it should be."""
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str):
            yield None
            continue
        role = ROLES.get(role, role)
        items = _results(message) if role == "tool" else _spoken(role, message)
        yield from items if message.get("weight") != 0 else (item and item | {"weight": 0} for item in items)


def responses_items(history: Any) -> Iterator[Any]:
    """A history of Responses items: newer kinds under the names of the older ones, chat messages (with calls inside) taken apart."""
    for item in history if isinstance(history, list) else [None]:
        if not isinstance(item, dict):
            yield item
            continue
        kind = item.get("type")
        if kind == "reasoning":
            yield reasoning_item(item)
        elif kind == "custom_tool_call":
            yield {
                "type": "function_call",
                "name": item.get("name"),
                "arguments": {"input": item.get("input")},
                "call_id": item.get("call_id"),
            }
        elif kind == "custom_tool_call_output":
            yield result_item(item.get("call_id"), item.get("output"))
        elif kind == "local_shell_call":
            yield {"type": "function_call", "name": "local_shell", "arguments": item.get("action"), "call_id": item.get("call_id")}
        elif kind == "local_shell_call_output":
            yield result_item(item.get("call_id") or item.get("id"), item.get("output"))
        elif kind is None or kind == "message":
            inside = item.get("tool_calls") or item.get("function_call") or item.get("role") in ("tool", "function")
            yield from chat_items([item]) if inside else [item]
        else:
            yield item


def call_item(call: Any) -> Item | None:
    """A call in any spelling as a `function_call` item."""
    if not isinstance(call, dict):
        return None
    function = call.get("function")
    if isinstance(function, dict) and "arguments" in function and "id" in call:
        return {
            "type": "function_call",
            "name": function.get("name"),
            "arguments": function["arguments"],
            "call_id": call["id"] or call.get("call_id"),
        }
    inner = function if isinstance(function, dict) else call
    name = function if isinstance(function, str) else inner.get("name")
    arguments = next((each[key] for each in (inner, call) for key in _ARGUMENTS if each.get(key) is not None), None)
    return {"type": "function_call", "name": name, "arguments": arguments, "call_id": call.get("id") or call.get("call_id")}


def result_item(call_id: Any, content: Any) -> Item:
    """A result as a `function_call_output` item."""
    return {"type": "function_call_output", "call_id": call_id, "output": _plain(content)}


def reasoning_item(thought: Any) -> Item:
    """What the model thought, as a `reasoning` item with its text; without one where it is encrypted or redacted."""
    text = _thought_text(thought)
    return {"type": "reasoning", "text": text} if text else {"type": "reasoning"}


def tool_error(error: Any) -> str:
    """What a tool's error says; empty where there is none."""
    text = error.get("message") if isinstance(error, dict) else error
    return text if isinstance(text, str) else ""


def _results(message: Item) -> Iterator[Item]:
    """A tool's message; where it has an error beside its content, the error is what the model was told."""
    ids = message.get("tool_call_ids")
    call_id = message.get("tool_call_id") or (ids[0] if isinstance(ids, list) and ids else None)
    content = _blocks(message)
    blocks = [block for block in content if _kind(block) in _RESULTS] if isinstance(content, list) else []
    for block in blocks:
        yield _block_result(block)
    if not blocks:
        yield result_item(call_id, tool_error(message.get("error")) or content)


def _spoken(role: str, message: Item) -> Iterator[Item | None]:
    """Results (they answer what came before), reasoning, words, calls."""
    content = _blocks(message)
    parts: list[Any] = []
    calls: list[Item | None] = []
    thoughts = [reasoning_item(message[name]) for name in _THOUGHT if message.get(name)][:1]
    for block in content if isinstance(content, list) else []:
        kind = _kind(block)
        if kind in _RESULTS:
            yield _block_result(block)
        elif kind in _CALLS:
            calls.append(call_item(block))
        elif kind in _REASONING:
            thoughts.append(reasoning_item(block))
        else:
            parts.append(block)
    yield from thoughts
    if message.get("refusal"):
        yield {"type": "refusal"}
    answered_only = isinstance(content, list) and bool(content) and not parts
    calls += _named_calls(message)
    text = _plain(parts if isinstance(content, list) else content)
    if text or not (calls or answered_only):
        yield {"type": "message", "role": role, "content": text if isinstance(text, str | list) else [text] if text else None}
    yield from calls


def _kind(block: Any) -> str:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else ""


def _blocks(message: Item) -> Any:
    """A message's content; OpenTelemetry calls it `parts`."""
    return message["parts"] if message.get("content") is None and isinstance(message.get("parts"), list) else message.get("content")


def _named_calls(message: Item) -> list[Item | None]:
    raw, legacy = message.get("tool_calls"), message.get("function_call")
    calls: list[Item | None] = [call_item(call) for call in raw] if isinstance(raw, list) else [None] if raw else []
    return [*calls, call_item(legacy)] if legacy else calls


def _block_result(block: Item) -> Item:
    call_id = block.get("tool_use_id") or block.get("tool_call_id") or block.get("id")
    keys = ("content", "response", "result", "output")
    return result_item(call_id, next((block[key] for key in keys if block.get(key) is not None), None))


def _plain(content: Any) -> Any:
    """A text part's text under one name: AgentDojo and OpenTelemetry call it `content`."""
    if not isinstance(content, list):
        return content
    return [
        {"type": "text", "text": part["content"]}
        if isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("content"), str)
        else part
        for part in content
    ]


def _thought_text(thought: Any, depth: int = 4) -> str:
    """The first readable text of a thought: a string, a list of parts, or a block with the text under one of its usual names."""
    if isinstance(thought, str):
        return thought
    if isinstance(thought, list) and depth:
        return "\n\n".join(text for text in (_thought_text(part, depth - 1) for part in thought) if text)
    if isinstance(thought, dict) and depth:
        return next((text for name in _THOUGHT_TEXT if (text := _thought_text(thought.get(name), depth - 1))), "")
    return ""
