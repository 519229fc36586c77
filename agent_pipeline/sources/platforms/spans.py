"""One step of a trace, in a form that is common to all platforms.

A step has a position in the trace and a kind, and may be a model call.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from agent_pipeline.sources.formats.fields import Record, first_of, first_text, text, when
from agent_pipeline.sources.formats.model_calls import (
    request_of,
    response_of,
    with_blocks,
    with_prefill,
)

Kind = Literal["model", "tool", "other"]

KINDS: dict[str, Kind] = {
    **dict.fromkeys(
        (
            "llm",
            "chat_model",
            "generation",
            "response",
            "chat",
            "text_completion",
            "generate_content",
        ),
        "model",
    ),
    **dict.fromkeys(("tool", "function", "execute_tool"), "tool"),
    **dict.fromkeys(("agent", "invoke_agent", "invoke_workflow", "create_agent"), "other"),
}
"""Kinds of steps, by the platforms' names in lower case."""

_IDS = {
    "trace": ("traceId", "trace_id"),
    "id": ("spanId", "span_id", "id"),
    "parent": (
        "parentSpanId",
        "parent_span_id",
        "parentObservationId",
        "parent_run_id",
        "parent_id",
    ),
    "name": ("name",),
}
_TIMES = {
    "started": (
        "startTimeUnixNano",
        "start_time_unix_nano",
        "startTime",
        "start_time",
        "started_at",
    ),
    "ended": ("endTimeUnixNano", "end_time_unix_nano", "endTime", "end_time", "ended_at"),
}

MISSING_MESSAGE = "missing message"
"""Name of the item for a message whose attributes are missing. The message may have been empty, or
a limit on the number of attributes dropped it. An earlier call may have recorded it.
"""

_NO_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass
class Span:
    """A step of a trace, from any platform.

    `prompt` and `answered` are chat messages or Responses items.
    """

    trace: str
    id: str
    kind: Kind = "other"
    parent: str | None = None
    name: str | None = None
    started: datetime | None = None
    ended: datetime | None = None
    prompt: list[Any] = field(default_factory=list)
    answered: list[Any] = field(default_factory=list)
    tools: Any = None
    model: Any = None
    usage: dict[str, Any] = field(default_factory=dict)
    cost: float | None = None
    error: str | None = None
    arguments: Any = None
    output: Any = None
    call_id: Any = None
    has_unread_request: bool = False
    """True if the record holds a request in which no message was found."""
    has_unread_response: bool = False

    @property
    def order(self) -> datetime:
        return self.started or self.ended or _NO_TIME

    def exchange(
        self,
        prompt: object,
        answer: object,
        *,
        tools: object = None,
        model: object = None,
        usage: Record | None = None,
    ) -> None:
        """Set the request and the answer of a model call, given in the format of any supported API.

        `tools`, `model` and `usage` are values that the step itself states. These values take
        precedence over the values in the request and the response. A value that is not stated
        anywhere stays unchanged.

        Args:
            prompt: The request.
            answer: The response.
            tools: The tool schemas.
            model: The name of the model.
            usage: The token counts.
        """
        request, response = request_of(prompt), response_of(answer)
        request, response = with_prefill(request, response, answer)
        both = with_blocks([*request.messages, *response.messages])
        asked_count = len(request.messages)
        self.prompt, self.answered = (
            both[:asked_count] or self.prompt,
            both[asked_count:] or self.answered,
        )
        self.has_unread_request |= _says_something(prompt) and not request.messages
        self.has_unread_response |= _says_something(answer) and not response.messages
        self.tools = tools or request.tools or self.tools
        self.model = model or response.model or request.model or self.model
        self.usage = usage or response.usage or self.usage


def _says_something(value: object) -> bool:
    """Return whether a value contains any text or number at any depth."""
    waiting = [value]
    while waiting:
        inner = waiting.pop()
        if isinstance(inner, dict):
            waiting.extend(inner.values())
        elif isinstance(inner, list):
            waiting.extend(inner)
        elif inner is not None and inner != "":
            return True
    return False


def span_of(record: Record, kind: object = None, **further_fields: object) -> Span:
    """Return the step that a record describes, with its position in the trace.

    Args:
        record: The record.
        kind: The platform's name for the kind of step.
        **further_fields: Further fields of the step.
    """
    fields: Record = {field: first_text(record, *names) for field, names in _IDS.items()}
    fields |= {field: when(first_of(record, *names)) for field, names in _TIMES.items()}
    fields |= {
        "trace": fields["trace"] or "",
        "id": fields["id"] or "",
        "kind": KINDS.get((text(kind) or "").lower(), "other"),
    }
    return Span(**(fields | further_fields))


def in_order(spans: Iterable[Span]) -> list[Span]:
    """Return the spans of a trace, ordered by their start time.

    Spans without a time come last.
    """
    return sorted(spans, key=lambda span: span.order)
