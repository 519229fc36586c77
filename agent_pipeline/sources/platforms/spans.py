"""What the readers of tracing platforms share: spans of one session → the session, and a session for each conversation beside it.

A reader says what a record is (`span`), which trace and session it belongs to (`identify`), and what evaluations say (`scores_of`). Traces
that name one session are its runs.
"""

from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, NamedTuple

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.items import to_messages
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.formats.fields import number, verdict
from agent_pipeline.sources.formats.files import FileSource, Index, Record
from agent_pipeline.sources.formats.records import Place
from agent_pipeline.sources.platforms.threads import Score, Span, Thread, add, add_results, in_order, main_thread, threads_of, tool_items

_WORDS = {"acceptable", "unacceptable", "pass", "passed", "fail", "failed", "correct", "incorrect", "good", "bad", "success", "failure"}
_DECIDING = ("correct", "accept", "pass", "success", "judg", "verdict", "goal", "thumb", "feedback", "overall", "quality", "helpful")
_USAGE = {
    "prompt": "input_tokens",
    "prompt_tokens": "input_tokens",
    "input": "input_tokens",
    "completion": "output_tokens",
    "completion_tokens": "output_tokens",
    "output": "output_tokens",
    "total": "total_tokens",
}


class Verdict(NamedTuple):
    """What evaluations of a session come to."""

    scores: dict[str, float]
    score: float | None
    judgment: str | None


class SpanSource(FileSource):
    """Base of the readers of tracing platforms."""

    merges: ClassVar[bool] = True

    def spans(self, record: Record) -> list[Span]:
        """The spans in a record; none in one that only says something about others."""
        raise NotImplementedError

    def scores_of(self, record: Record) -> list[Score]:
        """The evaluations in a record that is no span."""
        return []

    def about(self, record: Record) -> dict[str, Any]:
        """What a record says of the whole session: fields of `Session` (`context` among them)."""
        return {}

    def beside(self, session_id: str) -> dict[str, Any]:
        """What is known of a session from elsewhere than its records."""
        return {}

    def build(self, key: PartitionKey, session_id: str, found: list[tuple[Place, Record]]) -> Iterable[Session]:
        spans: list[Span] = []
        scores: list[Score] = []
        said: dict[str, Any] = {}
        context: dict[str, Any] = {}
        for _, record in found:
            own = self.spans(record)
            spans += own
            scores += [score for span in own for score in span.scores] + self.scores_of(record)
            about = self.about(record)
            context |= about.pop("context", None) or {}
            said |= {name: value for name, value in about.items() if value is not None}
        yield from self._sessions(key, session_id, spans, scores, said | self.beside(session_id), context)

    def _sessions(
        self, key: PartitionKey, session_id: str, spans: list[Span], scores: list[Score], said: dict[str, Any], context: dict[str, Any]
    ) -> Iterator[Session]:
        threads = threads_of(span for span in spans if span.kind == "model" and (span.given or span.answered))
        tools = list(in_order(span for span in spans if span.kind == "tool"))
        main = main_thread(threads) if threads else _told_by_others(spans, tools)
        if threads:
            for thread in threads:
                tools = add_results(thread, tools)
            if tools:
                main.skipped["unplaced_tool_span"] += len(tools)
        found = verdict_of(scores)
        said = {"score": found.score, "judgment": found.judgment, "scores": found.scores, "error": _error(spans, main)} | said
        for span in spans:
            context = span.context | context
        yield self._made(key, session_id, main, spans, context, said)
        others = [thread for thread in threads if thread is not main]
        taken = self._indexed()[key] if others else {}
        for count, thread in enumerate(others, 1):
            name = f"{session_id}~side{count}"
            while name in taken:
                name += "~"
            yield self._made(key, name, thread, thread.calls, {}, {"parent_session_id": session_id})

    def _made(
        self, key: PartitionKey, session_id: str, thread: Thread, spans: list[Span], context: dict[str, Any], said: dict[str, Any]
    ) -> Session:
        chat = to_messages(thread.chat())
        chat.skipped.update(thread.skipped)
        calls = thread.calls or [span for span in spans if span.kind == "model" and span.usage] or spans
        times = [time for span in spans for time in (span.started, span.ended) if time]
        costs = [span.cost for span in calls if span.cost is not None]
        given: dict[str, Any] = {
            "created_at": min(times, default=None),
            "ended_at": max(times, default=None),
            "model_id": next((span.model for span in reversed(calls) if isinstance(span.model, str) and span.model), None),
            "usage": [renamed(span.usage) for span in calls],
            "cost_usd": sum(costs) if costs else None,
        }
        tools = next((span.tools for span in reversed(calls) if span.tools), None)
        return self.made(key, session_id, chat, tools=tools, context=context, **(given | said))

    def _made_index(self) -> Index:
        """Runs of one session by several agents of a project are one session: that of the agent with the most records of it."""
        index = super()._made_index()
        holders: dict[tuple[str, str], list[PartitionKey]] = {}
        for key in sorted(index):
            for session_id in index[key]:
                holders.setdefault((key.project, session_id), []).append(key)
        for (_, session_id), keys in holders.items():
            main = max(keys, key=lambda key: len(index[key][session_id]))
            for key in keys:
                if key != main:
                    index[main][session_id] += index[key].pop(session_id)
        return {key: sessions for key, sessions in index.items() if sessions}


