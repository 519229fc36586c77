"""The view of a session that measures and rubrics read.

It contains decoded calls with their results.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from agent_pipeline.sessions.session import Message, Session, Tool, dump_canonical_json
from agent_pipeline.sessions.transcript import PairedCall, is_failed, pair_calls


@dataclass(frozen=True)
class EvaluationContext:
    """A session in the form that measures and rubrics evaluate.

    Treat the whole object as read-only, because every measure of a session gets the same object.

    Attributes:
        messages: The session's messages.
        tools: The tools that the agent had.
        metadata: All other fields of `Session`, by name (`session_id`, `task_id`, `usage`,
            `damage`, `context`, …).
    """

    messages: list[Message]
    tools: list[Tool] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_session(cls, session: Session) -> "EvaluationContext":
        """Return the evaluation context of a session."""
        metadata = {
            name: getattr(session, name)
            for name in session.__struct_fields__
            if name not in ("messages", "tools")
        }
        return cls(session.messages, session.tools, metadata)

    @cached_property
    def calls(self) -> list[PairedCall]:
        """Every tool call with its result, in the order of the session."""
        return pair_calls(self.messages)

    @cached_property
    def results(self) -> list[str]:
        """Return the text of every tool result, in the order of the session."""
        return [message["content"] for message in self.messages if message["role"] == "tool"]

    @cached_property
    def failures(self) -> list[bool]:
        """For each tool result, whether its record or its text says that it is an error."""
        return [is_failed(message) for message in self.messages if message["role"] == "tool"]

    @cached_property
    def last_spoken(self) -> Message | None:
        """Return the last message, not counting system messages and user messages at the end."""
        for message in reversed(self.messages):
            if message["role"] not in ("system", "user"):
                return message
        return None

    @cached_property
    def final_answer(self) -> str:
        """Return the last text that the agent wrote, or an empty text.

        It is empty if the agent called a tool in its last message, or if a tool result is last.
        User messages at the end are ignored.
        """
        last = self.last_spoken
        if last is None or last["role"] != "assistant" or last.get("tool_calls"):
            return ""
        answer: str = last["content"].strip()
        return answer


@dataclass(frozen=True)
class CallIdentity:
    """The parts of a call that identify it when calls are compared.

    Attributes:
        name: The name of the tool.
        arguments: The arguments as JSON with sorted keys, or the original text if they are not
            JSON.
        result: The result, or None if the call has no result.
    """

    name: str
    arguments: str
    result: str | None


def identify_call(call: PairedCall) -> CallIdentity:
    """Return the parts of a call that are equal if a call repeats another call.

    The same call with a different result is a retry or a poll, not a repetition.
    """
    if call.arguments is None:
        return CallIdentity(call.name, call.raw, call.result)
    return CallIdentity(call.name, dump_canonical_json(call.arguments), call.result)
