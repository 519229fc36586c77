"""Helpers that the readers of coding agents share.

The helpers decide which lines have content, and mark turns that were cut off.
"""

from operator import itemgetter

from agent_pipeline.sessions.chat import read_text
from agent_pipeline.sources.formats.fields import Record, objects, text

_CONTENT = {
    "args", "arguments", "body", "command", "content", "delta", "error", "input", "message",
    "messages", "msg", "output", "parts", "prompt", "query", "question", "questions", "reply",
    "response", "result", "speech", "stderr", "stdout", "summary", "text", "transcript",
    "utterance", "words", "tool_calls", "toolCalls", "tool_use_id", "toolUseId", "tool_call_id",
    "toolCallId", "call_id", "callId",
}  # fmt: skip
"""Names of fields that hold text, tool calls or tool results in lines of any type."""

_ENVELOPE = {
    "_v", "cwd", "entrypoint", "git", "gitBranch", "id", "isSidechain", "parentId", "parentUuid",
    "parent_uuid", "sessionId", "session_id", "slug", "subtype", "timestamp", "type", "userType",
    "uuid", "version",
}  # fmt: skip
"""Names of fields that record where and when a line was written."""


def says_something(record: object) -> bool:
    """Return whether a record of unknown type contains text, a tool call or a tool result.

    The record contains such content if a field that usually holds it is not empty. The record also
    contains such content if any text has a space or a non-ASCII character (many languages write no
    spaces). Everything else (ids, numbers, paths, flags) is bookkeeping.
    """
    values = [record]
    while values:
        value = values.pop()
        if isinstance(value, dict):
            named = [(name, inner) for name, inner in value.items() if name not in _ENVELOPE]
            if any(name in _CONTENT and _is_filled(inner) for name, inner in named):
                return True
            values += [inner for _, inner in named]
        elif isinstance(value, list):
            values += value
        elif isinstance(value, str) and (len(value.split()) > 1 or not value.isascii()):
            return True
    return False


def _is_filled(value: object) -> bool:
    return value is not None and value not in ("", [], {}, False, True)


def words_in(content: object) -> str:
    """Return the text content of a message."""
    return read_text(content)[0]


def has_words(message: Record) -> bool:
    """Return whether a message has content other than tool results."""
    content = message.get("content")
    blocks = objects(content)
    if not isinstance(content, list) or len(blocks) < len(content):
        return bool(words_in(content).strip())
    return any(
        block.get("type") != "tool_result" and "functionResponse" not in block for block in blocks
    )


def cut_last_turn(history: list[object]) -> None:
    """Mark the assistant's last message as interrupted, unless the user has written since.

    Tool results may follow the message if the user stopped the agent while a tool ran.
    """
    for message in reversed(history):
        if not isinstance(message, dict):
            continue
        if message.get("role") == "assistant":
            message["finish_reason"] = "interrupted"
            return
        if message.get("role") == "user" and has_words(message):
            return


def branch(
    entries: list[Record], name: str = "id", parent: str = "parentId"
) -> tuple[list[Record], int]:
    """Return the log entries from the root to the last entry, and the number of missing parents.

    Entries without ids do not form a tree, but follow one another. If a parent is missing, the
    previous entry is used instead.
    """
    index_by_id = {
        entry_id: index
        for index, entry in enumerate(entries)
        if (entry_id := text(entry.get(name)))
    }
    way: set[int] = set()
    missing, here = 0, len(entries) - 1
    while here >= 0 and here not in way:
        way.add(here)
        above = text(entries[here].get(parent))
        if above is None and parent in entries[here] and text(entries[here].get(name)) is not None:
            break
        missing += above is not None and above not in index_by_id
        here = index_by_id.get(above, here - 1) if above else here - 1
    return [entries[index] for index in sorted(way)], missing


def stretches_of(session_id: str, earlier: list[Record], last: Record) -> list[tuple[str, Record]]:
    """Return a session and its earlier stretches before each compaction, ordered by id.

    Args:
        session_id: Id of the session; the last stretch keeps it.
        earlier: The arguments of `new_session` for each earlier stretch.
        last: The arguments of `new_session` for the last stretch.
    """
    parent = {"parent_session_id": session_id, "ends_on_tool": True}
    named = [
        (f"{session_id}:before-compaction-{stretch_number}", session_fields | parent)
        for stretch_number, session_fields in enumerate(earlier, 1)
    ]
    return [(session_id, last), *sorted(named, key=itemgetter(0))]
