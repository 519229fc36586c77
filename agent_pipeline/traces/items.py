"""OpenAI Responses / Agents SDK items → chat messages, with every call beside its own result.

Calls are paired **by position**, not by a dictionary of ids: real logs reuse ids, leave them empty, and reorder results. A result
answers the open call that carries its id, else the oldest open call. What cannot be mended is counted by kind in `damage`, what
has no place in a chat is counted in `skipped`; nothing vanishes without a number.
"""

import json
import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from agent_pipeline.traces.session import Message

Item = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_OTHER_PARTS = {"refusal", "resource", "computer_screenshot"} | {
    f"{side}{kind}" for side in ("", "input_", "output_") for kind in ("image", "image_url", "file", "audio", "video")
}
MAX_DEPTH = 100
"""How deep an item may be nested."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass
class Chat:
    """Messages with the counts of what was wrong (`damage`, by kind) and of what was left out (`skipped`, by type)."""

    messages: list[Message] = field(default_factory=list)
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass
class _Call:
    message: Message
    id: str
    turn: int
    position: int
    output: str | None = None


@dataclass
class _Output:
    id: str
    turn: int
    preceding: int
    content: str
    call: _Call | None = None


@dataclass
class _Walk:
    """What is gathered on the way through the items.

    A turn begins with each user message, and a call can be answered in its own turn only.
    """

    chat: Chat = field(default_factory=Chat)
    calls: list[_Call] = field(default_factory=list)
    outputs: list[_Output] = field(default_factory=list)
    uses: Counter[str] = field(default_factory=Counter)
    made_ids: set[str] = field(default_factory=set)
    turn: int = 0
    open_message: Message | None = None


def to_messages(items: Iterable[Item | None]) -> Chat:
    """Convert one history. `None` stands for an item that could not be parsed.

    Damage kinds: `invalid_item`, `invalid_arguments` (not a JSON object), `unanswered_call`, `orphan_output`; `mismatched_call_id`
    (a result that names no open call was put to the oldest one, a guess); and, mended with certainty, `empty_call_id`,
    `reused_call_id`, `double_encoded_arguments`, `invalid_unicode`.
    """
    walk = _Walk()
    chat = walk.chat
    for item in items:
        try:
            item = mended_unicode(item, chat.damage)
        except ValueError:
            item = None
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
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = _part_kind(part)
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            skipped[f"part:{kind}" if kind else "part"] += 1
    return "".join(texts)


def arguments_json(raw: Any, damage: Counter[str]) -> str:
    """A call's arguments as the JSON text of one object; other forms are mended where that is certain, else counted.

    NaN and infinity are no JSON; half an emoji may hide behind an escape that only decoding brings to light.
    """
    if raw is None or (isinstance(raw, str) and not raw.strip()):
        return "{}"
    value, decoded = raw, 0
    try:
        while isinstance(value, str) and decoded < 3:
            value, decoded = json.loads(value), decoded + 1
        if isinstance(value, dict):
            mended = mended_unicode(value, damage)
            text = json.dumps(mended, ensure_ascii=False, allow_nan=False)
            damage["double_encoded_arguments"] += decoded > 1
            return raw if isinstance(raw, str) and decoded == 1 and mended == value else text
    except (ValueError, RecursionError):
        pass
    damage["invalid_arguments"] += 1
    return raw if isinstance(raw, str) else json.dumps(raw, ensure_ascii=False)


def mended_unicode(value: Any, damage: Counter[str], depth: int = MAX_DEPTH) -> Any:
    """Lone surrogates (half an emoji, cut off) cannot be written as UTF-8: each becomes U+FFFD, counted as `invalid_unicode`.

    Raises:
        ValueError: the value is nested deeper than `depth`: whoever walks it after us would end in a RecursionError.
    """
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            damage["invalid_unicode"] += 1
            return re.sub("[\ud800-\udfff]", "\ufffd", value)
    elif isinstance(value, dict):
        return {mended_unicode(key, damage): mended_unicode(each, damage, depth - 1) for key, each in value.items()}
    elif isinstance(value, list):
        return [mended_unicode(each, damage, depth - 1) for each in value]
    return value


def _kind(item: Any) -> str | None:
    """An item's type; null for one that cannot be what it says it is."""
    if not isinstance(item, dict):
        return None
    kind = item.get("type") or ("message" if "role" in item else None)
    if not isinstance(kind, str):
        return None
    # A chat message with `tool_calls` inside is no item: taking its words alone would lose its calls.
    if kind == "message" and (not isinstance(item.get("role"), str) or item["role"] not in _ROLES or item.get("tool_calls")):
        return None
    if kind == "function_call" and not (isinstance(item.get("name"), str) and item["name"].strip()):
        return None
    return kind


