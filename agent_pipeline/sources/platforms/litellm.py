"""LiteLLM's logs, a row a call: `{messages, response, session_id, trace_id, ...}`, as its file and bucket loggers write them, or its spend
logs as rows. The calls of one session repeat the conversation so far."""

from typing import Any, ClassVar

from agent_pipeline.sources.formats.fields import number, section, when
from agent_pipeline.sources.formats.files import Ident, Record, text
from agent_pipeline.sources.formats.records import Place
from agent_pipeline.sources.platforms.requests import decoded, request_of, response_of
from agent_pipeline.sources.platforms.spans import SpanSource
from agent_pipeline.sources.platforms.threads import Span

_MARKS = {"call_type", "response_cost", "trace_id", "spend", "litellm_call_id", "litellm_trace_id"}
_USAGE = ("prompt_tokens", "completion_tokens", "total_tokens")


class LiteLLMSource(SpanSource):
    """Files of logged calls."""

    name: ClassVar[str] = "litellm"
    looks_like: ClassVar[str] = "rows with messages, response and session_id or trace_id"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return "messages" in record and "response" in record and bool(record.keys() & _MARKS)

    def identify(self, record: Record, place: Place) -> Ident:
        metadata = section(record, "metadata")
        session = text(record.get("session_id")) or text(metadata.get("session_id"))
        trace = text(record.get("trace_id")) or text(record.get("litellm_trace_id"))
        alone = text(record.get("id")) or text(record.get("request_id")) or f"{place.path.stem}:{place.at:012d}:{place.part}"
        project = text(metadata.get("user_api_key_team_alias")) or text(record.get("team_id"))
        agent = text(metadata.get("agent_name")) or text(metadata.get("user_api_key_alias"))
        return Ident(session or trace or alone, session or trace or alone, project, agent)

    def spans(self, record: Record) -> list[Span]:
        parameters = section({"of": decoded(record.get("model_parameters"))}, "of")
        request, response = request_of(record.get("messages")), response_of(record.get("response"))
        failed = record.get("status") in ("failure", "failed", "error")
        cost = next((found for name in ("response_cost", "spend") if (found := number(record.get(name))) is not None), None)
        return [
            Span(
                trace=text(record.get("trace_id")) or "",
                id=text(record.get("id")) or "",
                kind="model",
                started=when(record.get("startTime")),
                ended=when(record.get("endTime")),
                given=request.messages,
                answered=[] if failed else response.messages,
                tools=parameters.get("tools") or parameters.get("functions") or request.tools,
                model=record.get("model") or response.model,
                usage={name: record[name] for name in _USAGE if number(record.get(name)) is not None} or response.usage,
                cost=cost,
                error=(_error(record) or "the call failed") if failed else None,
            )
        ]

    def about(self, record: Record) -> dict[str, Any]:
        metadata = section(record, "metadata")
        return {"task_id": metadata.get("task_id"), "trial": metadata.get("trial"), "context": {"tags": record.get("request_tags")}}


def _error(record: Record) -> str | None:
    return text(record.get("error_str")) or text(section(record, "error_information").get("error_message"))
