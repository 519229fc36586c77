"""What a measure or a rubric looks at: a session with its calls decoded and its results beside them."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agent_pipeline.sessions.session import Message, Session, Tool, dump_canonical_json
from agent_pipeline.sessions.transcript import PairedCall, is_failed, pair_calls

_FIELDS_OF_THEIR_OWN = ("messages", "tools")


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
        metadata = {
            name: getattr(session, name)
            for name in session.__struct_fields__
            if name not in _FIELDS_OF_THEIR_OWN
        }
        return cls(session.messages, session.tools, metadata)

    @cached_property
    def calls(self) -> list[PairedCall]:
        """Every tool call in order, with its result."""
        return pair_calls(self.messages)

    @cached_property
    def results(self) -> list[str]:
        """The text of every tool result, in order."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    @cached_property
    def failures(self) -> list[bool]:
        """Whether each tool result is an error: its record says so, or its text reads as one."""
        return [is_failed(message) for message in self.messages if message["role"] == "tool"]

    @cached_property
    def last_spoken(self) -> Message | None:
        """The last message, system messages and a closing user aside."""
        spoken = [message for message in self.messages if message["role"] != "system"]
        while spoken and spoken[-1]["role"] == "user":
            spoken.pop()
        return spoken[-1] if spoken else None

    @cached_property
    def final_answer(self) -> str:
        """The agent's last words, if it had the last word (a closing user message aside) and called nothing with them; else empty."""
        last = self.last_spoken
        return (
            last["content"].strip()
            if last and last["role"] == "assistant" and not last.get("tool_calls")
            else ""
        )


def call_identity(call: PairedCall) -> tuple[str, str, str | None]:
    """What two calls that repeat each other have in common: name, arguments and result. Another result is a retry or a poll."""
    return (
        call.name,
        call.raw if call.arguments is None else dump_canonical_json(call.arguments),
        call.result,
    )
