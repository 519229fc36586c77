"""OpenAI Responses / Agents SDK items → chat messages, with every call beside its own result.

Calls are paired **by position**, not by a dictionary of ids: real logs reuse ids, leave them empty, and reorder results. A result
answers the open call that carries its id, else the oldest open call. What cannot be mended is counted by kind in `damage`, what has no place
in a chat is counted in `skipped`; nothing vanishes without a number.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from agent_pipeline.traces.session import Message

Item = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass
class Chat:
    """Messages with the counts of what was wrong (`damage`, by kind) and of what was left out (`skipped`, by type)."""

    messages: list[Message] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass
class _Call:
    message: Message
    id: str
    turn: int
    output: str | None = None


@dataclass
class _Output:
    id: str
    turn: int
    preceding: int
    content: str


@dataclass
class _Walk:
    """What is gathered on the way through the items: a turn begins with each user message, and a call can be answered in its own turn only."""

    chat: Chat = field(default_factory=Chat)
    calls: list[_Call] = field(default_factory=list)
    outputs: list[_Output] = field(default_factory=list)
    uses: Counter[str] = field(default_factory=Counter)
    turn: int = 0
    open_message: Message | None = None


def to_messages(items: Iterable[Item | None]) -> Chat:
    """Convert one history. `None` stands for an item that could not be parsed.

    Damage kinds: `invalid_item`, `invalid_arguments` (not a JSON object), `unanswered_call`, `orphan_output`, and, mended here,
    `empty_call_id`, `reused_call_id`, `mismatched_call_id`, `double_encoded_arguments`, `invalid_unicode`.
    """
    walk = _Walk()
    chat = walk.chat
    for item in items:
        item = _mended_unicode(item, chat.damage)
        kind = _kind(item)
        if item is None or kind is None:
            chat.damage["invalid_item"] += 1
        elif kind == "message":
            _add_message(walk, item)
        elif kind == "function_call":
            _add_call(walk, item)
        elif kind == "function_call_output":
            _add_output(walk, item)
        else:
            chat.skipped[kind] += 1
    _pair(walk)
    chat.messages = _with_results(chat.messages, walk.calls)
    chat.damage, chat.skipped = +chat.damage, +chat.skipped
    return chat


def text_of(content: Any, skipped: Counter[str]) -> str:
    """The text of a content: a string, or a list of parts joined in order; other parts are counted as skipped."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return json.dumps(content, ensure_ascii=False)
    texts = []
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and part.get("type") in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            skipped[f"part:{part.get('type')}" if isinstance(part, dict) else "part"] += 1
    return "".join(texts)


def arguments_json(raw: Any, damage: Counter[str]) -> str:
    """A call's arguments as the JSON text of one object; other forms are mended where that is certain, else counted."""
    if isinstance(raw, dict):
        return json.dumps(raw, ensure_ascii=False)
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return "{}"
    value = raw
    for depth in range(3):
        if not isinstance(value, str):
            break
        try:
            value = json.loads(value)
        except ValueError:
            break
        if isinstance(value, dict):
            if depth == 0:
                return str(raw)
            damage["double_encoded_arguments"] += 1
            return json.dumps(value, ensure_ascii=False)
    damage["invalid_arguments"] += 1
    return raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)


def _mended_unicode(value: Any, damage: Counter[str]) -> Any:
    """Lone surrogates (half an emoji, cut off) cannot be written as UTF-8: each becomes U+FFFD, counted as `invalid_unicode`."""
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            damage["invalid_unicode"] += 1
            return re.sub("[\ud800-\udfff]", "\ufffd", value)
    elif isinstance(value, dict):
        return {_mended_unicode(key, damage): _mended_unicode(each, damage) for key, each in value.items()}
    elif isinstance(value, list):
        return [_mended_unicode(each, damage) for each in value]
    return value


def _kind(item: Any) -> str | None:
    if not isinstance(item, dict):
        return None
    kind = item.get("type") or ("message" if "role" in item else None)
    if kind == "message" and item.get("role") not in _ROLES:
        return None
    if kind == "function_call" and not isinstance(item.get("name"), str):
        return None
    return kind if isinstance(kind, str) else None


def _add_message(walk: _Walk, item: Item) -> None:
    role = _ROLES[item["role"]]
    walk.turn += role == "user"
    content = text_of(item.get("content"), walk.chat.skipped)
    if not content.strip():
        walk.chat.skipped["empty_message"] += 1
        return
    message: Message = {"role": role, "content": content}
    walk.chat.messages.append(message)
    walk.open_message = message if role == "assistant" else None


def _add_call(walk: _Walk, item: Item) -> None:
    damage = walk.chat.damage
    own = item.get("call_id") or item.get("id")
    call_id = own if isinstance(own, str) else ""
    if not call_id:
        damage["empty_call_id"] += 1
    made_id = call_id or f"call_{len(walk.calls) + 1}"
    walk.uses[made_id] += 1
    if walk.uses[made_id] > 1:
        damage["reused_call_id"] += 1
        made_id = f"{made_id}_{walk.uses[made_id]}"
    # Calls that follow one another, or the assistant's own words, are one assistant message, until a result closes it.
    if walk.open_message is None:
        walk.open_message = {"role": "assistant", "content": ""}
        walk.chat.messages.append(walk.open_message)
    arguments = arguments_json(item.get("arguments"), damage)
    call = {"id": made_id, "type": "function", "function": {"name": item["name"], "arguments": arguments}}
    walk.open_message.setdefault("tool_calls", []).append(call)
    walk.calls.append(_Call(walk.open_message, call_id, walk.turn))


def _add_output(walk: _Walk, item: Item) -> None:
    own, output = item.get("call_id"), item.get("output")
    plain = output is None or isinstance(output, str | list)
    content = text_of(output, walk.chat.skipped) if plain else json.dumps(output, ensure_ascii=False)
    walk.outputs.append(_Output(own if isinstance(own, str) else "", walk.turn, len(walk.calls), content))
    walk.open_message = None


def _pair(walk: _Walk) -> None:
    """First every result that names an open call of its turn, then the others by position, oldest first."""
    left = []
    for output in walk.outputs:
        call = next((c for c in _open_calls(walk, output) if c.id and c.id == output.id), None)
        if call is None:
            left.append(output)
        else:
            call.output = output.content
    for output in left:
        call = next(iter(_open_calls(walk, output)), None)
        if call is None:
            walk.chat.damage["orphan_output"] += 1
        else:
            call.output = output.content
            walk.chat.damage["mismatched_call_id" if output.id and call.id else "empty_call_id"] += 1
    walk.chat.damage["unanswered_call"] += sum(call.output is None for call in walk.calls)


def _open_calls(walk: _Walk, output: _Output) -> list[_Call]:
    return [c for c in walk.calls[: output.preceding] if c.turn == output.turn and c.output is None]


def _with_results(messages: list[Message], calls: list[_Call]) -> list[Message]:
    """Each result directly after the message that made its call, in the order of the calls."""
    results: dict[int, list[_Call]] = {}
    for call in calls:
        results.setdefault(id(call.message), []).append(call)
    ordered: list[Message] = []
    for message in messages:
        ordered.append(message)
        for call, made in zip(results.get(id(message), ()), message.get("tool_calls", ()), strict=True):
            if call.output is not None:
                ordered.append({"role": "tool", "tool_call_id": made["id"], "content": call.output})
    return ordered
