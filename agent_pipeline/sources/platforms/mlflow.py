"""MLflow traces as JSON: `{"info": {...}, "data": {"spans": [...]}}`, of MLflow 3 and of 2 (`request_id`, `request_metadata`).

A span's attributes are JSON texts. Traces with one `mlflow.trace.session` are the runs of a session; assessments are verdicts.
"""

from typing import Any, ClassVar

from agent_pipeline.sources.formats.fields import elements, number, section, when
from agent_pipeline.sources.formats.files import Ident, Record, text
from agent_pipeline.sources.formats.records import Place
from agent_pipeline.sources.platforms.requests import decoded, request_of, response_of
from agent_pipeline.sources.platforms.spans import SpanSource
from agent_pipeline.sources.platforms.threads import Kind, Score, Span

_KINDS: dict[str, Kind] = {"LLM": "model", "CHAT_MODEL": "model", "TOOL": "tool", "AGENT": "agent"}


class MLflowSource(SpanSource):
    """Files of traces, one a record."""

    name: ClassVar[str] = "mlflow"
    looks_like: ClassVar[str] = "traces with info and data.spans"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        info = decoded(record.get("info"))
        return isinstance(info, dict) and bool(info.keys() & {"trace_id", "request_id"}) and "data" in record

    def identify(self, record: Record, place: Place) -> Ident:
        info, metadata, tags = _info(record), _metadata(record), section(_info(record), "tags")
        trace = text(info.get("trace_id")) or text(info.get("request_id")) or f"{place}"
        experiment = section(info, "trace_location", "mlflow_experiment").get("experiment_id") or info.get("experiment_id")
        return Ident(trace, text(metadata.get("mlflow.trace.session")) or trace, text(experiment), text(tags.get("mlflow.traceName")))

    def spans(self, record: Record) -> list[Span]:
        trace = text(_info(record).get("trace_id")) or text(_info(record).get("request_id")) or ""
        data = decoded(record.get("data"))
        raw = elements(data.get("spans")) if isinstance(data, dict) else []
        return [_span(each, trace) for each in map(decoded, raw) if isinstance(each, dict)]

    def scores_of(self, record: Record) -> list[Score]:
        found = []
        for each in elements(_info(record).get("assessments")):
            if isinstance(each, dict) and isinstance(each.get("feedback"), dict) and each.get("valid") is not False:
                found.append(
                    Score(text(each.get("assessment_name")) or text(each.get("name")) or "feedback", each["feedback"].get("value"))
                )
        return found

    def about(self, record: Record) -> dict[str, Any]:
        tags = {name: value for name, value in section(_info(record), "tags").items() if not str(name).startswith("mlflow.")}
        return {"task_id": tags.get("task_id"), "trial": tags.get("trial"), "context": tags}


def _info(record: Record) -> Record:
    info = decoded(record.get("info"))
    return info if isinstance(info, dict) else {}


def _metadata(record: Record) -> Record:
    return section(_info(record), "trace_metadata") or section(_info(record), "request_metadata")


def _span(raw: Record, trace: str) -> Span:
    attributes = {name: decoded(value) for name, value in section(raw, "attributes").items()}
    for name, value in attributes.items():  # a JSON text of a text
        if isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"':
            attributes[name] = _unquoted(value)
    kind = _KINDS.get(str(attributes.get("mlflow.spanType")).upper(), "other")
    inputs, outputs = attributes.get("mlflow.spanInputs"), attributes.get("mlflow.spanOutputs")
    span = Span(
        trace=trace,
        id=text(raw.get("span_id")) or text(section(raw, "context").get("span_id")) or "",
        kind=kind,
        parent=text(raw.get("parent_span_id")) or text(raw.get("parent_id")),
        name=text(raw.get("name")),
        started=when(raw.get("start_time_unix_nano") or raw.get("start_time")),
        ended=when(raw.get("end_time_unix_nano") or raw.get("end_time")),
        error=_error(raw),
    )
    if kind == "tool":
        span.arguments, span.output = inputs, outputs
        span.name = text(attributes.get("mlflow.spanFunctionName")) or span.name
        return span
    request, response = request_of(inputs), response_of(outputs)
    messages = attributes.get("mlflow.chat.messages")
    span.given, span.answered = request.messages, response.messages
    if kind == "model" and not span.answered and isinstance(messages, list) and messages:
        span.given, span.answered = messages[:-1], messages[-1:]
    span.tools = attributes.get("mlflow.chat.tools") or request.tools
    span.model = attributes.get("mlflow.llm.model") or response.model or request.model
    span.usage = section(attributes, "mlflow.chat.tokenUsage") or response.usage
    span.cost = number(section(attributes, "mlflow.llm.cost").get("total_cost"))
    return span


def _error(raw: Record) -> str | None:
    status = raw.get("status")
    code = status.get("code") if isinstance(status, dict) else raw.get("status_code") or status
    if str(code).upper() not in ("ERROR", "STATUS_CODE_ERROR"):
        return None
    said = section(raw, "status").get("message") or raw.get("status_message")
    return text(said) or "the step failed"


def _unquoted(value: str) -> str:
    import json

    try:
        inner = json.loads(value)
    except ValueError:
        return value
    return inner if isinstance(inner, str) else value
