"""OpenTelemetry spans of model calls: OTLP JSON (`resourceSpans`, a document or a line each as the collector's file exporter writes it; log
records too), and spans as single records, as Phoenix's API and data frames and the SDKs' console exporters give them.

Two dialects say what was asked and answered: the GenAI conventions (`gen_ai.*`, with the indexed `gen_ai.prompt.<i>` and the message
events of their older days) and OpenInference (`llm.input_messages.<i>.message.*`). One file may have both; what it is called goes by which
it has. Spans of a trace belong to the session that any of them names.
"""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.formats.fields import elements, number, section, when
from agent_pipeline.sources.formats.files import Ident, Record, text
from agent_pipeline.sources.formats.records import Kind as FileKind
from agent_pipeline.sources.formats.records import Place, kind_of, parsed, records
from agent_pipeline.sources.platforms.openinference import openinference_scores, openinference_span
from agent_pipeline.sources.platforms.requests import decoded, messages_of
from agent_pipeline.sources.platforms.spans import SpanSource
from agent_pipeline.sources.platforms.threads import Kind, Score, Span
from agent_pipeline.sources.platforms.trees import flat, plain_value, tree

_ENVELOPES = {"resourceSpans": ("scopeSpans", "spans"), "resourceLogs": ("scopeLogs", "logRecords")}
_OF_OPENINFERENCE = ("openinference.", "llm.input_messages", "llm.output_messages", "llm.model_name", "llm.token_count")
_OF_GENAI = ("gen_ai.",)
_OURS = (*_OF_OPENINFERENCE, *_OF_GENAI, "llm.", "session.id", "input.value", "output.value", "tool.", "evaluation.")
_KINDS: dict[str, Kind] = {
    "chat": "model",
    "text_completion": "model",
    "generate_content": "model",
    "execute_tool": "tool",
    "invoke_agent": "agent",
    "invoke_workflow": "agent",
    "create_agent": "agent",
}
_SESSIONS = ("gen_ai.conversation.id", "session.id")
_PROJECTS = ("openinference.project.name", "service.name")
_AGENTS = ("gen_ai.agent.name", "agent.name")
_MESSAGE_EVENTS = {"gen_ai.system.message", "gen_ai.user.message", "gen_ai.assistant.message", "gen_ai.tool.message", "gen_ai.choice"}
_PROBED = 20


class OpenTelemetrySource(SpanSource):
    """Files of spans by the GenAI conventions."""

    name: ClassVar[str] = "opentelemetry"
    looks_like: ClassVar[str] = "OTLP JSON (resourceSpans), or spans with trace_id and gen_ai attributes"
    dialects: ClassVar[tuple[str, ...]] = ("genai", "none")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if isinstance(record.get("data"), list):  # a page of Phoenix's API
            return any(isinstance(each, dict) and _is_span(each) for each in record["data"])
        return any(isinstance(record.get(name), list) for name in _ENVELOPES) or _is_span(record)

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        stat = path.stat()
        return _dialect(path, stat.st_size, stat.st_mtime_ns) in cls.dialects

    def unpack(self, record: Record) -> list[Record]:
        return list(_spans_in(record))

    def identify(self, record: Record, place: Place) -> Ident | None:
        attributes, trace = record["attributes"], text(record.get("trace"))
        ours = any(name.startswith(_OURS) for name in attributes) or any(
            str(each.get("name")).startswith("gen_ai.") for each in record["events"]
        )
        if trace is None or not ours:
            return None
        return Ident(
            trace,
            _first(attributes, _SESSIONS),
            _first(record["resource"], _PROJECTS),
            _first(attributes, _AGENTS) if record.get("span") else None,
        )

    def spans(self, record: Record) -> list[Span]:
        attributes = record["attributes"]
        if not record.get("span"):
            return []
        span = Span(
            trace=text(record.get("trace")) or "",
            id=text(record.get("id")) or "",
            parent=text(record.get("parent")),
            name=text(record.get("name")),
            started=when(record.get("started")),
            ended=when(record.get("ended")),
            error=_error(record),
        )
        if any(name.startswith(_OF_OPENINFERENCE) for name in attributes) or record.get("kind"):
            openinference_span(span, tree(attributes), record.get("kind"))
        if any(name.startswith(_OF_GENAI) for name in attributes):
            _genai_span(span, attributes)
        _from_events(span, record["events"])
        return [span]

    def scores_of(self, record: Record) -> list[Score]:
        events = [section(each, "attributes") for each in record["events"] if each.get("name") == "gen_ai.evaluation.result"]
        found = [score for attributes in (record["attributes"], *events) for score in _genai_scores(attributes)]
        return found + openinference_scores(record["attributes"])

    def about(self, record: Record) -> dict[str, Any]:
        attributes = record["attributes"]
        metadata = decoded(attributes.get("metadata"))
        context = metadata if isinstance(metadata, dict) else {}
        return {
            "task_id": attributes.get("task_id") or context.get("task_id"),
            "trial": attributes.get("trial") or context.get("trial"),
            "context": context,
        }


