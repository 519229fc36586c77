"""Records of Langfuse: observations, traces and scores.

The records have the form of the API (a trace with its observations inside or separate), or of a
download from the UI. Traces with the same session id are the runs of one session. Newer APIs have
no traces: an observation names its trace and session, and a score names its `subject`. An
observation that came by OpenTelemetry has further attributes of its span in its metadata; they are
read as the attributes of a span.
"""

from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    decoded_object,
    decoded_text,
    first_of,
    first_text,
    number,
    objects,
    section,
    text,
    when,
)
from agent_pipeline.sources.formats.file_source import Ident
from agent_pipeline.sources.formats.model_calls import (
    first_choice,
    stop_reason,
    with_reason,
    words_or_messages,
)
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.dialects import fill_in
from agent_pipeline.sources.platforms.langfuse_server import LangfuseServer
from agent_pipeline.sources.platforms.span_source import Score, SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_OF_OPENTELEMETRY = {"attributes", "resourceAttributes", "scope"}
_TYPES = {
    "GENERATION",
    "TOOL",
    "AGENT",
    "SPAN",
    "EVENT",
    "CHAIN",
    "RETRIEVER",
    "EVALUATOR",
    "EMBEDDING",
    "GUARDRAIL",
}
_COUNTS = ("input", "output", "total")
_OF_SCORES = {"traceId", "sessionId", "subject"}
_WORDS = ("CATEGORICAL", "TEXT", "CORRECTION")
"""Types of scores whose number has no meaning because it is the number of a category, or 0."""


class LangfuseSource(SpanSource):
    """A reader of files of Langfuse records, or of a running Langfuse server."""

    name = "langfuse"
    version = 10
    looks_like = (
        "observations with traceId and type, traces with observations, scores with traceId, or a "
        "server at langfuse+https://host"
    )
    schemes = ("langfuse+http", "langfuse+https")
    service = LangfuseServer

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if isinstance(record.get("data"), list):  # a page of the API
            return any(cls.accepts(entry) for entry in objects(record["data"]))
        is_step = bool(text(record.get("traceId"))) and _type(record) in _TYPES
        return (
            _is_download(record)
            or _is_trace(record)
            or is_step
            or (_is_score(record) and not _OF_SCORES.isdisjoint(record))
        )

    def unpack(self, record: Record) -> list[Record]:
        if isinstance(record.get("data"), list):
            # Entries that are not an observation, trace or score become empty records. They are
            # counted among the records that belong to no session.
            known = [
                entry if isinstance(entry, dict) and self.accepts(entry) else None
                for entry in record["data"]
            ]
            return [
                inner for entry in known for inner in (self.unpack(entry) if entry else [{}])
            ] or [{}]
        if _is_download(record):
            record = record["trace"] | {"observations": record["observations"]}
        if subject := section(record, "subject"):
            record = record | {
                "traceId": subject.get("traceId"),
                f"{subject.get('kind')}Id": subject.get("id"),
            }
        if not _is_trace(record):
            return [record]
        parts = [
            entry for name in ("observations", "scores") for entry in objects(record.get(name))
        ]
        # An empty list of observations remains, because some exports of traces lack other signs.
        trace_record = {**record, "observations": [], "scores": []}
        return [trace_record, *({"traceId": record.get("id"), **part} for part in parts)]

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        trace, session, project = (
            first_text(record, name) for name in ("traceId", "sessionId", "projectId")
        )
        if _is_trace(record):
            return Ident(
                trace or first_text(record, "id"), session, project, first_text(record, "name")
            )
        if trace is None and session and project:  # a score of a session
            return Ident(f"session {session}", session, project)
        return Ident(trace, session, project, first_text(record, "traceName")) if trace else None

    def spans(self, record: Record) -> list[Span]:
        is_trace, kind = _is_trace(record), _type(record)
        if not is_trace and kind not in _TYPES:
            return []
        prompt, answered = (
            words_or_messages(record.get("input")),
            words_or_messages(record.get("output")),
        )
        if is_trace:
            trace = text(record.get("id")) or ""
            root = Span(trace, trace, started=when(record.get("timestamp")))
            root.exchange(prompt, answered)
            return [root] if root.prompt or root.answered else []
        arguments, output = _tool_call(
            decoded_text(record.get("input")), decoded_text(record.get("output"))
        )
        span = span_of(record, kind, arguments=arguments, output=output)
        if span.kind != "tool":
            span.exchange(prompt, answered)
            count = section(record, "modelParameters").get("n")
            span.answered = first_choice(span.answered, count)
        span.tools = (
            span.tools
            or section(record, "modelParameters").get("tools")
            or record.get("toolDefinitions")
        )
        fill_in(span, decoded_object(_metadata(record).get("attributes")))
        span.answered = with_reason(span.answered, stop_reason(_metadata(record)))
        span.model = record.get("model") or span.model
        span.usage = (
            section(record, "usageDetails")
            or chosen(section(record, "usage"), _COUNTS)
            or span.usage
        )
        span.cost = number(
            first_of(
                {"of": section(record, "costDetails").get("total"), **record}, "of", "totalCost"
            )
        )
        span.error = (
            (text(record.get("statusMessage")) or "the step failed")
            if record.get("level") == "ERROR"
            else None
        )
        return [span]

    def scores_of(self, record: Record) -> list[Score]:
        if not _is_score(record):
            return []
        names = (
            ("stringValue", "value")
            if record.get("dataType") in _WORDS
            else ("value", "stringValue")
        )
        return [(text(record.get("name")) or "score", first_of(record, *names))]

    def metadata(self, record: Record) -> Record:
        if not (is_trace := _is_trace(record)) and record.get("isRootObservation") is not True:
            return {}
        metadata = _metadata(record)
        kept = {
            name: decoded_text(metadata[name])
            for name in metadata
            if is_trace or name not in _OF_OPENTELEMETRY
        }
        return kept | {"tags": record.get("tags")}


