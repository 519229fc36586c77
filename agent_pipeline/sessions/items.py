"""OpenAI Responses / Agents SDK items → chat messages in the order of the record, with the ids that it has.

Nothing is mended here: results stand where the record has them and calls keep their ids, reused or empty; `repair` does the rest, for
all readers. What cannot be an item is counted in `damage`, what has no place in a chat in `skipped`; nothing vanishes without a number.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_pipeline.sessions.session import Message

Item = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_TEXT_KINDS = tuple(_TEXT_PARTS)  # a tuple asks for no hash, and a type may be a list
_OTHER_PARTS = {"refusal", "resource", "computer_screenshot"} | {
    f"{side}{kind}" for side in ("", "input_", "output_") for kind in ("image", "image_url", "file", "audio", "video")
}
MAX_DEPTH = 100
"""How deep an item may be nested."""

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass
class Chat:
    """Messages with what the model thought before each, the counts of what was wrong (`damage`, by kind) and of what was left out
    (`skipped`, by type)."""

    messages: list[Message] = field(default_factory=list)
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def to_messages(items: Iterable[Item | None]) -> Chat:
    """Convert one history. `None` stands for an item that could not be parsed.

    Calls that follow one another, or the assistant's own words, are one assistant message, until a result or another's words close it.
    A call's `id` and a result's `tool_call_id` are those of the record, empty where it has none; arguments are a string, decoded by nobody.
    Reasoning goes to the assistant message that follows it. The one kind of damage is `invalid_item`.
    """
    chat = Chat()
    messages, damage, skipped = chat.messages, chat.damage, chat.skipped
    thought: list[str] = []
    opened: Message | None = None  # the assistant message that the next call joins
    for item in items:
        kind = _kind(item)
        if item is None or kind is None:
            damage["invalid_item"] += 1
        elif kind == "message":
            role = _ROLES[item["role"]]
            content = item.get("content")
            if type(content) is not str:
                content = text_of(content, skipped)
            message = {"role": role, "content": content}
            messages.append(message)
            if role != "assistant":
                opened = None
            elif opened is None or (content and not content.isspace()):
                opened = message
                if thought:
                    thought = _think(chat, thought, len(messages) - 1)
        elif kind == "function_call":
            text = item.get("arguments")
            if type(text) is not str and (text := "" if text is None else _json(text)) is None:
                damage["invalid_item"] += 1
                continue
            call_id = _id(item.get("call_id")) or _id(item.get("id"))
            call = {"id": call_id, "type": "function", "function": {"name": item["name"], "arguments": text}}
            opened = _with_call(messages, opened, call)
            if thought:
                thought = _think(chat, thought, next(at for at in range(len(messages) - 1, -1, -1) if messages[at] is opened))
        elif kind == "function_call_output":
            text = item.get("output")
            if type(text) is not str and (text := _output_text(text, skipped)) is None:
                damage["invalid_item"] += 1
                continue
            messages.append({"role": "tool", "tool_call_id": _id(item.get("call_id")), "content": text})
            opened = None
        elif kind == "reasoning" and (words := _reasoning(item)):
            thought.append(words)
        else:
            skipped[_SURROGATES.sub("\ufffd", kind)] += 1
    if thought:  # nothing was said after it
        skipped["reasoning"] += len(thought)
    return chat


def _with_call(messages: list[Message], opened: Message | None, call: dict[str, Any]) -> Message:
    """The assistant's message that a call joins: the open one, else a new one without words."""
    if opened is None:
        opened = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages.append(opened)
    elif "tool_calls" in opened:
        opened["tool_calls"].append(call)
    else:
        opened["tool_calls"] = [call]
    return opened


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class _PlainItem(msgspec.Struct):
    """An item with the types that nearly every item has; the fields that nobody reads are passed over."""

    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None
    call_id: str | None = None
    id: str | None = None
    output: str | None = None
    tool_calls: Any = None


class _PlainFunction(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    arguments: str


class _PlainCall(msgspec.Struct, forbid_unknown_fields=True):
    function: _PlainFunction
    id: str
    type: str | None = None


class _PlainMessage(msgspec.Struct, forbid_unknown_fields=True):
    """A message in OpenAI's own form, and nothing beside it."""

    role: str
    content: str | None = None
    tool_calls: list[_PlainCall] | None = None
    tool_call_id: str | None = None
    name: str | None = None


_ITEM_LINES = msgspec.json.Decoder(_PlainItem).decode_lines
_MESSAGES = msgspec.json.Decoder(list[_PlainMessage]).decode
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)


def texts_to_messages(texts: Sequence[bytes | None], parse: Callable[[bytes | None], Item | None]) -> Chat:
    """Convert one history of JSON texts, an item each: all at once where every item is of the common kinds, else each by itself."""
    messages = _plain_items(texts)
    return Chat(messages) if messages is not None else to_messages(map(parse, texts))


def _plain_items(texts: Sequence[bytes | None]) -> list[Message] | None:
    """What `to_messages` makes of items that need no second look; null where one does."""
    try:
        items = _ITEM_LINES(b"\n".join(texts))  # type: ignore[arg-type]
    except _REFUSED:
        return None
    if len(items) != len(texts):
        return None
    messages: list[Message] = []
    opened: Message | None = None
    for item in items:
        kind = item.type
        if kind == "message" or not kind:
            role, content = _ROLES.get(item.role or ""), item.content
            if type(content) is list and len(content) == 1 and content[0].type in _TEXT_PARTS:
                content = content[0].text
            if role is None or type(content) is not str or item.tool_calls is not None:
                return None
            message = {"role": role, "content": content}
            messages.append(message)
            if role != "assistant":
                opened = None
            elif opened is None or (content and not content.isspace()):
                opened = message
        elif kind == "function_call":
            name = item.name
            if not name or name.isspace():
                return None
            call = {"id": item.call_id or item.id or "", "type": "function", "function": {"name": name, "arguments": item.arguments or ""}}
            opened = _with_call(messages, opened, call)
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": item.output or ""})
            opened = None
        else:
            return None
    return messages


