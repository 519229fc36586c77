"""Logs of Inspect AI: `.json` documents, and `.eval` zips.

A zip has `header.json` and `samples/*.json`. Each sample is a session, and its `epoch` is its
trial. A score is a grade (`"C"`, `"I"`), a boolean, a number or an object of these. `attachment://`
links are replaced by their texts. The tool schemas come from the sample's model events.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from agent_pipeline.sessions.json_text import MAX_DEPTH
from agent_pipeline.sources.formats.fields import (
    Record,
    chosen,
    elements,
    mean,
    objects,
    section,
    text,
    verdict,
)
from agent_pipeline.sources.formats.file_source import Ident, RecordSource
from agent_pipeline.sources.formats.limits import allowed_for
from agent_pipeline.sources.formats.model_calls import stop_reason, with_reason
from agent_pipeline.sources.formats.offered_tools import (
    ToolSet,
    choose_tool_set,
    make_tool_set,
)
from agent_pipeline.sources.formats.record_files import Archive, RecordLocation, kind_of

_ATTACHMENT = "attachment://"
_CONTEXT = ("input", "target", "metadata", "limit", "total_time", "working_time", "uuid")


class InspectSource(RecordSource):
    """A reader of an Inspect AI log, or of a folder of logs.

    The task is the project, and the model is the agent.
    """

    name = "inspect_ai"
    version = 3
    looks_like = "Inspect logs (.json or .eval) with eval and samples"
    kinds = (*RecordSource.kinds, "zip")

    @classmethod
    def accepts(cls, record: Record) -> bool:
        """Return whether a record is a whole log, or a sample from a zip."""
        log = isinstance(record.get("eval"), dict) and "status" in record and "version" in record
        return log or (
            "epoch" in record and "id" in record and isinstance(record.get("messages"), list)
        )

    def unpack(self, record: Record) -> list[Record]:
        if not isinstance(record.get("eval"), dict):
            return [record]
        header = {name: record.get(name) for name in ("eval", "status", "stats")}
        return [{**section(sample), "log": header} for sample in elements(record.get("samples"))]

    def empty(self, record: Record) -> str:
        return "is an Inspect log without samples: there is nothing in it to read."

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        run = self._run(record, location)
        name = ":".join(
            [
                text(run.get("run_id")) or location.path.stem,
                text(record.get("id")) or "",
                text(record.get("epoch")) or "1",
            ]
        )
        return Ident(None, name, text(run.get("task")), text(run.get("model")))

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        run = self._run(record, location)
        attachments = _Attachments(section(record, "attachments"))
        events = objects(record.get("events") or section(record, "transcript").get("events"))
        times = [
            record.get("started_at"),
            *(event.get("timestamp") for event in events),
            record.get("completed_at"),
        ]
        values = dict(_values(record.get("scores")))
        scores = {name: verdict(value)[0] or 0.0 for name, value in values.items()}
        # Grades and booleans are good or bad. Only the author of a number knows whether a higher
        # value is better.
        grade = mean(
            {name: scores[name] for name, value in values.items() if isinstance(value, str | bool)}
        )
        offered = _offered_tools(record, events, attachments)
        messages = _with_reasons(attachments.restore(record.get("messages")), record, events)
        if isinstance(messages, list):
            messages = [
                message | {"weight": 0} if _id_of(message) in offered.other_ids else message
                for message in messages
            ]
        conversation = {
            "history": messages,
            "tools": offered.tools,
            "skipped": {"changed_tools": len(offered.other_ids)},
        }
        damage = Counter(cut_text=attachments.lost) if attachments.lost else Counter()
        return {
            **chosen(record, ("error",), task_id="id", trial="epoch"),
            **conversation,
            "damage": damage,
            "context": attachments.restore(chosen(record, _CONTEXT), MAX_DEPTH + 1),
            "usage": section(record, "model_usage").values(),
            "score": grade,
            "scores": scores,
            "times": times,
            "created_at": None if any(times) else run.get("created"),
            "model_id": run.get("model"),
            "judgment": verdict(grade)[1],
        }

    def _run(self, record: Record, location: RecordLocation) -> Record:
        if "log" in record:
            return section(record, "log", "eval")
        if kind_of(location.path) != "zip":
            return {}
        lost = f"{location.path} has no header that can be read, so task and model are not known"
        return section(
            self.file_beside(location.path, lost, lambda path: Archive(path).member("header.json")),
            "eval",
        )


@dataclass(frozen=True)
class _OfferedTools:
    """The tools of most answers of a sample.

    Attributes:
        tools: The tool schemas.
        other_ids: The ids of the messages that were written with other tools.
    """

    tools: object
    other_ids: set[str]


def _offered_tools(
    record: Record, events: list[Record], attachments: "_Attachments"
) -> _OfferedTools:
    """Return the tools of the model events whose answers are messages of the sample.

    A sample may also have model events of sub-agents and graders. Older logs do not name the
    answer of an event; the tools of the first event count then.
    """
    calls = [event for event in events if event.get("event") == "model" and event.get("tools")]
    message_ids = {_id_of(message) for message in elements(record.get("messages"))} - {None}
    sets: dict[str, ToolSet] = {}
    tools: dict[ToolSet, object] = {}
    for event in calls:
        for choice in objects(section(event, "output").get("choices"))[:1]:
            name = _id_of(choice.get("message"))
            if name is not None and name in message_ids:
                restored = attachments.restore(event["tools"])
                sets[name] = make_tool_set(restored)
                tools[sets[name]] = restored
    if not sets:
        return _OfferedTools(attachments.restore(calls[0]["tools"]) if calls else None, set())
    kept = choose_tool_set(list(sets.values()))
    return _OfferedTools(tools[kept], {name for name, offered in sets.items() if offered != kept})


def _id_of(message: object) -> str | None:
    """Return the id of a message, or None if the message has no id."""
    return text(section({"message": message}, "message").get("id"))


def _with_reasons(messages: object, record: Record, events: list[Record]) -> object:
    """Return the messages, with stop reasons added to the model's messages.

    The reasons come from the model events and the output.
    """
    outputs = [section(event, "output") for event in events if event.get("event") == "model"] + [
        section(record, "output")
    ]
    choices = [choice for output in outputs for choice in objects(output.get("choices"))]
    reasons = {
        text(section(choice, "message").get("id")): stop_reason(choice) for choice in choices
    }
    reasons.pop(None, None)
    if not isinstance(messages, list):
        return messages
    marked = [
        message | {"stop_reason": reason}
        if isinstance(message, dict) and (reason := reasons.get(text(message.get("id"))))
        else message
        for message in messages
    ]
    last = objects(section(record, "output").get("choices"))[:1]
    spoken = [message for message in objects(messages) if message.get("role") == "assistant"][-1:]
    # Older logs have no ids: the output is the model's last turn.
    is_last = (
        last and spoken and section(last[0], "message").get("content") == spoken[0].get("content")
    )
    return with_reason(marked, stop_reason(last[0])) if is_last else marked


def _values(scores: object) -> Iterator[tuple[str, object]]:
    """Yield each scorer's value of a sample, with the scorer's name.

    If a value is an object, each of its fields is yielded as a separate value.
    """
    for name in section(scores):
        value = section(scores, name).get("value")
        for inner, grade in value.items() if isinstance(value, dict) else [("", value)]:
            if verdict(grade)[0] is not None:
                yield f"{name}/{inner}" if inner else name, grade


class _Attachments:
    """The attachments of a sample, by hash.

    `lost` counts the texts that could not be restored: the attachment is missing, or all texts
    together would be far larger than the sample. A short sample can reference a long text many
    times.
    """

    def __init__(self, texts: Record) -> None:
        self._texts = texts
        self._room = allowed_for(0) // 4
        self.lost = 0

    def restore(self, value: object, depth: int = MAX_DEPTH) -> object:
        """Return a value with the attachments that it references inserted.

        A value that is nested too deeply stays unchanged.
        """
        if isinstance(value, str) and value.startswith(_ATTACHMENT):
            return self._restore_text(value)
        if isinstance(value, dict) and depth:
            return {name: self.restore(inner, depth - 1) for name, inner in value.items()}
        if isinstance(value, list) and depth:
            return [self.restore(inner, depth - 1) for inner in value]
        return value

    def _restore_text(self, link: str) -> str:
        text = self._texts.get(link.removeprefix(_ATTACHMENT))
        if not isinstance(text, str) or len(text) > self._room:
            self.lost += 1
            return link
        self._room -= len(text)
        return text