def _part_kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return kind if isinstance(kind, str) else None


def _id(value: Any) -> str:
    """A call id as text; empty where there is none (some stores number their calls)."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _add_message(walk: _Walk, item: Item) -> None:
    role = _ROLES[item["role"]]
    walk.turn += role == "user"
    content = text_of(item.get("content"), walk.chat.skipped)
    if role != "assistant":
        walk.open_message = None
    if not content.strip():
        walk.chat.skipped["empty_message"] += 1
        return
    message: Message = {"role": role, "content": content}
    walk.chat.messages.append(message)
    if role == "assistant":
        walk.open_message = message


def _add_call(walk: _Walk, item: Item) -> None:
    damage = walk.chat.damage
    call_id = _id(item.get("call_id")) or _id(item.get("id"))
    if not call_id:
        damage["empty_call_id"] += 1
    elif walk.uses[call_id]:
        damage["reused_call_id"] += 1
    walk.uses[call_id] += 1
    made_id = _free_id(walk, call_id)
    # Calls that follow one another, or the assistant's own words, are one assistant message, until a result closes it.
    if walk.open_message is None:
        walk.open_message = {"role": "assistant", "content": ""}
        walk.chat.messages.append(walk.open_message)
    arguments = arguments_json(item.get("arguments"), damage)
    call = {"id": made_id, "type": "function", "function": {"name": item["name"], "arguments": arguments}}
    walk.open_message.setdefault("tool_calls", []).append(call)
    walk.calls.append(_Call(walk.open_message, call_id, walk.turn, len(walk.calls)))


def _free_id(walk: _Walk, call_id: str) -> str:
    """The call's own id, or one like it that no call of the conversation has yet."""
    made_id = wanted = call_id or f"call_{len(walk.calls) + 1}"
    number = walk.uses[call_id]
    while made_id in walk.made_ids:
        made_id, number = f"{wanted}_{number}", number + 1
    walk.made_ids.add(made_id)
    return made_id


def _add_output(walk: _Walk, item: Item) -> None:
    content = _output_text(item.get("output"), walk.chat.skipped)
    walk.outputs.append(_Output(_id(item.get("call_id")), walk.turn, len(walk.calls), content))
    walk.open_message = None


def _output_text(output: Any, skipped: Counter[str]) -> str:
    """A result's text: a string or a list of parts as in a message; what is a value of the tool's (an object, a list of them) as JSON."""
    known = _TEXT_PARTS | _OTHER_PARTS
    parts = isinstance(output, list) and output and all(isinstance(part, str) or _part_kind(part) in known for part in output)
    return text_of(output, skipped) if output is None or isinstance(output, str) or parts else json.dumps(output, ensure_ascii=False)


def _pair(walk: _Walk) -> None:
    """First every result that names an open call of its turn, then the others by position, oldest first."""
    _answer(walk, lambda each: (each.turn, each.id) if each.id else None)
    _answer(walk, lambda each: each.turn)
    damage = walk.chat.damage
    for output in walk.outputs:
        if output.call is None:
            damage["orphan_output"] += 1
        elif not (output.id and output.call.id):
            damage["empty_call_id"] += 1
        elif output.id != output.call.id:
            damage["mismatched_call_id"] += 1
    damage["unanswered_call"] += sum(call.output is None for call in walk.calls)


def _answer(walk: _Walk, place: Callable[[_Call | _Output], Hashable]) -> None:
    """Put each result that has no call yet to the oldest open call in the same place (null: none) that was made before it."""
    waiting: dict[Hashable, deque[_Call]] = defaultdict(deque)
    for call in walk.calls:
        if call.output is None:
            waiting[place(call)].append(call)
    for output in walk.outputs:
        calls = waiting[place(output)] if place(output) is not None else None
        if output.call is None and calls and calls[0].position < output.preceding:
            output.call = calls.popleft()
            output.call.output = output.content


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
