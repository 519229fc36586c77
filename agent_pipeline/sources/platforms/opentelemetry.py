"""OpenTelemetry spans and log records of model calls.

They are OTLP JSON (`resourceSpans`, `resourceLogs`), or single records in the form of Phoenix's API
and data frames or the SDKs' console exporters. Requests and answers use one of two dialects: the
GenAI conventions (`gen_ai.input.messages`, …) or OpenInference
(`llm.input_messages.<i>.message.*`). A file may contain both dialects, and the dialect decides
which reader is used. All spans of a trace belong to the session that any of them names. Log records
contain data that their span lacks: all content of a call, or one message per record in older GenAI
conventions. Log records are added to their span by the id of the span. If the span is missing, the
records with its id form a call.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from agent_pipeline.sessions.chat import ROLES
from agent_pipeline.sessions.items import mark_cut_text, mark_unread
from agent_pipeline.sources.formats.detection import sampled
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    decoded_object,
    elements,
    first_of,
    first_text,
    objects,
    section,
    text,
    when,
)
from agent_pipeline.sources.formats.file_source import Ident, SessionFields
from agent_pipeline.sources.formats.model_calls import mark_other_choices
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.attributes import (
    AGENTS,
    OF_MODELS,
    SESSIONS,
    flat,
    has,
    plain_value,
)
from agent_pipeline.sources.platforms.dialects import evaluations_in, fill_in, is_openinference
from agent_pipeline.sources.platforms.phoenix_server import PhoenixServer
from agent_pipeline.sources.platforms.span_source import Score, SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_PROJECTS = ("openinference.project.name", "service.name")
_MESSAGE_EVENTS = (
    "gen_ai.system.message",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
    "gen_ai.content.",
)
_NUMBERED = ("gen_ai.prompt.", "gen_ai.completion.", "llm.prompts.", "llm.completions.")
_LOST = ("droppedAttributesCount", "dropped_attributes_count")
"""Fields with the number of attributes that a span lost because of a limit. Each message of a
conversation takes several attributes, so a long conversation may reach the limit.
"""
_MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")


class OpenTelemetrySource(SpanSource):
    """A reader of spans and log records that use the GenAI conventions."""

    name = "opentelemetry"
    version = 6
    looks_like = (
        "OTLP JSON (resourceSpans, resourceLogs), or spans with trace_id and gen_ai attributes"
    )
    kinds = (*SpanSource.kinds, "database")
    is_openinference = False

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if isinstance(record.get("data"), list):  # a page of Phoenix's API
            return any(map(_is_span, objects(record["data"])))
        return (
            isinstance(record.get("resourceSpans", record.get("resourceLogs")), list)
            or _is_span(record)
            or _is_event(record)
        )

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        kind, sample = sampled(path)
        mine = (
            [record for record in sample if isinstance(record, dict) and cls.accepts(record)]
            if kind in cls.kinds
            else []
        )
        steps = [step for record in mine for step in _steps_in(record)]
        return (
            bool(steps)
            and any(is_openinference(step["attributes"], step["kind"]) for step in steps)
            == cls.is_openinference
        )

    def unpack(self, record: Record) -> list[Record]:
        return list(_steps_in(record))

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        attributes, trace = record["attributes"], record["span"].trace
        if not trace or not has(attributes, OF_MODELS):
            return None
        session, project = (
            first_text(attributes, *SESSIONS),
            first_text(record["resource"], *_PROJECTS),
        )
        return Ident(trace, session, project, first_text(attributes, *AGENTS))

    def spans(self, record: Record) -> list[Span]:
        span = replace(record["span"])
        fill_in(span, record["attributes"], record["kind"])
        if not (span.prompt or span.answered) and (unknown := _unread_messages(record)):
            span.kind, span.prompt = "model", [mark_unread(unknown)]
        if record["lost"] and (span.prompt or span.answered):
            span.prompt = [*span.prompt, mark_cut_text("attributes")]
        return [span]

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        return super().build(session_id, _with_events(records))

    def scores_of(self, record: Record) -> list[Score]:
        events = [
            event["attributes"]
            for event in record["events"]
            if event.get("name") == "gen_ai.evaluation.result"
        ]
        scores = [
            score
            for attributes in (record["attributes"], *events)
            for score in evaluations_in(attributes)
        ]
        annotated = [
            (annotation.get("name"), section(annotation, "result"))
            for annotation in record.get("annotations", ())
        ]
        return scores + [
            (text(name) or "annotation", first_of(result, "score", "label"))
            for name, result in annotated
        ]

    def words_of(self, record: Record) -> list[object]:
        by_people = [
            annotation
            for annotation in record.get("annotations", ())
            if annotation.get("annotator_kind") == "HUMAN" and not record["span"].parent
        ]
        return [section(annotation, "result").get("label") for annotation in by_people]

    def metadata(self, record: Record) -> Record:
        attributes = record["attributes"]
        task_fields = (
            () if "crew_id" in attributes else ("task_id",)
        )  # CrewAI's task_id is different in every run
        return decoded_object(attributes.get("metadata")) | chosen(
            attributes, (*task_fields, "trial")
        )


class OpenInferenceSource(OpenTelemetrySource):
    """A reader of spans that use OpenInference's conventions, such as Phoenix's spans."""

    name = "openinference"
    looks_like = (
        "OTLP JSON or spans with llm.input_messages and openinference.span.kind, phoenix.db, or a "
        "server at phoenix+http://host"
    )
    is_openinference = True
    schemes = ("phoenix+http", "phoenix+https")
    service = PhoenixServer


def _is_span(record: Record) -> bool:
    if not isinstance(record.get("name"), str):
        return False
    context = record.get("context")
    nested = (
        isinstance(context, dict)
        and "trace_id" in context
        and "span_id" in context
        and "start_time" in record
    )
    return nested or "context.trace_id" in record


def _is_event(record: Record) -> bool:
    return {"trace_id", "span_id", "event_name", "body"} <= record.keys()


def _steps_in(record: Record) -> Iterator[Record]:
    """Yield the spans and log records in a record, in the format that `_step` returns."""
    for leaf, resource in _leaves(record, "resourceLogs", "scopeLogs", "logRecords"):
        yield _event(leaf, plain_value(leaf.get("body")), resource)
    for leaf, resource in _leaves(record, "resourceSpans", "scopeSpans", "spans"):
        status = section(leaf, "status")
        yield _step(leaf, _attributes(leaf), resource, status.get("code"), status.get("message"))
    for entry in objects(record["data"]) if isinstance(record.get("data"), list) else [record]:
        if _is_span(entry):
            yield _single_span(entry)
        elif _is_event(entry):
            yield _event(entry, entry["body"], section(entry, "resource", "attributes"))


def _leaves(
    record: Record, groups: str, scopes: str, leaves: str
) -> Iterator[tuple[Record, Record]]:
    """Yield the entries that OTLP groups by resource and scope.

    Each entry comes with the attributes of its resource.
    """
    for group in objects(record.get(groups)):
        resource = _attributes(section(group, "resource"))
        yield from (
            (leaf, resource)
            for scope in objects(group.get(scopes))
            for leaf in objects(scope.get(leaves))
        )


def _step(
    record: Record,
    attributes: Record,
    resource: Record,
    code: object = None,
    message: object = None,
    kind: object = None,
) -> Record:
    """Return a step whose attributes have not been read yet.

    Args:
        record: The span or log record.
        attributes: Its attributes.
        resource: The attributes of its resource.
        code: The code of its status.
        message: The message of its status.
        kind: The kind that the record states outside of its attributes.
    """
    events = [
        {"name": event.get("name"), "attributes": _attributes(event)}
        for event in objects(decoded(record.get("events")))
    ]
    span = span_of(record, error=_error(code, message, attributes, events))
    lost = any(record.get(name) for name in _LOST)
    return {
        "span": span,
        "attributes": attributes,
        "resource": resource,
        "events": events,
        "event": None,
        "kind": kind,
        "lost": lost,
    }


def _event(leaf: Record, body: object, resource: Record) -> Record:
    """Return a log record as a step with the ids of its span.

    If the body of the log record is a message, it becomes a message of the call.
    """
    name, attributes, message_body = (
        first_of(leaf, "eventName", "event_name"),
        _attributes(leaf),
        body if isinstance(body, dict) else {},
    )
    role = str(name).removeprefix("gen_ai.").removesuffix(".message")
    if name == "gen_ai.choice":
        message = _whole_message(
            {"role": "assistant", **section(message_body, "message")}
            | chosen(message_body, ("finish_reason",))
        )
        attributes = attributes | {
            "gen_ai.output.messages": mark_other_choices(1)
            if message_body.get("index")
            else [message]
        }
    elif role in ROLES:
        message = _whole_message(
            {"role": role, "tool_call_id": message_body.get("id"), **message_body}
        )
        attributes = attributes | {"gen_ai.input.messages": [message]}
    step = _step(leaf, attributes, resource)
    time = first_of(leaf, "timeUnixNano", "observedTimeUnixNano", "timestamp", "observed_timestamp")
    step["span"] = replace(step["span"], kind="model", started=when(time))
    return step | {"event": "message" if name == "gen_ai.choice" or role in ROLES else "call"}


def _unread_messages(record: Record) -> str | None:
    """Return the place in a span that holds unreadable messages, or None.

    The place is separate events, or one attribute per message.
    """
    names = [str(event.get("name")) for event in record["events"]]
    if any(name == "gen_ai.choice" or name.startswith(_MESSAGE_EVENTS) for name in names):
        return "messages in span events"
    return "gen_ai.prompt.<i>" if has(record["attributes"], _NUMBERED) else None


def _whole_message(message: Record) -> object:
    """Return the complete message that an event records.

    If recording of contents was off, return an item of damage.
    """
    calls = objects(message.get("tool_calls"))
    has_arguments = all("arguments" in (section(call, "function") or call) for call in calls)
    is_said = bool(calls) or not {"content", "parts"}.isdisjoint(message)
    return message if has_arguments and is_said else mark_cut_text("content that was not captured")


def _with_events(
    records: list[tuple[RecordLocation, Record]],
) -> list[tuple[RecordLocation, Record]]:
    """Return a session's records, with log records added to their spans in order of time.

    A log record that was sent twice counts once.
    """
    events = sorted(
        {repr(entry[1]): entry for entry in records if entry[1]["event"]}.values(),
        key=lambda entry: entry[1]["span"].order,
    )
    steps = [record for record in records if not record[1]["event"]]
    index_by_span = {
        (step["span"].trace, step["span"].id): index for index, (_, step) in enumerate(steps)
    }
    for location, event in events:
        index = index_by_span.setdefault((event["span"].trace, event["span"].id), len(steps))
        if index == len(steps):
            steps.append((location, event))
            continue
        known, new = steps[index][1]["attributes"], event["attributes"]
        if event["event"] == "message":
            new = new | {
                name: [*elements(known.get(name)), *new[name]] for name in _MESSAGES if name in new
            }
        steps[index] = steps[index][0], steps[index][1] | {"attributes": known | new}
    return steps


def _single_span(record: Record) -> Record:
    """Return a single span record as a step.

    A data frame has one column per attribute and per field of the context.
    """
    raw, status = decoded(record.get("attributes")), record.get("status")
    code, message = record.get("status_code"), record.get("status_message")
    if isinstance(status, dict):
        code, message = status.get("status_code"), status.get("description")
    attributes = flat(raw) if isinstance(raw, dict) else _columns(record, "attributes.")
    span_fields = record | _columns(record, "context.") | section(record, "context")
    step = _step(
        span_fields,
        attributes,
        section(record, "resource", "attributes"),
        code,
        message,
        record.get("span_kind"),
    )
    return step | {"annotations": objects(record.get("annotations"))}


def _columns(row: Record, prefix: str) -> Record:
    """Return the columns of a row whose names begin with a prefix, with the prefix removed."""
    return {
        name.removeprefix(prefix): value
        for name, value in row.items()
        if name.startswith(prefix) and value is not None
    }


def _attributes(leaf: Record) -> Record:
    raw = leaf.get("attributes")
    return section({"of": plain_value(raw) if isinstance(raw, list) else raw}, "of")


def _error(status: object, message: object, attributes: Record, events: list[Record]) -> str | None:
    if str(status).rpartition("_")[2].upper() not in ("2", "ERROR"):
        return None
    raised = next(
        (
            event["attributes"].get("exception.message")
            for event in events
            if event.get("name") == "exception"
        ),
        None,
    )
    return text(message) or text(raised) or text(attributes.get("error.type")) or "the step failed"
