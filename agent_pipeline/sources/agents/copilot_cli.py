"""Sessions of GitHub's Copilot CLI: `~/.copilot/session-state/<id>/events.jsonl`.

An event is a JSON line. The user's message is the text that the model saw (`transformedContent`).
The work of sub-agents is counted but not read, because their requests are not recorded as messages.
After a compaction or a truncation, it is unknown which messages the model saw. The rest is
therefore damaged (`unread`), and the messages before that point become a separate session.
"""

from collections import Counter
from mimetypes import guess_type

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import branch, cut_last_turn, says_something, stretches_of
from agent_pipeline.sources.formats.fields import Record, chosen, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_BOOKKEEPING = {
    "assistant.intent", "assistant.message_delta", "assistant.reasoning",
    "assistant.reasoning_delta", "assistant.turn_end", "assistant.turn_start", "assistant.usage",
    "hook.start", "pending_messages.modified", "permission.completed", "permission.requested",
    "session.compaction_start", "session.context_changed", "session.error", "session.idle",
    "session.info", "session.mode_changed", "session.model_change", "session.resume",
    "session.shutdown", "session.start", "session.task_complete", "session.title_changed",
    "session.usage_info", "session.warning", "session.workspace_file_changed", "subagent.completed",
    "subagent.deselected", "subagent.failed", "subagent.selected", "subagent.started",
    "tool.execution_partial_result", "tool.execution_progress", "tool.execution_start",
}  # fmt: skip
"""Types of events that the model never sees, or that repeat other events."""


_READ = {
    *(
        "abort",
        "assistant.message",
        "session.compaction_complete",
        "session.truncation",
        "system.message",
    ),
    *("tool.execution_complete", "user.message"),
}


class CopilotCLISource(FileSource):
    """A reader of the events of a Copilot CLI session, or of a folder of sessions.

    The working folder's name is the project.
    """

    name = "copilot_cli"
    version = 2
    looks_like = "events of Copilot CLI: session.start, user.message, assistant.message with data"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        kind = record.get("type")
        known = ("session.start", "user.message", "assistant.message", "tool.execution_complete")
        return kind in known and isinstance(record.get("data"), dict)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        data = section(record, "data") if record.get("type") == "session.start" else {}
        return Ident(
            str(location.path),
            text(data.get("sessionId")),
            folder_name(section(data, "context").get("cwd")),
            "copilot-cli",
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        events = [record for _, record in records]
        way, missing = branch(events)
        head = next(
            (section(event, "data") for event in events if event.get("type") == "session.start"), {}
        )
        helpers = [event for event in way if text(section(event, "data").get("parentToolCallId"))]
        main_events = [
            event for event in way if not text(section(event, "data").get("parentToolCallId"))
        ]
        *before, last = _views(main_events)
        data = [section(event, "data") for event in main_events]
        failed = (
            main_events[-1]
            if main_events and main_events[-1].get("type") == "session.error"
            else {}
        )
        models = [
            head.get("selectedModel"),
            *(event_data.get("newModel") or event_data.get("model") for event_data in data),
        ]
        session_fields = {
            "history": [*last, *[mark_unread("missing line")] * missing, *_unknown(events)],
            "skipped": Counter(other_branch=len(events) - len(way))
            + Counter({"line:subagent": len(helpers)}),
            "context": chosen(section(head, "context"), ("cwd", "repository", "branch")),
            "times": [event.get("timestamp") for event in main_events],
            "models": models,
            "error": section(failed, "data").get("message"),
        }
        return stretches_of(
            session_id, [{"history": view, "models": models} for view in before], session_fields
        )


def _views(events: list[Record]) -> list[list[object]]:
    views: list[list[object]] = []
    view: list[object] = []
    for event in events:
        kind, data = text(event.get("type")) or "none", section(event, "data")
        is_compacted = kind == "session.compaction_complete" and data.get("success") is not False
        if is_compacted or (
            kind == "session.truncation" and data.get("messagesRemovedDuringTruncation") != 0
        ):
            if any(
                isinstance(earlier, dict) and earlier.get("role") == "assistant" for earlier in view
            ):
                views.append(view)
            view = [mark_unread(kind)]
        elif kind == "abort":
            cut_last_turn(view)
        elif (message := _message(kind, data)) is not None:
            view.append(message)
    return [*views, view]


def _message(kind: str, data: Record) -> object:
    if kind == "user.message":
        content, transformed = data.get("content"), data.get("transformedContent")
        words = transformed if isinstance(transformed, str) and transformed else content
        pictures = [
            {"type": "image"} for part in objects(data.get("attachments")) if _is_picture(part)
        ]
        return {"role": "user", "content": [words or "", *pictures] if pictures else words}
    if kind == "system.message":
        return {"role": "system", "content": data.get("content")}
    if kind == "assistant.message":
        calls = [
            {
                "id": request.get("toolCallId"),
                "function": {"name": request.get("name"), "arguments": request.get("arguments")},
            }
            for request in objects(data.get("toolRequests"))
        ]
        return {
            "role": "assistant",
            "content": data.get("content"),
            "reasoning": data.get("reasoningText"),
            "tool_calls": calls,
        }
    if kind == "tool.execution_complete" and data.get("isUserRequested") is not True:
        result = data.get("result")
        content = result.get("content") if isinstance(result, dict) else result
        pictures = [
            part
            for part in objects(section(data, "result").get("contents"))
            if part.get("type") in ("image", "audio", "resource")
        ]
        content = [content, *pictures] if pictures and isinstance(content, str) else content
        if data.get("success") is False:
            content = section(data, "error").get("message") or content
        return {
            "role": "tool",
            "tool_call_id": data.get("toolCallId"),
            "content": content,
            "is_error": data.get("success") is False,
        }
    return None


def _is_picture(attachment: Record) -> bool:
    """Return whether the user attached a picture.

    The model sees only the paths of other files.
    """
    name = text(attachment.get("path")) or text(attachment.get("displayName")) or ""
    is_image = str(attachment.get("mimeType")).startswith("image/") or attachment.get("type") in (
        "image",
        "blob",
    )
    return is_image or (guess_type(name)[0] or "").startswith("image/")


def _unknown(events: list[Record]) -> list[object]:
    """Return a damage item for each event that has content but an unknown type."""
    unread_items: list[object] = []
    for event in events:
        kind, data = text(event.get("type")) or "none", section(event, "data")
        content = data.get("output") if kind == "hook.end" else event
        if kind not in _BOOKKEEPING and kind not in _READ and says_something(content):
            unread_items.append(mark_unread(f"event {kind}"))
        elif kind == "tool.execution_complete" and data.get("isUserRequested") is True:
            unread_items.append(mark_unread("call of the user"))
    return unread_items
