"""Plain items (the steps of a conversation), and the chat that they form.

`chat.py` reads every SDK's messages into plain items. `assemble_chat` combines the items into
messages in the order of the record, with the ids of the record. Nothing is repaired here: results
stay where the record has them, and calls keep their ids, even if an id is empty or used twice.
Records that cannot become an item are counted in `damage`. Items that a chat cannot hold are
counted in `skipped`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

import msgspec

from agent_pipeline.sessions.call_words import (
    CALL_BEGINNINGS,
    has_call_words,
    read_call_words,
    read_result_words,
)
from agent_pipeline.sessions.session import Message, Role, Thought, ToolCall


class Item(msgspec.Struct, frozen=True, gc=False):
    """One step of a conversation.

    Attributes:
        kind: `message`, `function_call`, `function_call_output` or `reasoning`. A chat cannot hold
            the kinds `harmless`, `unread` and `cut_text`; they are counted by their `name`. The
            kind is empty if the record holds something that cannot be an item.
        text: The text of a message, the arguments of a call, the output of a result, or a thought.
        role: The role of a message.
        name: The called tool, the tool that a result names, or the type of an item that is only
            counted.
        call_id: The id that joins a call and its result.
        trained: Whether the message or call is trained on; if not, it gets OpenAI's `weight: 0`.
        media: The kinds of the pictures and files that the text marks.
        failed: Whether the record reports the result as an error (Anthropic's `is_error`).
        first: Whether the call is the first item in its message, so that it does not belong to the
            text of an earlier message.
        cut: Whether the message or call was cut off. Such items are counted as damage.
        speaker: The name of the user or the agent that the record gives beside the role, or empty.
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
    speaker: str = ""


INVALID = Item("")
"""Item that replaces a record that cannot be read as an item."""

CLEARED_RESULTS = {
    "[Old tool result content cleared]",
    "[Tool result cleared]",
    "[cleared to save context]",
}
"""Texts with which agents replace old tool results. The model saw the original results when it
answered.
"""


def mark_unread(name: str) -> Item:
    """Return an item for unknown content that contains a call, a result or text.

    A reader inserts the item into a history at the position of the unknown part. `name` is the type
    of that part.
    """
    return Item("unread", name=name)


def mark_cut_text(name: str, text: str = "") -> Item:
    """Return an item for a text that a logger or an exporter cut off or hid.

    A reader inserts the item into a history at the position of the lost text. `name` names that
    position, and `text` is the remaining part of the text.
    """
    return Item("cut_text", text, name=name)


@dataclass
class Chat:
    """A chat: its messages, the thoughts before them, and counts of damaged and skipped items.

    `damage` counts damage by kind. `skipped` counts the items that a chat cannot hold, by type.
    """

    messages: list[Message] = field(default_factory=list)
    reasoning: list[Thought] = field(default_factory=list)
    damage: Counter[str] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)


def assemble_chat(items: Iterable[Item]) -> Chat:
    """Combine items into messages, in their order.

    Successive calls, and the assistant's text before them, form one assistant message, until a
    result or the text of another role closes the message. If a call is the first item in its
    record's message, the text before the call stays a separate message. A thought belongs to the
    assistant message that follows it.
    """
    assembly = _Assembly()
    for item in items:
        assembly.add(item)
    return assembly.finish()