def _tool_call(arguments: object, answered: object) -> tuple[object, object]:
    """Return the arguments and the result of a tool step.

    Strands writes both as messages, and the result as JSON of blocks.
    """
    message = arguments[0] if isinstance(arguments, list) and len(arguments) == 1 else None
    if isinstance(message, dict) and message.get("role") == "tool" and "content" in message:
        arguments = decoded(message["content"])
    if isinstance(answered, dict) and answered.keys() == {"message"}:
        answered = decoded(answered["message"])
    blocks = answered if isinstance(answered, list) else []
    if blocks and all(isinstance(block, dict) and block.keys() == {"text"} for block in blocks):
        answered = [block | {"type": "text"} for block in blocks]
    return arguments, answered


def _metadata(record: Record) -> Record:
    """Return a record's metadata, with OpenTelemetry's names as nested objects.

    Langfuse 4 flattens these names (`attributes.llm.model_name`).
    """
    kept: Record = {}
    flat: dict[str, Record] = {}
    for name, value in decoded_object(record.get("metadata")).items():
        group, _, inner = name.partition(".")
        if inner and group in _OF_OPENTELEMETRY:
            flat.setdefault(group, {})[inner] = value
        else:
            kept[name] = value
    return kept | {
        group: decoded_object(kept.get(group)) | values for group, values in flat.items()
    }


def _is_download(record: Record) -> bool:
    return isinstance(record.get("trace"), dict) and isinstance(record.get("observations"), list)


def _type(record: Record) -> str:
    return str(record.get("type"))


def _is_trace(record: Record) -> bool:
    if _type(record) in _TYPES or "traceId" in record:
        return False
    return isinstance(record.get("observations"), list) or (
        "sessionId" in record and "timestamp" in record and "public" in record
    )


def _is_score(record: Record) -> bool:
    return (
        "dataType" in record and "name" in record and ("value" in record or "stringValue" in record)
    )
