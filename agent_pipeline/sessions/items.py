"""OpenAI Responses / Agents SDK items → chat messages in the order of the record, with the ids that it has.

Every item becomes one struct (`PlainItem`): decoded into it where it has the usual types, coerced into it where it has others. One state
machine then makes messages of the structs. Nothing is repaired here: results stand where the record has them, and calls keep their ids,
reused or empty. What cannot be an item is counted in `damage`, what has no place in a chat in `skipped`.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_pipeline.sessions.session import Message

Item = dict[str, Any]

_TEXT_PARTS = {"text", "input_text", "output_text"}
_OTHER_PARTS = {"refusal", "resource", "computer_screenshot"} | {
    f"{side}{kind}" for side in ("", "input_", "output_") for kind in ("image", "image_url", "file", "audio", "video")
}
MAX_DEPTH = 100
"""How deep an item may be nested."""

ROLES = {"human": "user", "ai": "assistant", "gpt": "assistant", "model": "assistant", "function": "tool", "observation": "tool"}
"""Other names of the four roles."""

_SPEAKERS = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_SURROGATES = re.compile("[\ud800-\udfff]")
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)


@dataclass
class Chat:
    """Messages with what the model thought before each, the counts of what was wrong (`damage`, by kind) and of what was left out
    (`skipped`, by type)."""

    messages: list[Message] = field(default_factory=list)
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None


class PlainItem(msgspec.Struct):
    """An item with the types that nearly every item has; fields that nobody reads are passed over.

    `text` is a reasoning item's. `weight` is OpenAI's: 0 marks an assistant's message that is not to be trained on.
    """

    type: str | None = None
    role: str | None = None
    content: str | list[_Part] | None = None
    name: str | None = None
    arguments: str | None = None
    call_id: str | None = None
    id: str | None = None
    output: str | None = None
    tool_calls: Any = None
    text: Any = None
    weight: Any = None


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
    weight: float | None = None


_ITEM_LINES = msgspec.json.Decoder(PlainItem).decode_lines
_MESSAGES = msgspec.json.Decoder(list[_PlainMessage]).decode


def to_messages(items: Iterable[Item | None]) -> Chat:
    """Convert one history. `None` stands for an item that could not be parsed.

    Calls that follow one another, or the assistant's own words, are one assistant message, until a result or another's words close it.
    A call's `id` and a result's `tool_call_id` are those of the record, empty where it has none; arguments are a string, decoded by nobody.
    Reasoning goes to the assistant message that follows it. The one kind of damage is `invalid_item`.
    """
    chat = Chat()
    return _assembled((coerced(item, chat) for item in items), chat)


def texts_to_messages(texts: Sequence[bytes | None], parse: Callable[[bytes | None], Item | None]) -> Chat:
    """Convert one history of JSON texts, an item each; `parse` reads those whose types are not the usual ones."""
    chat = Chat()
    try:
        typed = _ITEM_LINES(b"\n".join(texts))  # type: ignore[arg-type]
    except _REFUSED:
        typed = []
    if len(typed) != len(texts):
        return to_messages(map(parse, texts))
    pairs = zip(typed, texts, strict=True)
    return _assembled((item if _is_plain(item) else coerced(parse(text), chat) for item, text in pairs), chat)


def plain_chat(messages: list[Any] | msgspec.Raw) -> Chat | None:
    """Convert a chat (a list, or its JSON) in OpenAI's own form; `None` for one with anything else in it."""
    try:
        typed = _MESSAGES(messages) if type(messages) is msgspec.Raw else msgspec.convert(messages, list[_PlainMessage])
    except _REFUSED:
        return None
    return _assembled(_chat_items(typed), Chat())


def _chat_items(messages: list[_PlainMessage]) -> Iterator[PlainItem]:
    for message in messages:
        role, calls = ROLES.get(message.role, message.role), message.tool_calls
        if role == "tool":
            yield PlainItem(type="function_call_output", call_id=message.tool_call_id, output=message.content or "")
            continue
        if message.content or not calls:
            yield PlainItem(role=role, content=message.content or "", weight=message.weight)
        for call in calls or ():
            name, arguments = call.function.name, call.function.arguments
            yield PlainItem(type="function_call", name=name, arguments=arguments, call_id=call.id, weight=message.weight)


