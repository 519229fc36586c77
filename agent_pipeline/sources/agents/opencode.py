"""Sessions of opencode: the output of `opencode export`, or the folder of its storage.

Versions that store files use the folder `~/.local/share/opencode/storage`. Messages consist of
parts; a tool call and its result are one part. Messages after the point to which the user reverted
are left out. A summary replaces the messages before it, and those messages become a separate
session (`ID:before-compaction-1`).
"""

from dataclasses import dataclass
from pathlib import Path

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.codex import folder_name
from agent_pipeline.sources.agents.lines import stretches_of
from agent_pipeline.sources.formats.fields import Record, chosen, elements, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_COMPLETE = ("stop", "tool-calls", "unknown", None)
_ASKED = "What did we do so far?"
"""The text of the user message that opencode inserts before a summary."""


class OpenCodeSource(FileSource):
    """A reader of an exported opencode session, or of a folder of opencode's storage.

    The working folder's name is the project.
    """

    name = "opencode"
    looks_like = "opencode sessions: an export with info and messages, or the folder storage"
    merges = True

    @classmethod
    def accepts(cls, record: Record) -> bool:
        if isinstance(record.get("messages"), list):
            return "id" in section(record, "info") and any(
                "parts" in message and "info" in message for message in objects(record["messages"])
            )
        return _kind_of(record) in ("session", "message", "part")

    @classmethod
    def reads(cls, record: Record) -> bool:
        return cls.accepts(record) or "messages" in record

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        session = _session_of(record)
        info = (
            record.get("info")
            if "messages" in record
            else record
            if _kind_of(record) == "session"
            else {}
        )
        return (
            Ident(session, session, folder_name(section(info).get("directory")), self.name)
            if session
            else None
        )

    def group_of(self, path: Path) -> str | None:
        if path.parent.name.startswith("ses_"):
            return path.parent.name
        if path.parent.name.startswith("msg_") and path.parent.parent.name == "part":
            message_folder = path.parent.parent.parent / "message"
            return next(
                (
                    message_file.parent.name
                    for message_file in message_folder.glob(f"*/{path.parent.name}.json")
                ),
                None,
            )
        return path.stem if path.stem.startswith("ses_") else None

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        gathered = _gather([record for _, record in records])
        info = gathered.info
        kept, taken_back = _not_reverted(gathered.messages, section(info, "revert"))
        *before, last = _views(kept)
        infos = [section(message, "info") for message in kept]
        usage = [section(message_info, "tokens") for message_info in infos]
        models = [
            message_info.get("modelID") or section(message_info, "model").get("modelID")
            for message_info in infos
        ]
        session_fields = {
            "history": [*last, *[mark_unread("part without its message")] * gathered.orphan_count],
            "skipped": {"taken_back": taken_back},
            "context": chosen(info, ("directory", "title", "version")),
            "usage": usage,
            "costs": [message_info.get("cost") for message_info in infos],
            "times": [section(info, "time").get("created"), section(info, "time").get("updated")],
            "models": models,
            "parent_session_id": info.get("parentID"),
        }
        return stretches_of(
            session_id, [{"history": view, "models": models} for view in before], session_fields
        )


def _kind_of(record: Record) -> str | None:
    """Return the kind of record that a storage file holds: a session, a message or a part."""
    if text(record.get("messageID")) and text(record.get("sessionID")):
        return "part"
    if text(record.get("sessionID")) and record.get("role") in ("user", "assistant"):
        return "message"
    return "session" if {"id", "directory", "time", "projectID"} <= record.keys() else None


def _session_of(record: Record) -> str | None:
    if "messages" in record:
        return text(section(record, "info").get("id"))
    return text(record.get("sessionID")) or (
        text(record.get("id")) if _kind_of(record) == "session" else None
    )


@dataclass(frozen=True)
class _Gathered:
    """The storage records of one session.

    Attributes:
        info: The head of the session.
        messages: The messages in order. Each message contains its parts in order.
        orphan_count: The number of parts without a message.
    """

    info: Record
    messages: list[Record]
    orphan_count: int


