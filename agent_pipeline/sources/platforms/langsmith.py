"""Runs of LangSmith, one record per run, in the form of its SDK's `Run` (`model_dump_json`).

Traces of one thread are the runs of one session. The form of a run depends on its SDK: an API's
request and response, or LangChain's lists of messages and generations.
"""

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    decoded,
    elements,
    first_of,
    first_text,
    number,
    section,
    text,
)
from agent_pipeline.sources.formats.file_source import Ident, Index, SessionFields
from agent_pipeline.sources.formats.model_calls import (
    mark_other_choices,
    stop_reason,
    with_reason,
)
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.platforms.span_source import Score, SpanSource
from agent_pipeline.sources.platforms.spans import Span, span_of

_PLACES = {"dotted_order", "parent_run_id"}
"""Fields that say where a run stands in its trace."""
_THREADS = ("session_id", "thread_id", "conversation_id")
_COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")


class LangSmithSource(SpanSource):
    """A reader of files of LangSmith runs, and of feedback about runs.

    The SDK's project is the project, and the name of a trace's first run is the agent.
    """

    name = "langsmith"
    version = 3
    looks_like = (
        "runs with run_type, trace_id, and dotted_order or parent_run_id, or feedback with run_id, "
        "key and score"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        # A list of chosen fields often lacks dotted_order.
        is_run = {"run_type", "trace_id"} <= record.keys() and not _PLACES.isdisjoint(record)
        return is_run or _is_feedback(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        if _is_feedback(record):
            run_id = first_text(record, "trace_id", "run_id")
            return Ident(run_id) if run_id else None
        self._traces[text(record.get("id")) or ""] = text(record.get("trace_id")) or ""
        trace, thread = (
            text(record.get("trace_id")),
            first_text(section(record, "extra", "metadata"), *_THREADS),
        )
        agent = None if record.get("parent_run_id") else text(record.get("name"))
        return (
            Ident(trace, thread, first_text(record, "session_name", "session_id"), agent)
            if trace
            else None
        )

    def spans(self, record: Record) -> list[Span]:
        if _is_feedback(record):
            return []
        inputs, outputs, extra = (
            section(record, "inputs"),
            section(record, "outputs"),
            section(record, "extra"),
        )
        generations = _inner(outputs.get("generations"))
        generation = generations[:1]
        tool, metadata = outputs.get("output"), section(extra, "metadata")
        cost = next(
            iter(elements(decoded(f"[{record.get('total_cost')}]"))), None
        )  # a decimal number is stored as text
        span = span_of(
            record,
            record.get("run_type"),
            usage=chosen(record, _COUNTS) or section(metadata, "usage_metadata"),
            cost=number(cost),
            error=text(record.get("error")),
            arguments=inputs,
            output=tool.get("content", tool)
            if isinstance(tool, dict)
            else outputs
            if tool is None
            else tool,
            call_id=extra.get("tool_call_id"),
        )
        if span.kind == "model":
            request, answer = (
                inputs | {"messages": _inner(inputs.get("messages"))},
                [section(element, "message") or element for element in generation],
            )
            tools = section(extra, "invocation_params").get("tools")
            span.exchange(
                request,
                answer or outputs,
                tools=tools,
                model=metadata.get("ls_model_name"),
                usage=span.usage,
            )
            if generation and isinstance(generation[0], dict):
                reason = stop_reason(section(generation[0], "generation_info")) or stop_reason(
                    section(outputs, "llm_output")
                )
                answered = with_reason(span.answered, reason)
                span.answered = [*answered, *mark_other_choices(len(generations) - 1)]
            if len(elements(inputs.get("messages"))) > 1 and all(
                isinstance(element, list) for element in elements(inputs.get("messages"))
            ):
                span.prompt = [*span.prompt, mark_unread("several prompts in one run")]
        return [span]

    def scores_of(self, record: Record) -> list[Score]:
        if _is_feedback(record):
            return [(text(record.get("key")) or "feedback", first_of(record, "score", "value"))]
        return [
            (name, first_of(stats, "avg", "score", "value"))
            for name, stats in section(record, "feedback_stats").items()
            if isinstance(stats, dict)
        ]

    def words_of(self, record: Record) -> list[object]:
        by_a_person = (
            _is_feedback(record) and section(record, "feedback_source").get("type") == "app"
        )
        is_of_the_run = (
            record.get("run_id") == record.get("trace_id") or record.get("trace_id") is None
        )
        return [record.get("value")] if by_a_person and is_of_the_run else []

    def _new_index(self) -> Index:
        self._traces: dict[str, str] = {}
        """Trace of each run, by run id, because feedback may name only a run."""
        return super()._new_index()

    def _partitioned(
        self,
        locations: dict[str | RecordLocation, list[RecordLocation]],
        idents: dict[str | RecordLocation, Ident],
    ) -> Index:
        """Add the feedback about a run to the run's trace, and return the index.

        If the run is not in the store, a note says so.
        """
        traces = set(self._traces.values())
        lost = 0
        for group in [name for name in locations if name not in traces]:
            feedback_locations, trace = locations.pop(group), self._traces.get(str(group))
            del idents[group]
            if trace in locations:
                locations[trace] += feedback_locations
            else:
                lost += len(feedback_locations)
        if lost:
            add_note(
                self.notes,
                f"{self.path}: {lost} records of feedback are about runs that are not in "
                f"the store.",
            )
        return super()._partitioned(locations, idents)

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        """Return the session, with each piece of feedback counted once.

        Feedback may be a separate record, an entry in a run's statistics, or both.
        """
        recorded_feedback = {
            (text(record.get("run_id")), text(record.get("key")))
            for _, record in records
            if _is_feedback(record)
        }
        return super().build(
            session_id,
            [(location, _without_told(record, recorded_feedback)) for location, record in records],
        )

    def metadata(self, record: Record) -> Record:
        if record.get("parent_run_id"):
            return {}
        return section(record, "extra", "metadata") | chosen(record, ("tags",))


def _is_feedback(record: Record) -> bool:
    """Return whether a record is feedback about a run, as `Client.list_feedback` returns it."""
    return (
        {"run_id", "key"} <= record.keys()
        and not {"score", "value"}.isdisjoint(record)
        and "run_type" not in record
    )


def _without_told(record: Record, recorded_feedback: set[tuple[str | None, str | None]]) -> Record:
    """Remove the feedback statistics from a run if the same feedback is also a separate record."""
    stats = section(record, "feedback_stats")
    kept = {
        name: value
        for name, value in stats.items()
        if (text(record.get("id")), text(name)) not in recorded_feedback
    }
    return record | {"feedback_stats": kept} if stats else record


def _inner(lists: object) -> list[object]:
    """Return the first inner list of a list of lists.

    LangChain stores one list per prompt. A plain list is returned unchanged.
    """
    first = next(iter(elements(lists)), None)
    return first if isinstance(first, list) else elements(lists)
