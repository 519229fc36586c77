"""Traces of MLflow 3 as JSON, and the rows of `mlflow.search_traces()`.

A trace is `{"info": {...}, "data": {"spans": [...]}}`. A span's attributes are JSON texts. Traces
with the same `mlflow.trace.session` are the runs of one session, and assessments are its metrics.
"""

from agent_pipeline.sources.formats.fields import (
    Record,
    decoded,
    decoded_object,
    decoded_text,
    elements,
    first_text,
    number,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident
from agent_pipeline.sources.formats.model_calls import with_reason
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.dialects import finish_reason
from agent_pipeline.sources.platforms.mlflow_server import MLflowServer
from agent_pipeline.sources.platforms.span_source import Score, SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of


class MLflowSource(SpanSource):
    """A reader of files of MLflow traces, of `mlflow.db`, or of a running MLflow server."""

    name = "mlflow"
    version = 4
    looks_like = (
        "traces with info and data.spans, a table with trace_id, trace_metadata and spans, "
        "mlflow.db, or a server at mlflow+http://host"
    )
    kinds = (*SpanSource.kinds, "database")
    schemes = ("mlflow+http", "mlflow+https")
    service = MLflowServer

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if {"trace_id", "trace_metadata", "spans"} <= record.keys():
            return True
        return "data" in record and "trace_id" in decoded_object(record.get("info"))

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        info = _info(record)
        trace = first_text(info, "trace_id") or f"{location}"
        session = text(section(info, "trace_metadata").get("mlflow.trace.session"))
        experiment = section(info, "trace_location", "mlflow_experiment").get("experiment_id")
        return Ident(
            trace,
            session or trace,
            text(experiment),
            text(section(info, "tags").get("mlflow.traceName")),
        )

    def spans(self, record: Record) -> list[Span]:
        trace = first_text(_info(record), "trace_id") or ""
        data = decoded_object(record.get("data")) if "info" in record else record
        return [
            _span(span, trace)
            for span in map(decoded, elements(data.get("spans")))
            if isinstance(span, dict)
        ]

    def scores_of(self, record: Record) -> list[Score]:
        return [
            (
                first_text(assessment, "assessment_name") or "feedback",
                assessment["feedback"].get("value"),
            )
            for assessment in map(decoded_object, elements(_info(record).get("assessments")))
            if isinstance(assessment.get("feedback"), dict) and assessment.get("valid") is not False
        ]

    def metadata(self, record: Record) -> Record:
        return {
            name: value
            for name, value in section(_info(record), "tags").items()
            if not str(name).startswith("mlflow.")
        }


def _info(record: Record) -> Record:
    """Return the general information about a trace.

    A row of a table has it in columns.
    """
    return (
        decoded_object(record.get("info"))
        if "info" in record
        else {name: decoded(record[name]) for name in record if name != "spans"}
    )


def _span(raw: Record, trace: str) -> Span:
    attributes = {name: decoded_text(value) for name, value in section(raw, "attributes").items()}
    inputs, outputs = attributes.get("mlflow.spanInputs"), attributes.get("mlflow.spanOutputs")
    span = span_of(raw, attributes.get("mlflow.spanType"), trace=trace, error=_error(raw))
    if span.kind == "tool":
        span.arguments, span.output = inputs, outputs
        span.name = text(attributes.get("mlflow.spanFunctionName")) or span.name
        return span
    tools, model = attributes.get("mlflow.chat.tools"), attributes.get("mlflow.llm.model")
    span.exchange(
        inputs,
        outputs,
        tools=tools,
        model=model,
        usage=section(attributes, "mlflow.chat.tokenUsage"),
    )
    span.answered = with_reason(span.answered, finish_reason(attributes))
    span.cost = number(section(attributes, "mlflow.llm.cost").get("total_cost"))
    return span


def _error(raw: Record) -> str | None:
    status = section(raw, "status")
    return (
        text(status.get("message")) or "the step failed"
        if status.get("code") == "STATUS_CODE_ERROR"
        else None
    )
