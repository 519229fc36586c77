"""Conversations of OpenHands as its agent SDK stores them, or lines of events.

A conversation is a folder of `base_state.json` and `events/event-<number>-<id>.json`. Events form a
tree by `parent_id`; the branch that ends in the state's `leaf_event_id` is read. The actions of one
response (`llm_response_id`) are one message. A condenser removes events from the model's view, so
the events before a condensation become a separate session (`ID:before-compaction-1`). A run may end
with a call of the tool `finish`.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import says_something, stretches_of
from agent_pipeline.sources.formats.fields import Record, elements, first_of, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_RESULTS = ("observation", "error", "rejection_reason")
_BOOKKEEPING = {
    "CondensationRequest", "ConversationErrorEvent", "ConversationStateUpdateEvent",
    "InterruptEvent", "LLMCompletionLogEvent", "PauseEvent", "StreamingDeltaEvent", "TokenEvent",
}  # fmt: skip
"""Kinds of events that the model never sees. A streamed delta is part of a later event."""
_NUMBER = re.compile(r"event-(\d+)-")


class OpenHandsSource(FileSource):
    """A reader of an OpenHands conversation, a folder of conversations, or a file of events.

    The workspace's name is the project.
    """

    name = "openhands"
    looks_like = (
        "OpenHands conversations: events with kind, source and timestamp, next to base_state.json"
    )
    version = 2

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return (
            str(record.get("kind")).endswith(("Event", "Observation"))
            and {"id", "source", "timestamp"} <= record.keys()
        ) or ("persistence_dir" in record and "execution_status" in record)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return cls.accepts(record) or {"kind", "id"} <= record.keys()

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def group_of(self, path: Path) -> str | None:
        return str(path.parent.parent) if path.parent.name == "events" else str(path.parent)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        folder = (
            location.path.parent.parent
            if location.path.parent.name == "events"
            else location.path.parent
        )
        whole = "kind" not in record or location.path.parent.name == "events"
        name = str(folder) if whole else str(location.path)
        workspace = folder_name(section(record, "workspace").get("working_dir"))
        return Ident(name, folder.name if whole else location.path.stem, workspace, self.name)

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        state = next((record for _, record in records if "kind" not in record), {})
        events = [record for _, record in records if "kind" in record]
        branch, missing = _branch(events, state.get("leaf_event_id"))
        if not state.get("leaf_event_id"):
            missing += _gaps([location.path for location, record in records if "kind" in record])
        stats = [event.get("value") for event in events if event.get("key") == "stats"]
        metrics = section(
            first_of(
                {"a": section(state).get("stats"), "b": stats[-1] if stats else None}, "a", "b"
            ),
            "usage_to_metrics",
        )
        failed = next(
            (
                event
                for event in reversed(branch)
                if event.get("kind") != "ConversationStateUpdateEvent"
            ),
            {},
        )
        model = section(state, "agent", "llm").get("model")
        *before, (last, copied) = _views(branch)
        earlier: list[Record] = [
            {
                "history": _messages(view, copies),
                "times": [event.get("timestamp") for event in view],
                "model_id": model,
            }
            for view, copies in before
        ]
        history = _messages(last, copied) + [mark_unread("missing event")] * missing
        history += [
            mark_unread(f"event {text(event.get('kind'))}")
            for event in branch
            if _is_unknown(event)
        ]
        counted = Counter(
            f"event:{text(event.get('kind'))}"
            for event in branch
            if not _is_shown(event) and not _is_unknown(event)
        )
        session_fields = {
            "history": history,
            "skipped": Counter(
                {
                    name: count
                    for name, count in counted.items()
                    if name.removeprefix("event:") not in _BOOKKEEPING
                }
            )
            + Counter(other_branch=len(events) - len(branch)),
            "context": {"execution_status": state.get("execution_status")},
            "usage": [section(metrics, name, "accumulated_token_usage") for name in metrics],
            "costs": [section(metrics, name).get("accumulated_cost") for name in metrics],
            "times": [event.get("timestamp") for event in events],
            "model_id": model,
            "ends_on_tool": any(event.get("tool_name") == "finish" for event in branch[-2:]),
            "error": (text(failed.get("detail")) or "the run failed")
            if failed.get("kind") == "ConversationErrorEvent"
            else None,
        }
        return stretches_of(session_id, earlier, session_fields)


def _branch(events: list[Record], leaf: object) -> tuple[list[Record], int]:
    """Return the events from the root to a leaf event, and the number of missing parent events.

    If the events do not form a tree, all events are returned.
    """
    by_id = {text(event.get("id")): event for event in events}
    way: set[str] = set()
    here = text(leaf)
    while here is not None and here in by_id and here not in way:
        way.add(here)
        here = text(by_id[here].get("parent_id"))
    if not way:
        parents = {text(event.get("parent_id")) for event in events} - {None}
        return events, len(parents - by_id.keys()) + (text(leaf) is not None)
    return [event for event in events if text(event.get("id")) in way], int(
        here is not None and here not in way
    )


def _gaps(paths: list[Path]) -> int:
    """Count the event files that are missing, by the numbers in the file names."""
    numbers = {
        int(match_[1])
        for path in paths
        if (match_ := _NUMBER.match(path.name)) and len(match_[1]) < 12
    }
    return max(numbers) + 1 - len(numbers) if numbers else 0


def _is_shown(event: Record) -> bool:
    """Return whether the model sees an event as a step of the conversation."""
    kind = event.get("kind")
    is_result = "tool_call_id" in event and first_of(event, *_RESULTS) is not None
    return (
        kind
        in (
            "SystemPromptEvent",
            "MessageEvent",
            "ActionEvent",
            "CondensationSummaryEvent",
            "Condensation",
        )
        or is_result
    )


def _is_answer(event: Record) -> bool:
    return event.get("source") == "agent" and event.get("kind") in ("ActionEvent", "MessageEvent")


def _is_unknown(event: Record) -> bool:
    return (
        not _is_shown(event)
        and text(event.get("kind")) not in _BOOKKEEPING
        and says_something(event)
    )


def _views(events: list[Record]) -> list[tuple[list[Record], set[str | None]]]:
    """Return the events that the model saw before each condensation and at the end.

    Returns:
        One pair per view: its events, and the ids of events that an earlier view contains.
    """
    views: list[tuple[list[Record], set[str | None]]] = []
    view: list[Record] = []
    copied: set[str | None] = set()
    for event in filter(_is_shown, events):
        if event.get("kind") != "Condensation":
            view.append(event)
            continue
        if any(_is_answer(earlier) and text(earlier.get("id")) not in copied for earlier in view):
            views.append((view, copied))
        forgotten = {text(name) for name in elements(event.get("forgotten_event_ids"))}
        view = [earlier for earlier in view if text(earlier.get("id")) not in forgotten]
        copied = {text(earlier.get("id")) for earlier in view} - {None}
        summary, offset = event.get("summary"), event.get("summary_offset")
        if isinstance(summary, str) and isinstance(offset, int):
            view.insert(offset, {"kind": "CondensationSummaryEvent", "summary": summary})
    return [*views, (view, copied)]


def _messages(events: list[Record], copied: set[str | None]) -> list[Any]:
    """Return the chat messages that a list of events contains.

    Messages that an earlier view contains are not trained again.
    """
    messages: list[Any] = []
    responses: dict[str, Record] = {}
    for event in events:
        kind, message = event.get("kind"), section(event, "llm_message")
        if kind == "SystemPromptEvent":
            parts = [event.get("system_prompt"), event.get("dynamic_context")]
            messages.append({"role": "system", "content": [part for part in parts if part]})
        elif kind == "CondensationSummaryEvent":
            messages.append({"role": "user", "content": event.get("summary")})
        elif kind == "MessageEvent":
            messages.append(
                message
                | {
                    "content": [
                        *elements(message.get("content")),
                        *elements(event.get("extended_content")),
                    ]
                }
            )
        elif kind == "ActionEvent":
            response = text(event.get("llm_response_id"))
            if response is not None and response in responses:  # another call of the same response
                responses[response]["content"] += elements(event.get("thought"))
                responses[response]["tool_calls"].append(event.get("tool_call"))
                continue
            messages.append(
                {
                    "role": "assistant",
                    "content": _thought(event),
                    "tool_calls": [event.get("tool_call")],
                }
            )
            messages[-1]["reasoning"] = event.get("reasoning_content")
            if response is not None:
                responses[response] = messages[-1]
        else:
            messages.append(_result(event))
        if text(event.get("id")) in copied and messages[-1].get("role") == "assistant":
            messages[-1]["weight"] = 0
    return messages


def _thought(event: Record) -> list[object]:
    thought = event.get("thought")
    return list(thought) if isinstance(thought, list) else [] if thought is None else [thought]


def _result(event: Record) -> Record:
    result = first_of(event, *_RESULTS)
    content, failed = (
        (result.get("content"), result.get("is_error"))
        if isinstance(result, dict)
        else (result, True)
    )
    return {
        "role": "tool",
        "tool_call_id": event["tool_call_id"],
        "content": content,
        "is_error": failed,
    }