class OpenInferenceSource(OpenTelemetrySource):
    """Files of spans by OpenInference's conventions, Phoenix's say."""

    name: ClassVar[str] = "openinference"
    looks_like: ClassVar[str] = "OTLP JSON or spans with llm.input_messages and openinference.span.kind"
    dialects: ClassVar[tuple[str, ...]] = ("openinference",)


@lru_cache(maxsize=4096)
def _dialect(path: Path, size: int, changed: int) -> str:
    """Whose conventions the first spans of a file follow; empty for a file without any."""
    found = ""
    try:
        kind: FileKind | None = kind_of(path)
        for raw, _ in zip(records(path, [], kind) if kind and kind != "zip" else (), range(_PROBED), strict=False):
            try:
                record = parsed(raw.raw)
            except ValueError:
                continue
            if not isinstance(record, dict) or not OpenTelemetrySource.accepts(record):
                continue
            for span in _spans_in(record):
                if span.get("kind") or any(name.startswith(_OF_OPENINFERENCE) for name in span["attributes"]):
                    return "openinference"
                found = "genai" if any(name.startswith(_OF_GENAI) for name in span["attributes"]) else found or "none"
    except StoreError:
        pass
    return found


def _is_span(record: Record) -> bool:
    if not isinstance(record.get("name"), str):
        return False
    context = record.get("context")
    nested = isinstance(context, dict) and "trace_id" in context and "span_id" in context and "start_time" in record
    return nested or "context.trace_id" in record


def _spans_in(record: Record) -> Iterator[Record]:
    """Spans (and log records) in one form: trace, id, parent, name, started, ended, status, message, attributes, resource, events."""
    for envelope, (scopes, leaves) in _ENVELOPES.items():
        for group in elements(record.get(envelope)):
            resource = plain_value(section(group, "resource").get("attributes"))
            for scope in elements(group.get(scopes)) if isinstance(group, dict) else []:
                for leaf in elements(scope.get(leaves)) if isinstance(scope, dict) else []:
                    if isinstance(leaf, dict):
                        yield _otlp(leaf, resource if isinstance(resource, dict) else {}, envelope == "resourceSpans")
    if isinstance(record.get("data"), list):
        yield from (_single(each) for each in record["data"] if isinstance(each, dict) and _is_span(each))
    elif _is_span(record):
        yield _single(record)


def _otlp(leaf: Record, resource: Record, is_span: bool) -> Record:
    status = section(leaf, "status")
    found: Record = {
        "trace": leaf.get("traceId"),
        "id": leaf.get("spanId"),
        "parent": leaf.get("parentSpanId"),
        "name": leaf.get("name"),
        "started": leaf.get("startTimeUnixNano"),
        "ended": leaf.get("endTimeUnixNano"),
        "status": status.get("code"),
        "message": status.get("message"),
        "attributes": _attributes(leaf),
        "resource": resource,
        "span": is_span,
        "events": [
            {"name": each.get("name"), "attributes": _attributes(each)} for each in elements(leaf.get("events")) if isinstance(each, dict)
        ],
    }
    if not is_span:
        name = leaf.get("eventName") or found["attributes"].get("event.name")
        found["events"] = [{"name": name, "attributes": found["attributes"]}]
        found["attributes"] = {name: value for name, value in found["attributes"].items() if name in _SESSIONS}
    return found


def _single(record: Record) -> Record:
    status = record.get("status")
    wide = {
        name.removeprefix("attributes."): value for name, value in record.items() if name.startswith("attributes.") and value is not None
    }
    raw = record.get("attributes")
    context = section(record, "context")
    return {
        "trace": context.get("trace_id") or record.get("context.trace_id"),
        "id": context.get("span_id") or record.get("context.span_id"),
        "parent": record.get("parent_id"),
        "name": record.get("name"),
        "kind": record.get("span_kind"),
        "started": record.get("start_time"),
        "ended": record.get("end_time"),
        "status": status.get("status_code") if isinstance(status, dict) else record.get("status_code"),
        "message": status.get("description") if isinstance(status, dict) else record.get("status_message"),
        "attributes": flat(raw) if isinstance(raw, dict) else wide,
        "resource": section(record, "resource", "attributes"),
        "span": True,
        "events": [
            {"name": each.get("name"), "attributes": section(each, "attributes")}
            for each in elements(decoded(record.get("events")))
            if isinstance(each, dict)
        ],
    }


