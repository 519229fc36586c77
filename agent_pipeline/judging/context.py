"""What a measure or a rubric looks at: a session with its calls decoded and its results beside them."""

import json
from collections import deque
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from agent_pipeline.sessions.session import Message, Session, Tool

_TOLD_APART = ("messages", "tools")


class Call(NamedTuple):
    """One tool call: `arguments` is null where `raw` is not the JSON text of an object, `result` where nothing answered the call."""

    name: str
    arguments: dict[str, Any] | None
    raw: str
    result: str | None


@dataclass(frozen=True)
class EvaluationContext:
    """One session as it is evaluated.

    `metadata` is everything that the session says beside its messages and tools, by the names of `Session` (`session_id`, `task_id`,
    `usage`, `damage`, `context`, ...). Treat all of it as read-only: every measure of a session is given the same object.
    """

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, session: Session) -> "EvaluationContext":
        """The context of a session."""
        metadata = {name: getattr(session, name) for name in session.__struct_fields__ if name not in _TOLD_APART}
        return cls(session.messages, session.tools, metadata)

    @cached_property
    def calls(self) -> list[Call]:
        """Every tool call in order, with its result."""
        return _calls(self.messages)

    @cached_property
    def results(self) -> list[str]:
        """The text of every tool result, in order."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    @cached_property
    def final_answer(self) -> str:
        """The agent's last words, if it had the last word (a closing user message aside) and called nothing with them; else empty."""
        spoken = [message for message in self.messages if message["role"] != "system"]
        while spoken and spoken[-1]["role"] == "user":
            spoken.pop()
        last = spoken[-1] if spoken else None
        answered = last is not None and last["role"] == "assistant" and not last.get("tool_calls")
        return last["content"].strip() if last is not None and answered else ""


def decoded(arguments: str) -> dict[str, Any] | None:
    """A call's arguments; null where they are not the JSON text of an object."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _calls(messages: list[Message]) -> list[Call]:
    """Results follow the message that called, so a call is answered there: by its own id, else by the oldest result left over."""
    calls = []
    for position, message in enumerate(messages):
        made = message.get("tool_calls") or ()
        if not made:
            continue
        after = position + 1
        while after < len(messages) and messages[after]["role"] == "tool":
            after += 1
        results = messages[position + 1 : after]
        answers: list[str | None] = [_taken(results, call.get("id")) for call in made]
        left = deque(results)
        for call, answer in zip(made, answers, strict=True):
            result = answer if answer is not None else left.popleft()["content"] if left else None
            name, raw = call["function"]["name"], call["function"]["arguments"]
            calls.append(Call(name, decoded(raw), raw, result))
    return calls


def _taken(results: list[Message], call_id: str | None) -> str | None:
    """The content of the result that names the call, taken out of the list."""
    for index, result in enumerate(results):
        if call_id and result.get("tool_call_id") == call_id:
            return results.pop(index)["content"]
    return None
