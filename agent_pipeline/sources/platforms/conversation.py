"""One conversation of a trace, with the functions that build it.

A conversation has items, the keys by which items are compared, and counts of content that was left
out.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from agent_pipeline.sessions.items import Item
from agent_pipeline.sessions.session import canonicalize_arguments
from agent_pipeline.sources.platforms.spans import Span

Items = list[Item]

HARMLESS = {
    "repeated_span": "a call that two instrumentations recorded, or a record that was sent twice",
    "superseded_item": "an answer that was requested again; the conversation continues with the "
    "later answer",
    "changed_system_prompt": "answers that are not trained; the system prompt of most answers is "
    "kept, and their prompt was another one",
    "changed_clock": "trained answers; their system prompt and the kept one differ only in dates "
    "and times",
    "other_choice": "a further answer to the same request (`n`); only the first answer is read",
    "copied_answer": "an answer that a branch repeats; it is trained in its own conversation",
    "changed_tools": "the tools of most answers are kept; answers with other tools are not trained",
    "nested_tool_span": "a tool that another tool called; the model did not call it, and did not "
    "see its result",
    "known_tool_span": "a step that repeats a call or a text of the messages",
    "model_call_without_text": "steps that record a model call without its messages; also damage "
    "if no other record has the messages",
}
"""Reasons why it is harmless to leave out some content of a conversation, by kind of content."""

_DEPTH = 40
"""Maximum number of enclosing steps that are searched."""


@dataclass(frozen=True)
class ModelAnswer:
    """An answer of a model in a conversation.

    Attributes:
        call: The model call.
        start: How many keys of the conversation there are before the answer.
        end: How many keys of the conversation there are up to the answer's end.
        system: The system prompt of the model call.
    """

    call: Span
    start: int
    end: int
    system: Items


@dataclass
class Conversation:
    """A conversation: its system prompt, its items with comparison keys, and its model calls."""

    system: Items = field(default_factory=list)
    items: Items = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    """Counts of harmless content that was left out, by the kinds in `HARMLESS`."""
    damage: Counter[str] = field(default_factory=Counter)
    answer_at: int = 0
    """Number of comparison keys before the answer of the last model call."""
    model_answers: list[ModelAnswer] = field(default_factory=list)
    """The model answers among the items, except for answers that a later call replaced."""
    is_stored: bool = False
    """True if a result came without its call, which only a service that stores calls can read."""
    is_repeated: bool = False
    """True if a call of a later trace repeated the conversation."""
    tools: list[Any] | None = None
    """The tools of most trained answers. If None, the tools of all calls count: the answers do not
    differ in their tools, or no answer is trained.
    """

    @property
    def seconds(self) -> float:
        """Return the seconds from the start of the first call to the end of the last call."""
        times = [time for call in self.calls for time in (call.started, call.ended) if time]
        return (max(times) - min(times)).total_seconds() if times else 0.0


def key_of(item: Item) -> Any:
    """Return the key by which an item is compared with other items, or None.

    Items that are not compared have no key: reasoning, and other kinds without text.
    """
    if item.kind == "message":
        return item.role, item.text.strip()
    if item.kind == "function_call":
        return "call", item.name, canonicalize_arguments(item.text or "{}")
    if item.kind == "function_call_output":
        return "output", item.text.strip()
    return None if item.kind else ("none",)


def open_calls(items: Sequence[Item]) -> list[Item]:
    """Return the tool calls at the end of a conversation that have no result yet."""
    waiting: list[Item] = []
    for item in reversed(items):
        if item.kind == "function_call":
            waiting.append(item)
        elif item.kind == "function_call_output" or waiting:
            break
    return waiting[::-1]


def add(conversation: Conversation, items: Iterable[Item]) -> None:
    """Add items and their comparison keys to the end of a conversation."""
    for (
        item
        # some instrumentations split the text and calls of one response into several messages
    ) in items:
        conversation.items.append(
            msgspec.structs.replace(item, first=False) if item.first else item
        )
        if (key := key_of(item)) is not None:
            conversation.keys.append(key)


def untrained(item: Item) -> Item:
    """Return an item, with the model's words and calls marked as not trained."""
    is_said = item.role == "assistant" or item.kind == "function_call"
    return msgspec.structs.replace(item, trained=False) if is_said else item


def trained_answers(conversation: Conversation) -> list[ModelAnswer]:
    """Return the model answers of a conversation of which some words or calls are trained."""
    items = [item for item in conversation.items if key_of(item) is not None]
    return [
        answer
        for answer in conversation.model_answers
        if any(item.trained for item in items[answer.start : answer.end])
    ]


def leave_untrained(conversation: Conversation, answers: Iterable[ModelAnswer]) -> None:
    """Mark model answers of a conversation as not trained."""
    indices = [index for index, item in enumerate(conversation.items) if key_of(item) is not None]
    for answer in answers:
        for index in indices[answer.start : answer.end]:
            conversation.items[index] = untrained(conversation.items[index])


def split_head(items: Items) -> tuple[Items, Items]:
    """Split items into the system prompt at the beginning and the rest."""
    head_length = 0
    while head_length < len(items) and items[head_length].role == "system":
        head_length += 1
    return items[:head_length], items[head_length:]


def steps_around(span: Span, steps: dict[tuple[str, str], Span]) -> Iterator[Span]:
    """Yield the enclosing steps of a step, from the innermost to the outermost step."""
    for _ in range(_DEPTH):
        outer = steps.get((span.trace, span.parent or ""))
        if outer is None:
            return
        yield outer
        span = outer
