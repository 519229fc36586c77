"""What the readers of coding agents share: which lines say something, and which turns were cut off."""

from typing import Any

from agent_pipeline.sessions.chat import text_of
from agent_pipeline.sources.formats.fields import Record, objects

_CONTENT = {
    "args", "arguments", "content", "delta", "error", "input", "message", "messages", "output", "parts",
    "prompt", "question", "questions", "reply", "response", "result", "stderr", "stdout", "summary", "text",
    "tool_calls", "toolCalls", "tool_use_id", "toolUseId", "tool_call_id", "toolCallId", "call_id", "callId",
}  # fmt: skip
"""Fields in which words, calls or results stand, whatever the line's type."""

_ENVELOPE = {
    "_v", "cwd", "entrypoint", "git", "gitBranch", "id", "isSidechain", "parentId", "parentUuid", "parent_uuid",
    "sessionId", "session_id", "slug", "subtype", "timestamp", "type", "userType", "uuid", "version",
}  # fmt: skip
"""Fields that say where and when a line was written."""


def says_something(record: Any) -> bool:
    """Whether a record of unknown meaning shows words, a call or a result.

    It does if a field that usually holds them is not empty, or if any text has a space in it. What
    remains (ids, numbers, paths, flags) is bookkeeping.
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
        elif isinstance(value, str) and " " in value.strip():
            return True
    return False


def _is_filled(value: Any) -> bool:
    return value is not None and value not in ("", [], {}, False, True)


def words_in(content: Any) -> str:
    """The text of a message's content."""
    return text_of(content)[0]


def has_words(message: Record) -> bool:
    """Whether a message says something besides the results of calls."""
    content = message.get("content")
    blocks = objects(content)
    if not isinstance(content, list) or len(blocks) < len(content):
        return bool(words_in(content).strip())
    return any(block.get("type") != "tool_result" for block in blocks)


def cut_last_turn(history: list[Any]) -> None:
    """Mark the assistant's last message as interrupted, unless the user has spoken since.

    Results of calls may follow the message: the user then stopped the agent while a tool ran.
    """
    for message in reversed(history):
        if not isinstance(message, dict):
            continue
        if message.get("role") == "assistant":
            message["finish_reason"] = "interrupted"
            return
        if message.get("role") == "user" and has_words(message):
            return