def _gather(records: list[Record]) -> _Gathered:
    """Return the session record and the messages of a session from its storage records."""
    info: Record = {}
    messages: dict[str | None, Record] = {}
    parts: list[Record] = []
    for record in records:
        if "messages" in record:
            info = info or section(record, "info")
            for message in elements(record["messages"]):
                messages[text(section(message, "info").get("id")) or str(len(messages))] = section(
                    message
                )
        elif (kind := _kind_of(record)) == "part":
            parts.append(record)
        elif kind == "message":
            messages[text(record.get("id"))] = {"info": record, "parts": []}
        else:
            info = record
    orphan_count = 0
    for part in sorted(parts, key=lambda part: text(part.get("id")) or ""):
        if (message := messages.get(text(part.get("messageID")))) is None:
            orphan_count += 1
        elif all(
            section(element).get("id") != part.get("id")
            for element in elements(message.get("parts"))
        ):
            message["parts"] = [*elements(message.get("parts")), part]
    return _Gathered(info, sorted(messages.values(), key=_order), orphan_count)


def _order(message: Record) -> tuple[float, str]:
    created = section(message, "info", "time").get("created")
    return (float(created) if isinstance(created, int | float) else 0.0), text(
        section(message, "info").get("id")
    ) or ""


def _not_reverted(messages: list[Record], revert: Record) -> tuple[list[Record], int]:
    """Return the messages that the user did not revert, and the number of reverted messages."""
    revert_index = next(
        (
            message_index
            for message_index, message in enumerate(messages)
            if section(message, "info").get("id") == revert.get("messageID")
        ),
        None,
    )
    if not revert or revert_index is None:
        return messages, 0
    kept = messages[:revert_index]
    if revert.get("partID"):  # only the end of this message was taken back
        before = [
            part
            for part in objects(messages[revert_index].get("parts"))
            if (text(part.get("id")) or "") < str(revert["partID"])
        ]
        kept = [*kept, messages[revert_index] | {"parts": before}]
    return kept, len(messages) - len(kept)


def _views(messages: list[Record]) -> list[list[object]]:
    """Return the messages that the model saw before each summary, and at the end."""
    views: list[list[object]] = []
    view: list[object] = []
    request: Record | None = None
    for message in messages:
        info, parts = section(message, "info"), objects(message.get("parts"))
        if any(part.get("type") == "compaction" for part in parts):
            request = message
            continue
        new_messages = _message(info, message.get("parts"))
        if info.get("summary") is True and info.get("role") == "assistant":
            if any(
                entry.get("role") == "assistant" and entry.get("weight") != 0
                for entry in view
                if isinstance(entry, dict)
            ):
                views.append(view)
            kept = request is not None and any(
                text(part.get("tail_start_id")) for part in objects(request.get("parts"))
            )
            view = [
                {"role": "user", "content": _ASKED},
                *([mark_unread("compaction")] if kept else []),
            ]
            new_messages = [
                entry | {"weight": 0} if isinstance(entry, dict) else entry
                for entry in new_messages
            ]
            request = None
        view += new_messages
    return [*views, view]


def _message(info: Record, parts: object) -> list[object]:
    """Return the chat messages that an opencode message contains.

    Parts that the model does not see are left out.
    """
    role = info.get("role")
    shown = [part for part in elements(parts) if not _is_hidden(part)]
    messages: list[object] = (
        [{"role": "system", "content": info["system"]}] if info.get("system") else []
    )
    error = section(info, "error")
    spoken_parts = [
        part for part in shown if section(part).get("type") not in ("step-start", "step-finish")
    ]
    if not spoken_parts:
        is_lost = not error and not elements(parts)
        return [
            *messages,
            *([mark_unread("message without parts")] if is_lost else []),
        ]  # otherwise the request failed
    message: Record = {"role": role, "content": shown}
    reasons = [
        info.get("finish"),
        *(
            section(part).get("reason")
            for part in shown
            if section(part).get("type") == "step-finish"
        ),
    ]
    last = next((reason for reason in reversed(reasons) if reason is not None), None)
    if role == "assistant" and (error or last not in _COMPLETE):
        message["finish_reason"] = text(error.get("name")) or str(last)
    messages.append(message)
    if any(section(part, "state", "time").get("compacted") is not None for part in shown):
        messages.append(mark_unread("result that was cleared later"))
    return messages


def _is_hidden(part: object) -> bool:
    """Return whether a message part is hidden from the model.

    Hidden parts are texts for the screen, and text files, whose content is a separate part.
    """
    if not isinstance(part, dict):
        return False
    is_text_file = part.get("type") == "file" and part.get("mime") in (
        "text/plain",
        "application/x-directory",
    )
    return part.get("ignored") is True or is_text_file