def _attributes(leaf: Record) -> Record:
    found = plain_value(leaf.get("attributes"))
    return found if isinstance(found, dict) else {}


def _genai_span(span: Span, attributes: Record) -> None:
    operation = str(attributes.get("gen_ai.operation.name"))
    said = any(name in attributes for name in ("gen_ai.output.messages", "gen_ai.completion.0.role", "gen_ai.completion.0.content"))
    named: Kind = "model" if said else span.kind
    span.kind = _KINDS.get(operation, named)
    if span.kind == "tool":
        span.name = text(attributes.get("gen_ai.tool.name")) or span.name
        span.call_id = text(attributes.get("gen_ai.tool.call.id"))
        span.arguments = decoded(attributes.get("gen_ai.tool.call.arguments"))
        span.output = decoded(attributes.get("gen_ai.tool.call.result"))
        return
    system = decoded(attributes.get("gen_ai.system_instructions"))
    older = tree({name: value for name, value in attributes.items() if name.startswith(("gen_ai.prompt.", "gen_ai.completion."))})
    head = [{"role": "system", "content": system}] if system else []
    told = messages_of(attributes.get("gen_ai.input.messages"), "user") or _indexed(section(older, "gen_ai").get("prompt"))
    answered = messages_of(attributes.get("gen_ai.output.messages"), "assistant") or _indexed(section(older, "gen_ai").get("completion"))
    span.given, span.answered = [*head, *told] or span.given, answered or span.answered
    span.tools = decoded(attributes.get("gen_ai.tool.definitions")) or span.tools
    span.model = attributes.get("gen_ai.response.model") or attributes.get("gen_ai.request.model") or span.model
    prefix = "gen_ai.usage."
    counts = {name.removeprefix(prefix): value for name, value in attributes.items() if name.startswith(prefix)}
    cost = number(counts.pop("cost", None))
    span.usage, span.cost = counts or span.usage, cost if cost is not None else span.cost


def _indexed(messages: Any) -> list[Any]:
    """Messages of the older, indexed attributes; their tool calls are indexed too."""
    return [{**each, "tool_calls": elements(each.get("tool_calls"))} if isinstance(each, dict) else each for each in elements(messages)]


def _from_events(span: Span, events: list[Record]) -> None:
    """The messages that older conventions write as events, where the span has none."""
    told: list[Any] = []
    answered: list[Any] = []
    for event in events:
        name, attributes = event.get("name"), section(event, "attributes")
        if name == "gen_ai.client.inference.operation.details":
            _genai_span(span, attributes)
        elif name in _MESSAGE_EVENTS:
            role = "assistant" if name == "gen_ai.choice" else str(name).split(".")[1]
            inner = decoded(attributes.get("message")) if name == "gen_ai.choice" else attributes
            message = {"role": role, **({key: decoded(value) for key, value in inner.items()} if isinstance(inner, dict) else {})}
            message.setdefault("tool_call_id", message.get("id")) if role == "tool" else None
            (answered if name == "gen_ai.choice" else told).append(message)
    if (told or answered) and not (span.given or span.answered):
        span.kind, span.given, span.answered = "model", told, answered


def _genai_scores(attributes: Record) -> list[Score]:
    value, label = attributes.get("gen_ai.evaluation.score.value"), attributes.get("gen_ai.evaluation.score.label")
    name = text(attributes.get("gen_ai.evaluation.name")) or "evaluation"
    return [Score(name, value, label)] if value is not None or label is not None else []


def _error(record: Record) -> str | None:
    if str(record.get("status")).rpartition("_")[2].upper() not in ("2", "ERROR"):
        return None
    raised = next(
        (section(each, "attributes").get("exception.message") for each in record["events"] if each.get("name") == "exception"), None
    )
    return text(record.get("message")) or text(raised) or text(record["attributes"].get("error.type")) or "the step failed"


def _first(attributes: Record, names: tuple[str, ...]) -> str | None:
    return next((found for name in names if (found := text(attributes.get(name)))), None)