def plain_chat(messages: list[Any] | msgspec.Raw) -> list[Message] | None:
    """A chat (a list, or its JSON) in OpenAI's own form as `to_messages` makes it of its items; null for one with anything else in it."""
    try:
        read = _MESSAGES(messages) if type(messages) is msgspec.Raw else msgspec.convert(messages, list[_PlainMessage])
    except _REFUSED:
        return None
    made: list[Message] = []
    opened: Message | None = None
    for message in read:
        role, content, calls = message.role, message.content, message.tool_calls
        if role == "tool":
            if calls is not None:
                return None
            made.append({"role": "tool", "tool_call_id": message.tool_call_id or "", "content": content or ""})
            opened = None
            continue
        if role != "assistant":
            if role not in _ROLES or content is None or calls is not None:
                return None
            made.append({"role": _ROLES[role], "content": content})
            opened = None
            continue
        if content or not calls:
            told = {"role": role, "content": content or ""}
            made.append(told)
            if opened is None or (content and not content.isspace()):
                opened = told
        for call in calls or ():
            name = call.function.name
            if not name or name.isspace():
                return None
            copied = {"id": call.id, "type": "function", "function": {"name": name, "arguments": call.function.arguments}}
            opened = _with_call(made, opened, copied)
    return made


def text_of(content: Any, skipped: Counter[str]) -> str:
    """The text of a content: a string, or a list of parts joined in order; other parts are counted as skipped."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if type(content) is list and len(content) == 1 and type(part := content[0]) is dict:  # what nearly all of them are
        text = part.get("text")
        if type(text) is str and part.get("type") in _TEXT_KINDS:
            return text
    texts = []
    for part in content if isinstance(content, list) else [content]:
        kind = _part_kind(part)
        if isinstance(part, str):
            texts.append(part)
        elif kind in _TEXT_PARTS and isinstance(part.get("text"), str):
            texts.append(part["text"])
        else:
            skipped[f"part:{kind}" if kind else "part"] += 1
    return texts[0] if len(texts) == 1 else "".join(texts)


def mended_unicode(value: Any, damage: Counter[str], depth: int = MAX_DEPTH) -> Any:
    """Lone surrogates (half an emoji, cut off) cannot be written as UTF-8: each becomes U+FFFD, counted as `invalid_unicode`.

    Raises:
        ValueError: the value is nested deeper than `depth`: whoever walks it after us would end in a RecursionError.
    """
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str):
        if not storable(value):
            damage["invalid_unicode"] += 1
            return _SURROGATES.sub("\ufffd", value)
    elif isinstance(value, dict):
        return {mended_unicode(key, damage): mended_unicode(each, damage, depth - 1) for key, each in value.items()}
    elif isinstance(value, list):
        return [mended_unicode(each, damage, depth - 1) for each in value]
    return value


def storable(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _kind(item: Any) -> str | None:
    """An item's type; null for one that cannot be what it says it is."""
    if type(item) is not dict:
        return None
    kind = item.get("type")
    if not kind:
        kind = "message" if "role" in item else None
    if kind == "message":
        # A chat message with `tool_calls` inside is no item: taking its words alone would lose its calls.
        role = item.get("role")
        return "message" if type(role) is str and role in _ROLES and not item.get("tool_calls") else None
    if kind == "function_call":
        name = item.get("name")
        return "function_call" if type(name) is str and name and not name.isspace() else None
    return kind if isinstance(kind, str) else None


def _part_kind(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    return _SURROGATES.sub("\ufffd", kind) if isinstance(kind, str) else None


def _id(value: Any) -> str:
    """A call id as text; empty where there is none (some stores number their calls)."""
    if type(value) is str:
        return value
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _think(chat: Chat, thought: list[str], index: int) -> list[str]:
    chat.reasoning += [{"message": index, "text": text} for text in thought]
    return []


def _reasoning(item: Item) -> str:
    """What a reasoning item says: its own text, else the whole of it, else its summary; empty where it is encrypted."""
    for name in ("text", "content", "summary"):
        raw = item.get(name)
        parts = raw if isinstance(raw, list) else [raw]
        texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
        if words := "\n\n".join(text for text in texts if isinstance(text, str) and text.strip()):
            return words
    return ""


def _output_text(output: Any, skipped: Counter[str]) -> str | None:
    """A result's text: a string or a list of parts as in a message; what is a value of the tool's (an object, a list of them) as JSON.

    Null for a value that nobody could walk.
    """
    if output is None or isinstance(output, str):
        return output or ""
    known = _TEXT_PARTS | _OTHER_PARTS
    if isinstance(output, list) and output and all(isinstance(part, str) or _part_kind(part) in known for part in output):
        return text_of(output, skipped)
    return _json(output)


def _json(value: Any) -> str | None:
    """A value as JSON text (NaN as it is: whoever needs strict JSON decides); null where it is nested too deeply."""
    if value == "":
        return ""
    try:
        mended_unicode(value, Counter())  # for its depth
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
