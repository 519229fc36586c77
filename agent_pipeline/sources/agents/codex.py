"""Codex CLI rollouts: lines of `{timestamp, type, payload}`, a file a session.

`response_item` payloads are Responses items; `event_msg` lines repeat them and are passed over, but for token counts and errors. Context
that Codex puts before the first words of the user, as user messages, joins the system message.
"""

from collections.abc import Iterator
from itertools import takewhile
from pathlib import PurePath, PureWindowsPath
from typing import Any

from agent_pipeline.sessions.chat import text_of
from agent_pipeline.sources.formats.fields import Record, chosen, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, Said
from agent_pipeline.sources.formats.record_files import Place

_LINES = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
_EVENTS = {"token_count", "error"}
_INJECTED = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "<skills_instructions>",
    "# AGENTS.md instructions",
)
_CONTEXT = ("cwd", "originator", "cli_version", "source", "model_provider", "git")


class CodexSource(FileSource):
    """A rollout, or a folder of them: the working folder's name is the project."""

    name = "codex"
    looks_like = "Codex rollouts: lines of session_meta, turn_context and response_item"

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return record.get("type") in ("session_meta", "response_item", "turn_context") and isinstance(record.get("payload"), dict)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def identify(self, record: Record, place: Place) -> Ident | None:
        kind, inner = record.get("type"), section(record, "payload")
        if kind not in _LINES or kind == "compacted" or (kind == "event_msg" and text(inner.get("type")) not in _EVENTS):
            return None
        meta = inner if kind == "session_meta" else {}
        file = ":".join([*self.folders_of(place.path), place.path.stem])
        return Ident(file, text(meta.get("id")), folder_name(meta.get("cwd")), self.name)

    def build(self, session_id: str, records: list[tuple[Place, Record]]) -> Said:
        lines = [record for _, record in records]
        meta = next((section(line, "payload") for line in lines if line.get("type") == "session_meta"), {})
        events = [section(line, "payload") for line in lines if line.get("type") == "event_msg"]
        used = [section(event, "info", "total_token_usage") for event in events if event.get("type") == "token_count"]
        items = [line.get("payload") for line in lines if line.get("type") == "response_item"]
        last = section(lines[-1], "payload")
        said = {
            "history": [*_with_system(meta, items)],
            "tools": meta.get("dynamic_tools"),
            "context": chosen(meta, _CONTEXT),
            "usage": next(([each] for each in reversed(used) if each), ()),
            "times": [meta.get("timestamp"), *(line.get("timestamp") for line in lines)],
            "models": [section(line, "payload").get("model") for line in lines if line.get("type") == "turn_context"],
            "parent_session_id": section(meta, "source", "subagent", "thread_spawn").get("parent_thread_id"),
            "error": last.get("message") if lines[-1].get("type") == "event_msg" and last.get("type") == "error" else None,
        }
        yield session_id, said


def folder_name(path: Any) -> str | None:
    """The last part of a path as any system writes it."""
    named = text(path)
    return None if named is None else (PureWindowsPath if "\\" in named else PurePath)(named).name or None


def _with_system(meta: Record, items: list[Any]) -> Iterator[Any]:
    """The instructions, and what was put before the user's first words, as one system message; then the items."""
    instructions = section(meta, "base_instructions").get("text") or meta.get("instructions")
    system = [instructions] if isinstance(instructions, str) and instructions.strip() else []
    before = list(takewhile(lambda each: each is not None, map(_injected, items)))
    system += [each for each in before if each]
    if system:
        yield {"type": "message", "role": "system", "content": "\n\n".join(system)}
    yield from items[len(before) :]


def _injected(item: Any) -> str | None:
    """The text of a message that Codex itself put in; `None` for any other item."""
    if not isinstance(item, dict) or item.get("type") != "message" or item.get("role") not in ("user", "developer", "system"):
        return None
    content = text_of(item.get("content"))[0]
    return content if item["role"] != "user" or content.lstrip().startswith(_INJECTED) else None
