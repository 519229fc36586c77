"""Base class of the readers of tracing platforms.

The spans of one session become a session, plus one more session for each other conversation in
them. A reader defines which spans a record holds (`spans`), which trace and session they belong to
(`identify`), and which evaluations it holds (`scores_of`). Traces that name the same session are
its runs. Evaluations are recorded under the metric's name and do not become a judgment here: 1 is
good for correctness and bad for toxicity, and only a setting defines the direction of a metric.
"""

from collections import Counter
from collections.abc import Iterable
from statistics import fmean
from typing import Any, ClassVar

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.items import Item, assemble_chat
from agent_pipeline.sources.formats.cut_texts import MEDIA, cut_texts_in
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    number,
    text,
    verdict,
    verdict_in,
)
from agent_pipeline.sources.formats.file_source import FileSource, Index, SessionFields
from agent_pipeline.sources.formats.record_files import Kind, RecordLocation
from agent_pipeline.sources.platforms.conversation import Conversation
from agent_pipeline.sources.platforms.conversations import conversations_in
from agent_pipeline.sources.platforms.spans import Span, in_order
from agent_pipeline.sources.platforms.tool_sets import list_tools

Score = tuple[str, Any]
"""Result of an evaluation: the metric's name, and a number, a boolean or a word."""

_USAGE = {
    "prompt": "input_tokens",
    "prompt_tokens": "input_tokens",
    "input": "input_tokens",
    "completion": "output_tokens",
    "completion_tokens": "output_tokens",
    "output": "output_tokens",
    "total": "total_tokens",
}
"""Common names of token counts, by the names that the platforms use."""


class SpanSource(FileSource):
    """A base class for readers of tracing platforms, whose records are spans."""

    kinds: ClassVar[tuple[Kind, ...]] = ("lines", "document", "table")
    merges = True

    def spans(self, record: Record) -> list[Span]:
        """Return the spans that a record contains.

        The result is empty if the record only describes other records.
        """
        raise NotImplementedError

    def scores_of(self, record: Record) -> list[Score]:
        """Return the evaluations that a record contains."""
        return []

    def words_of(self, record: Record) -> list[object]:
        """Return the words with which people judged a run or its session."""
        return []

    def metadata(self, record: Record) -> Record:
        """Return the fields of a record that describe the whole session.

        These fields become the context of the session. `task_id` and `trial` also become fields of
        the session.
        """
        return {}

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        spans = [span for _, record in records for span in self.spans(record)]
        fields: Record = {"context": {}}
        for _, record in records:
            metadata = self.metadata(record)
            fields["context"] |= metadata
            fields |= chosen(metadata, ("task_id", "trial"))
        fields["scores"], labels = metrics(
            score for _, record in records for score in self.scores_of(record)
        )
        fields["context"] |= {"labels": labels} if labels else {}
        fields["judgment"] = verdict_in(
            word for _, record in records for word in self.words_of(record)
        )
        main, *others = conversations_in(spans)
        yield session_id, _arguments(main, spans) | {"error": _error(spans, main)} | fields
        index = self._index() if others else {}
        for count, conversation in enumerate(others, 1):
            name = f"{session_id}~side{count}"
            while any(name in sessions for sessions in index.values()):
                name += "~"
            yield (
                name,
                _arguments(conversation, conversation.calls) | {"parent_session_id": session_id},
            )

    def _new_index(self) -> Index:
        """Return the index, with each session in a single partition.

        If several agents of a project have records of a session, the session belongs to the agent
        with the most records.
        """
        index = super()._new_index()
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


def _arguments(conversation: Conversation, spans: list[Span]) -> Record:
    """Return the arguments of `new_session` for a conversation and its steps."""
    calls = (
        conversation.calls
        or [span for span in spans if span.kind == "model" and span.usage]
        or spans
    )
    items = [*conversation.system, *conversation.items]
    return {
        "history": assemble_chat(items),
        "damage": conversation.damage
        + Counter(cut_text=cut_texts_in(items), missing_media=sum(map(_media_in, items))),
        "skipped": conversation.skipped,
        "tools": conversation.tools or list_tools(calls),
        "times": sorted(time for span in spans for time in (span.started, span.ended) if time),
        "models": [span.model for span in calls if isinstance(span.model, str)],
        "answering_models": [
            model
            for answer in conversation.model_answers
            if isinstance(model := answer.call.model, str)
        ],
        "usage": [
            {_USAGE.get(str(name), str(name)): value for name, value in span.usage.items()}
            for span in calls
        ],
        "costs": [span.cost for span in calls],
    }


def _media_in(item: Item) -> int:
    """Count the pictures and files in a text that a platform stores separately."""
    return sum(1 for _ in MEDIA.finditer(item.text)) if "@@@" in item.text else 0


def metrics(scores: Iterable[Score]) -> tuple[dict[str, float], dict[str, str]]:
    """Return the values of metrics by name, and the words that are not values.

    If a name has several values (for example of several runs), the mean counts, so that a good
    value does not hide a bad value. If a name has several words, the last word counts. Words such
    as `pass` and `incorrect` count as 1 and 0, as booleans do.
    """
    values: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for name, value in scores:
        score = verdict(value)[0] if isinstance(value, str) else number(value)
        if score is not None:
            values.setdefault(name, []).append(score)
        elif label := text(value):
            labels[name] = label
    return {name: fmean(numbers) for name, numbers in values.items()}, labels


def _error(spans: list[Span], main: Conversation) -> str | None:
    """Return the error that a session ended with, or None.

    It is the error of the last run's root span, or of the last model call.
    """
    last = main.calls[-1:] or in_order(span for span in spans if span.kind == "model")[-1:]
    roots = in_order(span for span in spans if span.parent is None and span.kind != "tool")[-1:]
    return next((span.error for span in (*roots, *last) if span.error), None)
