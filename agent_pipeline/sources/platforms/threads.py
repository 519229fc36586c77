"""Model calls of a session → its conversations: each call's input repeats what was said so far, and only what is new is added.

Messages are compared as items (`chat.py`), by what they say and not by their ids, without reasoning and without the system prompt at the
head. A call goes on with a conversation if its input begins with messages of it, in order and up to its last (all of it, or the rest that
a window or a summary of earlier runs left). The same input once more is a repeated record or a retry, of which the last answer counts. What
fits nowhere (a sub-agent, a guard, a fork) is a conversation of its own.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from agent_pipeline.sessions.chat import chat_items, result_item
from agent_pipeline.sessions.items import Item, text_of

Kind = Literal["model", "tool", "agent", "other"]

_NO_TIME = datetime.max.replace(tzinfo=UTC)
_OWN_TYPES = ("function_call", "function_call_output", "reasoning")


@dataclass
class Score:
    """What an evaluation said: a number, a bool or a word, and perhaps a label."""

    name: str
    value: Any = None
    label: Any = None


@dataclass
class Span:
    """One step of a trace, whatever platform recorded it. `given` and `answered` are chat messages or Responses items."""

    trace: str
    id: str
    kind: Kind = "other"
    parent: str | None = None
    name: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    given: list[Any] = field(default_factory=list)
    answered: list[Any] = field(default_factory=list)
    tools: Any = None
    model: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    cost: float | None = None
    error: str | None = None
    arguments: Any = None
    output: Any = None
    call_id: Any = None
    scores: list[Score] = field(default_factory=list)
    context: dict[str, Any] = field(default_factory=dict)

    @property
    def order(self) -> datetime:
        return self.started or self.ended or _NO_TIME


@dataclass
class Thread:
    """One conversation: its system prompt, items with the keys that they are compared by, and the calls that made it."""

    system: list[Item | None] = field(default_factory=list)
    items: list[Item | None] = field(default_factory=list)
    keys: list[Any] = field(default_factory=list)
    calls: list[Span] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    answer_at: int = 0
    """How many keys there were before the last call's answer."""

    def chat(self) -> list[Item | None]:
        return [*self.system, *self.items]

    @property
    def seconds(self) -> float:
        """From its first call to the end of its last."""
        times = [time for call in self.calls for time in (call.started, call.ended) if time]
        return (max(times) - min(times)).total_seconds() if times else 0.0


def threads_of(calls: Iterable[Span]) -> list[Thread]:
    """The conversations of a session's model calls, in the order in which they began."""
    threads: list[Thread] = []
    for call in sorted(calls, key=lambda each: each.order):
        system, given = _split_head(items_of(call.given))
        _place(threads, call, system, given, items_of(call.answered))
    return threads


def main_thread(threads: Sequence[Thread]) -> Thread:
    """The conversation that the session is: the one that lasted longest, of equals the one with the most in it, then the first."""
    return max(threads, key=lambda each: (each.seconds, len(each.keys)))


def items_of(messages: Any) -> list[Item | None]:
    """Chat messages and Responses items, mixed, as items."""
    found: list[Item | None] = []
    for message in messages if isinstance(messages, list) else [messages]:
        own = isinstance(message, dict) and str(message.get("type")) in _OWN_TYPES and "role" not in message
        found.extend([message] if own else chat_items([message]))
    return found


def key_of(item: Item | None) -> Any:
    """What an item is compared by; null for what is not compared (reasoning and other kinds without words)."""
    if not isinstance(item, dict):
        return ("none",)
    kind = item.get("type") or "message"
    if kind == "message":
        return item.get("role"), text_of(item.get("content"), Counter()).strip()
    if kind == "function_call":
        return "call", item.get("name") if isinstance(item.get("name"), str) else None, canonical(item.get("arguments"))
    if kind == "function_call_output":
        output = item.get("output")
        text = text_of(output, Counter()) if isinstance(output, str | list) or output is None else canonical(output)
        return "output", text.strip() or canonical(output)
    return None


def canonical(value: Any) -> str:
    """One text of a value or of the JSON text of it; what has none is told apart by its printed form."""
    try:
        if isinstance(value, str):
            value = json.loads(value) if value.strip()[:1] in ("{", "[", '"') else value
        return json.dumps(value if value not in (None, "") else {}, sort_keys=True, ensure_ascii=False, default=str)
    except (ValueError, RecursionError, TypeError):
        return value if isinstance(value, str) else type(value).__name__


def open_calls(items: Sequence[Item | None]) -> list[Item]:
    """The calls at the end of a conversation that no result has answered."""
    waiting: list[Item] = []
    for item in reversed(items):
        kind = item.get("type") if isinstance(item, dict) else None
        if item is not None and kind == "function_call":
            waiting.append(item)
        elif kind == "function_call_output" or waiting:
            break
    return waiting[::-1]


