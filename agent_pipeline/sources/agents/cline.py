"""Tasks of Cline, Roo Code and Kilo Code.

A task is a file `tasks/<id>/api_conversation_history.json` with Anthropic's messages, or a file
with such messages as JSON lines. If the model writes tool calls as text (`<read_file><path>...`),
the text stays as the model wrote it, and the results stay user messages, as recorded. The messages
before a condensation become a separate session (`ID:before-compaction-1`).
"""

import re
from pathlib import Path

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import says_something, stretches_of, words_in
from agent_pipeline.sources.formats.detection import sampled
from agent_pipeline.sources.formats.fields import Record, parsed, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_FILE = "api_conversation_history.json"
_INTERRUPTED = "[Response interrupted by "
_OWN = {
    "isSummary",
    "condenseId",
    "condenseParent",
    "truncationId",
    "truncationParent",
    "isTruncationMarker",
    "ts",
    "modelInfo",
    "metrics",
}
_EXTENSIONS = {
    **dict.fromkeys(("rooveterinaryinc", "roo-code", "roo-cline"), "roo-code"),
    **dict.fromkeys(("kilocode", "kilo-code"), "kilo-code"),
}
"""Agent names by a word in the folder name of their VS Code extension."""
_WORKSPACE = re.compile(r"# Current (?:Working|Workspace) Directory \(([^)\n]+)\)")


class ClineSource(FileSource):
    """A reader of a Cline, Roo Code or Kilo Code task file, or of a folder of tasks."""

    name = "cline"
    looks_like = (
        f"tasks of Cline, Roo Code or Kilo Code: {_FILE}, or lines with role, content and ts"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return _is_message(record) and isinstance(record.get("ts"), int | float)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("role"), str)

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        kind, records = sampled(path)
        check = _is_message if path.name == _FILE else cls.accepts
        return (
            kind in cls.kinds
            and bool(records)
            and all(isinstance(record, dict) and check(record) for record in records)
        )

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        name = location.path.parent.name if location.path.name == _FILE else location.path.stem
        agent = next(
            (
                agent
                for word, agent in _EXTENSIONS.items()
                if any(word in part.lower() for part in location.path.parts)
            ),
            self.name,
        )
        workspace = _WORKSPACE.search(words_in(record.get("content")))
        return Ident(
            str(location.path), name, folder_name(workspace[1]) if workspace else None, agent
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        messages = [record for _, record in records]
        *before, last = _views(messages)
        session_fields = {
            "history": [*last, *_edited(records[0][0].path)],
            "times": [message.get("ts") for message in messages],
            "models": [section(message, "modelInfo").get("modelId") for message in messages],
        }
        return stretches_of(session_id, [{"history": view} for view in before], session_fields)


def _is_message(record: Record) -> bool:
    return record.get("role") in ("user", "assistant") and isinstance(
        record.get("content"), str | list
    )


def _edited(path: Path) -> list[object]:
    """Return a damage item if Cline later shortened messages that the model had already seen.

    Cline records such changes in a file next to the task's file.
    """
    changes_path = path.with_name("context_history.json")
    try:
        changes = (
            parsed(changes_path.read_bytes())
            if path.name == _FILE and changes_path.is_file()
            else None
        )
    except (OSError, ValueError):
        changes = ["unreadable"]
    return [mark_unread("messages that were shortened later")] if changes else []


def _views(messages: list[Record]) -> list[list[object]]:
    """Return the messages that the model saw before each condensation or cut, and at the end."""
    views: list[list[object]] = []
    seen: list[Record] = []
    inherited = 0
    for message in messages:
        if message.get("isSummary") is True or message.get("isTruncationMarker") is True:
            if any(earlier.get("role") == "assistant" for earlier in seen[inherited:]):
                views.append(_shown(seen, inherited))
            hidden = {text(message.get("condenseId")), text(message.get("truncationId"))} - {None}
            seen = [
                earlier
                for earlier in seen
                if not hidden
                & {text(earlier.get("condenseParent")), text(earlier.get("truncationParent"))}
            ]
            seen.append(message)
            inherited = len(seen)
        else:
            seen.append(message)
    return [*views, _shown(seen, inherited)]


def _shown(messages: list[Record], inherited: int) -> list[object]:
    """Return Cline's messages as chat messages.

    An earlier session contains the first `inherited` messages. These messages are not trained
    again.
    """
    shown: list[object] = []
    for message_index, message in enumerate(messages):
        chat_message = {name: value for name, value in message.items() if name not in _OWN}
        if chat_message.get("role") == "assistant":
            chat_message |= {"weight": 0} if message_index < inherited else {}
            chat_message |= (
                {"finish_reason": "interrupted"}
                if _INTERRUPTED in words_in(chat_message.get("content"))
                else {}
            )
        shown.append(chat_message)
    return shown
