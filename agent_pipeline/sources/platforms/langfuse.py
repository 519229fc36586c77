"""Langfuse: observations, traces and scores as its API gives them (camelCase, a trace with what belongs to it inside or apart) and as its
blob-storage export writes them (snake_case, a row each). Traces with one session id are the runs of a session."""

import re
from typing import Any, ClassVar

from agent_pipeline.sources.formats.fields import elements, number, section, when
from agent_pipeline.sources.formats.files import Ident, Record, text
from agent_pipeline.sources.formats.records import Place
from agent_pipeline.sources.platforms.requests import decoded, request_of, response_of
from agent_pipeline.sources.platforms.spans import SpanSource
from agent_pipeline.sources.platforms.threads import Kind, Score, Span

_KINDS: dict[str, Kind] = {"GENERATION": "model", "TOOL": "tool", "AGENT": "agent"}
_TYPES = {*_KINDS, "SPAN", "EVENT", "CHAIN", "RETRIEVER", "EVALUATOR", "EMBEDDING", "GUARDRAIL"}
_UNDERSCORE = re.compile(r"_([a-z])")


class LangfuseSource(SpanSource):
    """Files of observations, traces and scores, in one file or several."""

    name: ClassVar[str] = "langfuse"
    looks_like: ClassVar[str] = "observations with traceId and type, traces with observations, scores with traceId"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        record = _camel(record)
        if isinstance(record.get("data"), list):  # a page of the API
            return any(isinstance(each, dict) and cls.accepts(each) for each in record["data"])
        return _is_trace(record) or (bool(text(record.get("traceId"))) and (_is_score(record) or _kind(record) in _TYPES))

    def unpack(self, record: Record) -> list[Record]:
        record = _camel(record)
        if isinstance(record.get("data"), list):
            pages = [each for each in record["data"] if isinstance(each, dict) and self.accepts(each)]
            return [inner for each in pages for inner in self.unpack(each)] or [{}]
        if not _is_trace(record):
            return [record]
        parts = [_camel(each) for name in ("observations", "scores") for each in elements(record.get(name)) if isinstance(each, dict)]
        own = {name: value for name, value in record.items() if name not in ("observations", "scores")}
        return [own, *({"traceId": record.get("id"), **each} for each in parts)]

    def identify(self, record: Record, place: Place) -> Ident | None:
        trace = text(record.get("traceId")) or text(record.get("id"))
        if trace is None:
            return None
        named = text(record.get("traceName")) or (text(record.get("name")) if _is_trace(record) else None)
        return Ident(trace, text(record.get("sessionId")), text(record.get("projectId")), named)

    def spans(self, record: Record) -> list[Span]:
        kind = _kind(record)
        if _is_trace(record):
            request, response = request_of(record.get("input")), response_of(record.get("output"))
            trace = text(record.get("id")) or ""
            told = Span(trace, trace, given=request.messages, answered=response.messages, started=when(record.get("timestamp")))
            return [told] if told.given or told.answered else []
        if kind not in _TYPES:
            return []
        request, response = request_of(record.get("input")), response_of(record.get("output"))
        costs = section(record, "costDetails")
        return [
            Span(
                trace=text(record.get("traceId")) or "",
                id=text(record.get("id")) or "",
                kind=_KINDS.get(kind, "other"),
                parent=text(record.get("parentObservationId")),
                name=text(record.get("name")),
                started=when(record.get("startTime")),
                ended=when(record.get("endTime")),
                given=request.messages if kind != "TOOL" else [],
                answered=response.messages if kind != "TOOL" else [],
                tools=request.tools or section(record, "modelParameters").get("tools") or record.get("toolDefinitions"),
                model=record.get("providedModelName") or record.get("model") or response.model,
                usage=section(record, "usageDetails") or _counts(section(record, "usage")) or response.usage,
                cost=next((n for value in (costs.get("total"), record.get("totalCost")) if (n := number(value)) is not None), None),
                error=(text(record.get("statusMessage")) or "the step failed") if record.get("level") == "ERROR" else None,
                arguments=record.get("input"),
                output=record.get("output"),
            )
        ]

    def scores_of(self, record: Record) -> list[Score]:
        if not _is_score(record):
            return []
        value = record.get("value")
        if record.get("dataType") == "BOOLEAN" and number(value) is not None:
            value = bool(value)
        return [Score(text(record.get("name")) or "score", value, record.get("stringValue"))]

    def about(self, record: Record) -> dict[str, Any]:
        if not _is_trace(record):
            return {}
        metadata = decoded(record.get("metadata"))
        metadata = metadata if isinstance(metadata, dict) else {}
        return {"task_id": metadata.get("task_id"), "trial": metadata.get("trial"), "context": metadata | {"tags": record.get("tags")}}


def _kind(record: Record) -> str:
    return str(record.get("type"))


def _is_trace(record: Record) -> bool:
    if _kind(record) in _TYPES or "traceId" in record:
        return False
    return isinstance(record.get("observations"), list) or ("sessionId" in record and "timestamp" in record and "public" in record)


def _is_score(record: Record) -> bool:
    return "dataType" in record and "name" in record and ("value" in record or "stringValue" in record)


def _counts(usage: Record) -> Record:
    """Counts only: `unit` and prices are none."""
    return {name: value for name, value in usage.items() if name in ("input", "output", "total") and number(value) is not None}


def _camel(record: Record) -> Record:
    return {_UNDERSCORE.sub(lambda found: found[1].upper(), name): value for name, value in record.items()}