def add_results(thread: Thread, tools: Iterable[Span]) -> list[Span]:
    """Give the last calls of a conversation the results that tool spans saw; returns the spans whose calls no message has."""
    left = list(tools)
    ends = open_calls(thread.items)
    open_keys = {id(call): key_of(call) for call in ends}
    seen = Counter(key_of(item) for item in thread.items if isinstance(item, dict) and item.get("type") == "function_call")
    for call in ends:
        answers = [span for span in left if span.call_id and span.call_id == call.get("call_id")]
        answers = answers or [span for span in reversed(left) if _call_key(span) == open_keys[id(call)]]
        if answers:
            add(thread, [result_item(call.get("call_id"), answers[0].output)])
            left.remove(answers[0])
            seen[open_keys[id(call)]] -= 1
    unplaced = []
    for span in left:
        key = _call_key(span)
        seen[key] -= 1
        unplaced += [span] if seen[key] < 0 else []
    return unplaced


def tool_items(span: Span) -> list[Item | None]:
    """A tool span as a call and its result."""
    call = {"type": "function_call", "name": span.name, "arguments": span.arguments, "call_id": span.call_id}
    return [call, result_item(span.call_id, span.output)]


def add(thread: Thread, items: Iterable[Item | None]) -> None:
    for item in items:
        thread.items.append(item)
        if (key := key_of(item)) is not None:
            thread.keys.append(key)


def _place(threads: list[Thread], call: Span, system: list[Item | None], given: list[Item | None], answered: list[Item | None]) -> None:
    keys = [key for key in map(key_of, given) if key is not None]
    answer = [key for key in map(key_of, answered) if key is not None]
    continued = [(kept, index) for index, each in enumerate(threads) if (kept := _continued(each.keys, keys))]
    if continued:
        kept, index = max(continued)
        _go_on(threads[index], call, system, _after(given, kept), answered)
        return
    alike = [each for each in reversed(threads) if _same_system(each.system, system)]
    for thread in alike:
        same = _common(thread.keys, keys)
        if same and same == len(keys) and thread.keys[same : same + len(answer)] == answer:
            thread.skipped["repeated_span"] += 1  # two instrumentations saw one call
            return
        if same and thread.answer_at <= same < len(thread.keys):
            thread.skipped["superseded_item"] += len(thread.keys) - same
            _cut(thread, same)
            _go_on(thread, call, system, _after(given, same), answered)
            return
    if (kept_apart := _next_part(threads, alike, call, given)) is not None:
        _go_on(kept_apart, call, system, given, answered)
        return
    threads.append(Thread())
    _go_on(threads[-1], call, system, given, answered)


def _go_on(thread: Thread, call: Span, system: list[Item | None], new: list[Item | None], answered: list[Item | None]) -> None:
    if not thread.system:
        thread.system = system
    elif system and not _same_system(thread.system, system):
        thread.skipped["changed_system_prompt"] += 1
    add(thread, new)
    thread.answer_at = len(thread.keys)
    add(thread, answered)
    thread.calls.append(call)


def _next_part(threads: list[Thread], alike: list[Thread], call: Span, given: list[Item | None]) -> Thread | None:
    """The conversation that a call goes on with though its input repeats nothing: the service keeps it, and is sent what is new."""
    if given and (given[0] or {}).get("type") == "function_call_output":
        return next((each for each in reversed(threads) if open_calls(each.items)), None)
    return next((each for each in alike if each.calls[-1].trace != call.trace), None)


def _continued(told: list[Any], given: list[Any]) -> int:
    """How many of the given messages are a conversation so far: in its order, the last of them its last; 0 where it does not go on."""
    for kept in range(len(given), 0, -1):
        if given[kept - 1] == told[-1:][0] if told else False:
            at = iter(told)
            if all(any(key == each for each in at) for key in given[:kept]):
                return kept
    return 0


def _common(one: list[Any], other: list[Any]) -> int:
    count = 0
    for mine, theirs in zip(one, other, strict=False):
        if mine != theirs:
            break
        count += 1
    return count


def _after(items: list[Item | None], kept: int) -> list[Item | None]:
    """The items behind the first `kept` that are compared."""
    for index, item in enumerate(items):
        if kept == 0:
            return items[index:]
        kept -= key_of(item) is not None
    return []


def _cut(thread: Thread, kept: int) -> None:
    behind = _after(thread.items, kept)
    del thread.items[len(thread.items) - len(behind) :]
    del thread.keys[kept:]


def _split_head(items: list[Item | None]) -> tuple[list[Item | None], list[Item | None]]:
    at = 0
    while at < len(items) and (items[at] or {}).get("role") in ("system", "developer"):
        at += 1
    return items[:at], items[at:]


def _same_system(one: list[Item | None], other: list[Item | None]) -> bool:
    return not one or not other or [key_of(each) for each in one] == [key_of(each) for each in other]


def _call_key(span: Span) -> Any:
    return "call", span.name, canonical(span.arguments)


def in_order(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans by the time they began; those without one last."""
    return iter(sorted(spans, key=lambda each: each.order))