class _Assembly:
    """A chat that grows item by item.

    Attributes:
        chat: The chat that was built so far.
    """

    def __init__(self) -> None:
        self.chat = Chat()
        self._thoughts: list[str] = []
        self._media_before_answer = 0
        self._open_message: Message | None = None
        """The assistant message to which the next call is added."""
        self._open_index = -1
        self._open_thoughts: list[Message] = []
        """The messages whose text ends within a thought."""
        self._speakers: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """By role, how many items each speaker has."""

    def add(self, item: Item) -> None:
        """Add one item to the chat."""
        if item.role in ("user", "assistant") or item.kind == "function_call":
            self._speakers[item.role or "assistant"][item.speaker] += 1
        if item.media:
            self.chat.skipped.update(f"media:{name}" for name in item.media)
            self._media_before_answer += len(item.media)
        if item.kind == "function_call":
            self._add_call(item)
            self._count_before_answer()
        elif item.role == "assistant":
            self._add_answer(item)
        elif item.kind == "message":
            self.chat.messages.append({"role": cast(Role, item.role), "content": item.text})
            self._open_message = None
        elif item.kind == "function_call_output":
            self._add_result(item)
        elif item.kind == "reasoning" and item.text:
            self._thoughts.append(item.text)
        elif item.kind == "reasoning":
            self.chat.skipped["reasoning"] += 1
        elif item.kind == "harmless":
            self.chat.skipped[item.name] += 1
        else:
            _count_damage(self.chat, item)

    def finish(self) -> Chat:
        """Return the chat.

        Thoughts without a following message are counted as skipped.
        """
        if self._thoughts:
            self.chat.skipped["reasoning"] += len(self._thoughts)
        self._count_speakers()
        self._cut_open_thoughts()
        if any(
            beginning in message["content"]
            for message in self.chat.messages
            for beginning in CALL_BEGINNINGS
        ):
            _replace_call_words(self.chat)
        return self.chat

    def _count_speakers(self) -> None:
        """Count the items whose speaker is not the one that speaks most often in their role.

        Messages of a row have no names, so a row cannot tell several users or agents apart. A
        message without a name may be of any speaker: frameworks name an agent only in the history
        of its next call, and applications insert reminders and summaries as users. A name of an
        agent beside a user's message, among other users, shows that the agent is one of several.
        """
        users, agents = self._speakers["user"], self._speakers["assistant"]
        has_other_users = len(users) > 1
        del users[""], agents[""]
        lost = sum(
            speakers.total() - max(speakers.values(), default=0) for speakers in (users, agents)
        )
        if not lost and has_other_users:
            lost = sum(count for name, count in users.items() if name in agents)
        if lost:
            self.chat.damage["several_speakers"] += lost

    def _add_call(self, item: Item) -> None:
        """Add a call to the open message.

        If there is no fitting open message, a new message is started.
        """
        message = self._open_message
        if (
            message is None
            or item.trained == ("weight" in message)
            or (item.first and "tool_calls" not in message)
        ):
            message = self._start_answer("", item)
            self._open(message)
        call: ToolCall = {
            "id": item.call_id,
            "type": "function",
            "function": {"name": item.name, "arguments": item.text},
        }
        message.setdefault("tool_calls", []).append(call)

    def _add_answer(self, item: Item) -> None:
        """Add a message of the assistant.

        Blank text does not close an open message.
        """
        message = self._start_answer(item.text, item)
        if self._open_message is not None and not item.text.strip():
            return
        self._open(message)
        self._count_before_answer()

    def _start_answer(self, content: str, item: Item) -> Message:
        """Append an assistant message to the chat."""
        message: Message = {"role": "assistant", "content": content}
        if item.cut or not item.trained:
            message["weight"] = 0
        self.chat.messages.append(message)
        if item.cut:
            self.chat.damage["cut_message"] += 1
        elif content.lstrip().startswith("<think>") and "</think>" not in content:
            self._open_thoughts.append(message)
        return message

    def _cut_open_thoughts(self) -> None:
        """Count the messages without a call whose text ends within a thought.

        Whatever stopped such a text, it is no answer. Beside a complete call, only the end of the
        thought is missing, because some servers remove `</think>` with the call.
        """
        for message in self._open_thoughts:
            if not message.get("tool_calls"):
                message["weight"] = 0
                self.chat.damage["cut_message"] += 1

    def _open(self, message: Message) -> None:
        """Mark the last message as open, so that the next call is added to it."""
        self._open_message = message
        self._open_index = len(self.chat.messages) - 1

    def _count_before_answer(self) -> None:
        """Attach the thoughts that have not been assigned yet to the open message.

        Media before the answer are counted as missing.
        """
        if self._media_before_answer:
            self.chat.damage["missing_media"] += self._media_before_answer
            self._media_before_answer = 0
        for text in self._thoughts:
            self.chat.reasoning.append({"message": self._open_index, "text": text})
        self._thoughts = []

    def _add_result(self, item: Item) -> None:
        """Append a tool message to the chat."""
        message: Message = {"role": "tool", "tool_call_id": item.call_id, "content": item.text}
        if item.text.strip() in CLEARED_RESULTS:
            _count_damage(self.chat, mark_cut_text("cleared result"))
        if item.name and not item.call_id:
            message["name"] = item.name  # repair pairs the result by this name, and removes it
        if item.failed:
            message["is_error"] = True
        self.chat.messages.append(message)
        self._open_message = None


def _replace_call_words(chat: Chat) -> None:
    """Replace text that contains calls and results by separate call and result items.

    Text that writes calls in a format that cannot be parsed counts as damage.
    """
    messages: list[Message] = []
    new_indices: dict[int, int] = {}
    for index, message in enumerate(chat.messages):
        new_indices[index] = len(messages)
        role, text = message["role"], message["content"]
        if role == "assistant" and not message.get("tool_calls") and has_call_words(text):
            message_with_calls = read_call_words(message)
            if message_with_calls is None:
                _count_damage(chat, mark_unread("calls told as words"))
            messages.append(message_with_calls or message)
        elif role in ("user", "tool") and "<tool_response>" in text:
            messages += read_result_words(message) or [message]
        else:
            messages.append(message)
    chat.messages = messages
    for thought in chat.reasoning:
        thought["message"] = new_indices[thought["message"]]


def _count_damage(chat: Chat, item: Item) -> None:
    """Count an item that a chat cannot represent and that is not harmless."""
    if not item.kind:
        chat.damage["invalid_item"] += 1
        return
    kind = item.kind if item.kind == "cut_text" else "unread"
    chat.damage[kind] += 1
    chat.skipped[f"{kind}:{item.name or item.kind}"] += 1
