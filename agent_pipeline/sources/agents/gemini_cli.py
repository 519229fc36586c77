"""Sessions of Gemini CLI: `~/.gemini/tmp/<project>/chats/session-*`.

A session is a file of JSON lines (head, messages, changes), or one JSON document in older versions.
A message with a known id replaces the earlier message, `$set` replaces all messages, and
`$rewindTo` removes a message and all messages after it. The CLI's description of the folder before
the user's first message is the system message. The CLI's own system prompt and tools are not
recorded. A note that the user cancelled a request, or that the request failed, marks the previous
message as cut off. A note that the context was compressed counts as damage, because the summary is
not recorded.
"""

from collections import Counter
from collections.abc import Iterator

from agent_pipeline.sessions.chat import read_text
from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sources.agents.lines import cut_last_turn, says_something
from agent_pipeline.sources.formats.fields import Record, elements, objects, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_CHANGES = {"$set", "$rewindTo"}
_ROLES = ("user", "gemini")
_NOTES = ("info", "warning", "error")
"""Types of messages that only the screen shows."""
_CONTEXT = "<session_context>"


class GeminiCLISource(FileSource):
    """A reader of a Gemini CLI session file, or of a folder of sessions."""

    name = "gemini_cli"
    version = 3
    looks_like = (
        "Gemini CLI sessions: a first line with sessionId and projectHash, then messages of type "
        "user and gemini"
    )

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return "sessionId" in record and "projectHash" in record

    @classmethod
    def reads(cls, record: Record) -> bool:
        return (
            cls.accepts(record)
            or bool(_CHANGES & record.keys())
            or ("id" in record and isinstance(record.get("type"), str))
        )

    def loses(self, record: Record) -> bool:
        return says_something(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        if location.path.suffix == ".json" and location.path.with_suffix(".jsonl").exists():
            return (
                None  # Gemini CLI copied this file of an older version when the session was resumed
            )
        folders = location.path.resolve().parts
        project = folders[folders.index("chats") - 1] if "chats" in folders[1:-1] else None
        return Ident(
            str(location.path), text(record.get("sessionId")), project, self.name.replace("_", "-")
        )

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        changes = [section(record, "$set") | record for _, record in records]
        messages, taken_back = _messages(changes)
        skipped = Counter(
            f"line:{text(message.get('type')) or 'unknown'}"
            for message in messages
            if message.get("type") not in _ROLES
        )
        is_helper = any(change.get("kind") == "subagent" for change in changes)
        recorded = [
            entry for change in changes for entry in (change, *objects(change.get("messages")))
        ]
        failed = messages[-1] if messages and messages[-1].get("type") == "error" else {}
        session_fields = {
            "history": _spoken(messages),
            "skipped": skipped | {"taken_back": taken_back},
            "usage": {
                text(entry.get("id")): entry["tokens"] for entry in recorded if entry.get("tokens")
            }.values(),
            "times": [
                entry.get(name) for name in ("startTime", "lastUpdated") for entry in changes
            ],
            "models": [entry.get("model") for entry in recorded],
            "parent_session_id": records[0][0].path.parent.name if is_helper else None,
            "error": (read_text(failed.get("content"))[0] or "the API gave an error")
            if failed
            else None,
        }
        yield session_id, session_fields


def _messages(changes: list[Record]) -> tuple[list[Record], int]:
    """Apply changes in order.

    Return the final messages, and the number of messages that were withdrawn.
    """
    messages: dict[str, Record] = {}
    taken_back = 0
    for change_number, change in enumerate(changes):
        if "$rewindTo" in change:
            names = list(messages)
            kept = names[: names.index(change["$rewindTo"])] if change["$rewindTo"] in names else []
            taken_back += len(names) - len(kept)
            messages = {name: messages[name] for name in kept}
        elif "messages" in change:
            messages = {
                f"{change_number}:{position}": section(message) or {"type": "user"}
                for position, message in enumerate(elements(change["messages"]))
            }
            messages = {
                text(message.get("id")) or name: message for name, message in messages.items()
            }
        elif "type" in change:
            messages[text(change.get("id")) or str(change_number)] = change
    return list(messages.values()), taken_back


def _spoken(messages: list[Record]) -> list[object]:
    """Return the chat messages, and damage items for content that cannot be read."""
    history: list[object] = []
    answered_ids: set[object] = set()
    for message in messages:
        kind, words = message.get("type"), read_text(message.get("content"))[0].lower()
        if kind in _NOTES:
            if "cancelled" in words or kind == "error":
                cut_last_turn(history)
            elif "compress" in words:
                history.append(mark_unread("compressed context"))
        elif kind in _ROLES:
            history += _turn(message, answered_ids)
        elif says_something(message):
            history.append(mark_unread(f"line {text(kind) or 'none'}"))
    return history


def _turn(message: Record, answered_ids: set[object]) -> Iterator[object]:
    """Yield the chat messages that a recorded message contains.

    Each tool result is yielded only once.

    A tool result is stored with its call and in a user message; after a resumption, in two user
    messages. `answered_ids` holds the ids of the calls whose results were yielded before.
    """
    content = message.get("content")
    if message.get("type") == "gemini":
        thoughts = [thought.get("description") for thought in objects(message.get("thoughts"))]
        yield {
            "role": "assistant",
            "content": content,
            "reasoning": thoughts,
            "tool_calls": message.get("toolCalls"),
        }
        content = [
            block
            for call in objects(message.get("toolCalls"))
            for block in elements(call.get("result"))
        ]
    if isinstance(content, list):
        new = [
            block
            for block in content
            if _answered(block) is None or _answered(block) not in answered_ids
        ]
        answered_ids.update(map(_answered, new))
        if content and not new:
            return
        content = new
    if content or message.get("type") == "user":
        yield {
            "role": "system" if read_text(content)[0].startswith(_CONTEXT) else "user",
            "content": content,
        }


def _answered(block: object) -> str | None:
    """Return the id of the tool call whose result a block contains."""
    return text(section(block, "functionResponse").get("id"))