def verdict_of(scores: Iterable[Score]) -> Verdict:
    """Numbers by name (the last of a name wins) with their mean, and a judgment where evaluations decide.

    A word (`pass`, `incorrect`) decides; a bool, or a number that is 1 or 0, only under a name that says so (`correctness`, not
    `toxicity`). All that decide must be good for the session to be acceptable.
    """
    numbers: dict[str, float] = {}
    judgments: dict[str, str] = {}
    for score in scores:
        if (value := number(score.value)) is not None:
            numbers[score.name] = value
        for said in (score.label, score.value):
            word = isinstance(said, str) and said.strip().lower() in _WORDS
            named = any(part in score.name.lower() for part in _DECIDING)
            if (word or named) and (judgment := verdict(said)[1] if said is not None else None):
                judgments[score.name] = judgment
                break
    judgment = None if not judgments else "acceptable" if set(judgments.values()) == {"acceptable"} else "unacceptable"
    return Verdict(numbers, sum(numbers.values()) / len(numbers) if numbers else None, judgment)


def renamed(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts with one name for each: prompt and completion go by input and output."""
    return {_USAGE.get(str(name), str(name)): value for name, value in usage.items()}


def _told_by_others(spans: list[Span], tools: list[Span]) -> Thread:
    """A session without the text of a model call: what went into and out of each run's root, and the tool calls between."""
    thread = Thread()
    runs: dict[str, list[Span]] = {}
    for span in in_order(spans):
        runs.setdefault(span.trace, []).append(span)
    for run in runs.values():
        ids = {span.id for span in run}
        roots = [span for span in run if span.kind != "tool" and (span.parent is None or span.parent not in ids)]
        told = next((span for span in roots if span.given or span.answered), None)
        own = [span for span in run if any(span is tool for tool in tools)]
        single = threads_of([told])[0] if told else Thread()
        behind = len(single.keys) - single.answer_at
        answer = single.items[len(single.items) - behind :] if behind else []
        thread.system = thread.system or single.system
        add(thread, single.items[: len(single.items) - len(answer)])
        for tool in own:
            add(thread, tool_items(tool))
        add(thread, answer)
    spoken = any(isinstance(item, dict) and "role" in item for item in thread.items)
    if tools and not spoken:
        thread.skipped["model_call_without_text"] = sum(span.kind == "model" for span in spans) or 1
    return thread


def _error(spans: list[Span], main: Thread) -> str | None:
    """The failure that a session ended with: of its last model call, or of the last run's root."""
    last = main.calls[-1:] or list(in_order(span for span in spans if span.kind == "model"))[-1:]
    roots = list(in_order(span for span in spans if span.parent is None and span.kind != "tool"))[-1:]
    return next((span.error for span in (*roots, *last) if span.error), None)
