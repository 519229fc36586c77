"""Plain items → chat messages in the order of the record, with the ids that it has. `chat.py` makes plain items of every SDK's messages.

Nothing is repaired here: results stand where the record has them, and calls keep their ids, reused or empty. What cannot be an item is
counted in `damage`, what has no place in a chat in `skipped`.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_pipeline.sessions.call_words import (
    BEGINNINGS,
    has_call_words,
    read_call_words,
    read_result_words,
)
from agent_pipeline.sessions.session import Message


class Item(msgspec.Struct, frozen=True, gc=False):
    """One step of a conversation.

    `kind` is `message`, `function_call`, `function_call_output` or `reasoning`; `harmless` and `unread` have no place in a chat and are
    counted by their `name`. The kind is empty for what cannot be an item. `text` is what was said, a call's arguments, a result's
    output, or a thought. `media` names the pictures and files whose marks stand in the text. A call or a message that is not `trained`
    is marked by OpenAI's `weight: 0`; if it was `cut` off, that is counted. A result that its record calls a `failed` one is marked by
    Anthropic's `is_error`. A call that comes `first` in a message does not belong to the words of another.
    """

    kind: str
    text: str = ""
    role: str = ""
    name: str = ""
    call_id: str = ""
    trained: bool = True
    media: tuple[str, ...] = ()
    failed: bool = False
    first: bool = False
    cut: bool = False


INVALID = Item("")

CLEARED = {
    "[Old tool result content cleared]",
    "[Tool result cleared]",
    "[cleared to save context]",
}
"""What agents write in place of old results. The answers that followed a result were given when the model still saw it."""


def mark_unread(what: str) -> Item:
    """Return the item for something that shows a call, a result or words, and that nobody understands.

    A reader puts it into a history at the place of what it could not read. `what` names its type.
    """
    return Item("unread", name=what)


def mark_cut_text(what: str, text: str = "") -> Item:
    """Return the item for something that a logger or an exporter cut off or blacked out.

    A reader puts it into a history at the place of what was lost. `what` names where it was, and `text` is what is left of it.
    """
    return Item("cut_text", text, name=what)


@dataclass
class Chat:
    """Messages with what the model thought before each, the counts of what was wrong (`damage`, by kind) and of what was left out
    (`skipped`, by type)."""

    messages: list[Message] = field(default_factory=list)
    reasoning: list[dict[str, Any]] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def assemble_chat(items: Iterable[Item]) -> Chat:
    """The chat that items make.

    Calls that follow one another, or the assistant's own words, are one assistant message, until a result or another's words close it; but
    words that are a message of their own, before a message of calls, stay one. Reasoning goes to the assistant message that follows it.
    Damage is `invalid_item`, `unread`, `cut_message`, and `missing_media`: a picture or a file that an answer follows.
    """
    chat = Chat()
    messages = chat.messages
    thoughts: list[str] = []
    unseen = 0  # pictures and files that no answer has followed yet
    opened: Message | None = None  # the assistant message that the next call joins
    opened_at = -1
    for item in items:
        kind, role = item.kind, item.role
        if item.media:
            chat.skipped.update(f"media:{name}" for name in item.media)
            unseen += len(item.media)
        if kind == "function_call":
            if (
                opened is None
                or item.trained == ("weight" in opened)
                or (item.first and "tool_calls" not in opened)
            ):
                opened, opened_at = _assistant("", item.trained), len(messages)
                messages.append(opened)
                if item.cut:
                    chat.damage["cut_message"] += 1
            function = {"name": item.name, "arguments": item.text}
            opened.setdefault("tool_calls", []).append(
                {"id": item.call_id, "type": "function", "function": function}
            )
        elif role == "assistant":
            messages.append(_assistant(item.text, item.trained))
            if item.cut:
                chat.damage["cut_message"] += 1
            if opened is not None and not item.text.strip():
                continue
            opened, opened_at = messages[-1], len(messages) - 1
        else:
            if kind == "message":
                messages.append({"role": role, "content": item.text})
                opened = None
            elif kind == "function_call_output":
                messages.append(
                    {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
                )
                if item.text.strip() in CLEARED:
                    _count_damage(chat, mark_cut_text("cleared result"))
                if item.failed:
                    messages[-1]["is_error"] = True
                opened = None
            elif kind == "reasoning" and item.text:
                thoughts.append(item.text)
            elif kind == "reasoning":
                chat.skipped[kind] += 1
            elif kind == "harmless":
                chat.skipped[item.name] += 1
            else:
                _count_damage(chat, item)
            continue
        if unseen:
            chat.damage["missing_media"] += unseen
            unseen = 0
        if thoughts:
            chat.reasoning += [{"message": opened_at, "text": text} for text in thoughts]
            thoughts = []
    if thoughts:  # nothing was said after it
        chat.skipped["reasoning"] += len(thoughts)
    if any(beginning in message["content"] for message in messages for beginning in BEGINNINGS):
        _read_call_words(chat)
    return chat


def _read_call_words(chat: Chat) -> None:
    """Make calls and results of words that tell them; words that tell calls in a form that nobody understands are damage."""
    messages: list[Message] = []
    new_places: dict[int, int] = {}
    for place, message in enumerate(chat.messages):
        new_places[place] = len(messages)
        role, text = message["role"], message["content"]
        if role == "assistant" and not message.get("tool_calls") and has_call_words(text):
            if (with_calls := read_call_words(message)) is not None:
                messages.append(with_calls)
            else:
                _count_damage(chat, mark_unread("calls told as words"))
                messages.append(message)
        elif (
            role in ("user", "tool")
            and "<tool_response>" in text
            and (read := read_result_words(message)) is not None
        ):
            messages += read
        else:
            messages.append(message)
    chat.messages = messages
    chat.reasoning = [
        thought | {"message": new_places[thought["message"]]} for thought in chat.reasoning
    ]


def _count_damage(chat: Chat, item: Item) -> None:
    if not item.kind:
        chat.damage["invalid_item"] += 1
        return
    kind = item.kind if item.kind == "cut_text" else "unread"
    chat.damage[kind] += 1
    chat.skipped[f"{kind}:{item.name or item.kind}"] += 1


def _assistant(content: str, trained: bool) -> Message:
    message: Message = {"role": "assistant", "content": content}
    return message if trained else message | {"weight": 0}
