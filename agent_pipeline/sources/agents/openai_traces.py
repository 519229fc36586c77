"""Trace exports of the OpenAI Agents SDK: lines of object `trace` and `trace.span`.

A trace is one run. The traces that share `group_id` are one session. `generation` spans contain the
messages. `response` spans contain no messages, so a session with only such spans consists of tool
calls and tool results. A file of verdicts may lie next to the export (`labels.py`).
"""

from functools import lru_cache
from pathlib import Path

from agent_pipeline.sources.base import files_of
from agent_pipeline.sources.formats.fields import Record, error_text, section, text
from agent_pipeline.sources.formats.file_source import Ident, SessionFields
from agent_pipeline.sources.formats.labels import labels_beside, read_labels
from agent_pipeline.sources.formats.model_calls import request_of
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.span_source import SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of


class OpenAITracesSource(SpanSource):
    """A reader of a trace file of the OpenAI Agents SDK, or of a folder of traces."""

    name = "openai_agents_traces"
    version = 2
    looks_like = "JSON lines whose object is trace or trace.span"

    def __init__(self, where: Path | str) -> None:
        super().__init__(where)
        self._labels = lru_cache(maxsize=1)(
            lambda signature: read_labels(self.sidecars(), self.notes)
        )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        kind = record.get("object")
        return (kind == "trace" and "workflow_name" in record) or (
            kind == "trace.span" and isinstance(record.get("span_data"), dict)
        )

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        if record.get("object") == "trace":
            return Ident(
                text(record.get("id")) or f"{location}",
                text(record.get("group_id")),
                text(record.get("workflow_name")),
            )
        data = section(record, "span_data")
        return Ident(
            text(record.get("trace_id")) or f"{location}",
            agent=text(data.get("name")) if data.get("type") == "agent" else None,
        )

    def spans(self, record: Record) -> list[Span]:
        if record.get("object") == "trace":
            return []
        data = section(record, "span_data")
        span = span_of(
            record,
            data.get("type"),
            name=text(data.get("name")),
            error=error_text(record.get("error")),
        )
        if span.kind == "tool":
            span.arguments, span.output = data.get("input"), data.get("output")
        elif span.kind == "model":
            tools = request_of(data.get("model_config")).tools
            span.exchange(
                data.get("input"),
                data.get("output"),
                tools=tools,
                model=data.get("model"),
                usage=section(data, "usage"),
            )
        elif data.get("type") == "custom":
            # Only turns are counted: the token counts of the task and the run are sums over the
            # turns.
            inner = section(data, "data")
            span.usage = section(inner, "usage") if inner.get("sdk_span_type") == "turn" else {}
        return [span]

    def metadata(self, record: Record) -> Record:
        return section(record, "metadata") if record.get("object") == "trace" else {}

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        labels = self._labels(self.signature())
        return (
            (name, session_fields | labels.get(name, {}))
            for name, session_fields in super().build(session_id, records)
        )

    def sidecars(self) -> list[Path]:
        return [labels for path in files_of(self.path) for labels in labels_beside(path)]
