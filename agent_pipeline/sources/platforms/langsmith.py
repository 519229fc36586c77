"""Runs of LangSmith, a record each, as its SDK's `Run` is written (`model_dump_json`). Traces of one thread are the runs of a session.

A run says what its SDK recorded: an API's request and response, or LangChain's lists of messages and generations.
"""

from typing import Any

from agent_pipeline.sources.formats.fields import Record, chosen, decoded, elements, first_text, number, section, text
from agent_pipeline.sources.formats.file_source import Ident
from agent_pipeline.sources.formats.record_files import Place
from agent_pipeline.sources.platforms.span_source import SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_THREADS = ("session_id", "thread_id", "conversation_id")
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class LangSmithSource(SpanSource):
    """Files of runs: the SDK's project is the project, the name of a trace's first run the agent."""

    name = "langsmith"
    looks_like = "runs with run_type, trace_id and dotted_order"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return {"run_type", "trace_id", "dotted_order"} <= record.keys()

    def identify(self, record: Record, place: Place) -> Ident | None:
        trace, thread = text(record.get("trace_id")), first_text(section(record, "extra", "metadata"), *_THREADS)
        agent = None if record.get("parent_run_id") else text(record.get("name"))
        return Ident(trace, thread, first_text(record, "session_name", "session_id"), agent) if trace else None

    def spans(self, record: Record) -> list[Span]:
        inputs, outputs, extra = section(record, "inputs"), section(record, "outputs"), section(record, "extra")
        generation = _inner(outputs.get("generations"))[:1]
        tool, metadata = outputs.get("output"), section(extra, "metadata")
        cost = next(iter(elements(decoded(f"[{record.get('total_cost')}]"))), None)  # a decimal number is a text
        span = span_of(
            record,
            record.get("run_type"),
            usage=chosen(record, _COUNTS) or section(metadata, "usage_metadata"),
            cost=number(cost),
            error=text(record.get("error")),
            arguments=inputs,
            output=tool.get("content", tool) if isinstance(tool, dict) else outputs if tool is None else tool,
            call_id=extra.get("tool_call_id"),
        )
        if span.kind == "model":
            asked, answer = inputs | {"messages": _inner(inputs.get("messages"))}, [section(each, "message") or each for each in generation]
            tools = section(extra, "invocation_params").get("tools")
            span.exchange(asked, answer or outputs, tools=tools, model=metadata.get("ls_model_name"), usage=span.usage)
        return [span]

    def metadata(self, record: Record) -> Record:
        if record.get("parent_run_id"):
            return {}
        return section(record, "extra", "metadata") | chosen(record, ("tags",))


def _inner(lists: Any) -> list[Any]:
    """The first list of LangChain's list of lists, one for each prompt; a plain list as it is."""
    first = next(iter(elements(lists)), None)
    return first if isinstance(first, list) else elements(lists)