def _assembled(items: Iterable[PlainItem | None], chat: Chat) -> Chat:
    """The messages of plain items (their contents are strings); `None` was counted already."""
    messages, damage = chat.messages, chat.damage
    thoughts: list[str] = []
    opened: Message | None = None  # the assistant message that the next call joins
    opened_at = -1
    for item in items:
        if item is None:
            continue
        kind = item.type
        if kind == "function_call":
            if not item.name or item.name.isspace():
                damage["invalid_item"] += 1
                continue
            function = {"name": item.name, "arguments": item.arguments or ""}
            call = {"id": item.call_id or item.id or "", "type": "function", "function": function}
            if opened is None or (item.weight == 0) != ("weight" in opened):
                opened, opened_at = {"role": "assistant", "content": "", "tool_calls": [call]}, len(messages)
                messages.append(opened)
                if item.weight == 0:
                    opened["weight"] = 0
            elif "tool_calls" in opened:
                opened["tool_calls"].append(call)
            else:
                opened["tool_calls"] = [call]
        elif kind == "function_call_output":
            messages.append({"role": "tool", "tool_call_id": item.call_id or "", "content": item.output or ""})
            opened = None
            continue
        elif kind == "reasoning":
            thoughts.append(item.text)
            continue
        else:
            role, content = _SPEAKERS.get(item.role or ""), item.content
            if role is None:
                damage["invalid_item"] += 1
                continue
            message: Message = {"role": role, "content": content}
            messages.append(message)
            if role != "assistant":
                opened = None
                continue
            if item.weight == 0:
                message["weight"] = 0
            if opened is not None and (not content or content.isspace()):  # type: ignore[union-attr]
                continue
            opened, opened_at = message, len(messages) - 1
        if thoughts:
            chat.reasoning += [{"message": opened_at, "text": text} for text in thoughts]
            thoughts = []
    if thoughts:  # nothing was said after it
        chat.skipped["reasoning"] += len(thoughts)
    return chat


def _is_plain(item: PlainItem) -> bool:
    """Whether a decoded item is complete without another look; a content of one text part becomes its text."""
    kind = item.type
    if kind == "message" or not kind:
        content = item.content
        if type(content) is list and len(content) == 1 and content[0].type in _TEXT_PARTS:
            content = item.content = content[0].text
        return type(content) is str and item.role is not None and item.tool_calls is None
    return kind == "function_call" or kind == "function_call_output"


def coerced(item: Any, chat: Chat) -> PlainItem | None:
    """An item of any shape as a plain one; `None` where it cannot be one, which is counted as damaged or skipped."""
    kind = _kind(item)
    if kind is None:
        chat.damage["invalid_item"] += 1
        return None
    if kind == "message":
        return PlainItem(role=item["role"], content=text_of(item.get("content"), chat.skipped), weight=item.get("weight"))
    if kind == "function_call":
        arguments = item.get("arguments")
        text = arguments if type(arguments) is str else "" if arguments is None else _json(arguments)
        call_id = _id(item.get("call_id")) or _id(item.get("id"))
        if text is not None:
            return PlainItem(type=kind, name=item["name"], arguments=text, call_id=call_id, weight=item.get("weight"))
    elif kind == "function_call_output":
        output = item.get("output")
        text = output if type(output) is str else _output_text(output, chat.skipped)
        if text is not None:
            return PlainItem(type=kind, call_id=_id(item.get("call_id")), output=text)
    elif kind == "reasoning" and (words := _reasoning(item)):
        return PlainItem(type=kind, text=words)
    else:
        chat.skipped[_SURROGATES.sub("\ufffd", kind)] += 1
        return None
    chat.damage["invalid_item"] += 1
    return None


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
    """An item's type; `None` for one that cannot be what it says it is."""
    if type(item) is not dict:
        return None
    kind = item.get("type")
    if not kind:
        kind = "message" if "role" in item else None
    if kind == "message":
        # A chat message with `tool_calls` inside is no item: taking its words alone would lose its calls.
        role = item.get("role")
        return "message" if type(role) is str and role in _SPEAKERS and not item.get("tool_calls") else None
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

    `None` for a value that nobody could walk.
    """
    if output is None or isinstance(output, str):
        return output or ""
    known = _TEXT_PARTS | _OTHER_PARTS
    if isinstance(output, list) and output and all(isinstance(part, str) or _part_kind(part) in known for part in output):
        return text_of(output, skipped)
    return _json(output)


def _json(value: Any) -> str | None:
    """A value as JSON text (NaN as it is: whoever needs strict JSON decides); `None` where it is nested too deeply."""
    if value == "":
        return ""
    try:
        mended_unicode(value, Counter())  # for its depth
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None
