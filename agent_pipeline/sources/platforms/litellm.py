"""Logs of LiteLLM, one row per call: `{messages, response, session_id, trace_id, ...}`.

The rows come from LiteLLM's file and bucket loggers, or from its spend logs. Each call of a session
repeats the conversation so far.
"""

from agent_pipeline.sessions.session import CHOSEN_MODEL
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    decoded_object,
    first_of,
    first_text,
    number,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.span_source import SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_MARKS = {"call_type", "response_cost", "trace_id", "spend", "litellm_call_id", "litellm_trace_id"}
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


class LiteLLMSource(SpanSource):
    """A reader of a file or folder of LiteLLM logs."""

    name = "litellm"
    version = 2
    looks_like = (
        "logged calls of LiteLLM with messages, response and, for example, trace_id or "
        "response_cost"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return "messages" in record and "response" in record and bool(record.keys() & _MARKS)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        metadata = section(record, "metadata")
        named = first_text(record, "session_id") or first_text(metadata, "session_id")
        session = named or first_text(record, "trace_id", "litellm_trace_id", "id", "request_id")
        session = session or f"{location.path.stem}:{location.position:012d}:{location.part}"
        project = first_text(metadata, "user_api_key_team_alias") or first_text(record, "team_id")
        return Ident(
            session, session, project, first_text(metadata, "agent_name", "user_api_key_alias")
        )

    def spans(self, record: Record) -> list[Span]:
        parameters = decoded_object(record.get("model_parameters"))
        failed = record.get("status") in ("failure", "failed", "error")
        error = text(record.get("error_str")) or text(
            section(record, "error_information").get("error_message")
        )
        span = span_of(record, "llm", error=(error or "the call failed") if failed else None)
        answer, tools = (
            None if failed else record.get("response"),
            parameters.get("tools") or parameters.get("functions"),
        )
        # The spend logs keep a request in one of two columns.
        request = decoded(record.get("messages")) or decoded_object(
            record.get("proxy_server_request")
        )
        span.exchange(
            request, answer, tools=tools, model=record.get("model"), usage=chosen(record, _USAGE)
        )
        span.cost = number(first_of(record, "response_cost", "spend"))
        return [span]

    def metadata(self, record: Record) -> Record:
        return {"tags": record.get("request_tags")} | chosen(
            section(record, "metadata"), ("task_id", "trial", CHOSEN_MODEL)
        )
