"""Codex CLI rollouts: lines of `{timestamp, type, payload}`, one file per session.

`response_item` payloads are Responses items; most `event_msg` lines repeat them. Context that Codex
puts before the user's first message joins the system message. `codex_lines.py` rebuilds the history
as Codex does. Turns that the user took back are left out. The items before a compaction become a
separate session (`ID:before-compaction-1`), because the model then saw a summary instead. Turns
that a fork or a sub-agent copied from its parent stay as context and are not trained again.
"""

from collections import Counter
from pathlib import PurePath, PureWindowsPath

from msgspec.structs import replace

from agent_pipeline.sessions.chat import read_items
from agent_pipeline.sessions.items import Item, mark_unread
from agent_pipeline.sources.agents.codex_lines import (
    Stretch,
    Thread,
    copied_from,
    is_copy_of,
    missing_lines,
    parent_of,
    response_items,
    says_nothing,
    system_texts,
    usages,
)
from agent_pipeline.sources.agents.lines import stretches_of
from agent_pipeline.sources.base import add_note
from agent_pipeline.sources.formats.fields import Record, chosen, section, text
from agent_pipeline.sources.formats.file_source import FileSource, Ident, SessionFields
from agent_pipeline.sources.formats.record_files import RecordLocation

_CONTEXT = ("cwd", "originator", "cli_version", "source", "model_provider", "git")


class CodexSource(FileSource):
    """A reader of a Codex rollout, or of a folder of rollouts.

    The working folder's name is the project.
    """

    name = "codex"
    looks_like = "Codex rollouts: lines of type session_meta, turn_context and response_item"
    version = 3

    @classmethod
    def accepts(cls, record: Record) -> bool:
        return record.get("type") in (
            "session_meta",
            "response_item",
            "turn_context",
        ) and isinstance(record.get("payload"), dict)

    @classmethod
    def reads(cls, record: Record) -> bool:
        return isinstance(record.get("type"), str)

    def loses(self, record: Record) -> bool:
        return not says_nothing(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident:
        meta = section(record, "payload") if record.get("type") == "session_meta" else {}
        file = ":".join([*self.folders_of(location.path), location.path.stem])
        return Ident(file, text(meta.get("id")), folder_name(meta.get("cwd")), self.name)

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        lines = [record for _, record in records]
        metas = [section(line, "payload") for line in lines if line.get("type") == "session_meta"]
        meta = metas[0] if metas else {}
        thread = Thread(self._copies(session_id, is_copy_of(meta, metas), lines))
        for line in lines:
            thread.add(line)
        *before, last = thread.end()
        payload = section(lines[-1], "payload")
        models = [
            section(line, "payload").get("model")
            for line in lines
            if line.get("type") == "turn_context"
        ]
        tools = (
            [*(meta.get("dynamic_tools") or []), *thread.tools]
            if isinstance(meta.get("dynamic_tools") or [], list)
            else thread.tools
        )
        shared = {"tools": tools or None, "context": chosen(meta, _CONTEXT), "models": models}
        session_fields = {
            "history": _history(meta, last) + [mark_unread("missing line")] * missing_lines(lines),
            "skipped": Counter(taken_back=thread.taken_back),
            "usage": usages(lines),
            "times": [meta.get("timestamp"), *(line.get("timestamp") for line in lines)],
            "parent_session_id": parent_of(meta),
            "error": payload.get("message")
            if lines[-1].get("type") == "event_msg" and payload.get("type") == "error"
            else None,
        }
        earlier = [
            shared | {"history": _history(meta, stretch), "times": [meta.get("timestamp")]}
            for stretch in before
        ]
        return stretches_of(session_id, earlier, shared | session_fields)

    def _copies(self, session_id: str, parent: str | None, lines: list[Record]) -> int:
        """Return how many of the first response items are copies of the parent thread's items.

        The result is 0 if the store does not contain the parent.
        """
        if parent is None:
            return 0
        locations = [
            locations
            for sessions in self._index().values()
            for name, locations in sessions.items()
            if name == parent
        ]
        if not locations or parent == session_id:
            add_note(
                self.notes,
                f"{self.path}: {session_id} repeats the turns of {parent}, which is not in this "
                f"store, so the turns are trained in {session_id}.",
            )
            return 0
        return copied_from(
            response_items([self._record(location) for location in locations[0]]),
            response_items(lines),
        )


def folder_name(path: object) -> str | None:
    """Return the last part of a Windows or POSIX path."""
    named = text(path)
    return (
        None
        if named is None
        else (PureWindowsPath if "\\" in named else PurePath)(named).name or None
    )


def _history(meta: Record, stretch: Stretch) -> list[object]:
    """Return the items of a stretch, preceded by one system message.

    Inherited items are marked so that they are not trained.
    """
    texts, count = system_texts(meta, stretch.items)
    system = [{"type": "message", "role": "system", "content": "\n\n".join(texts)}] if texts else []
    inherited = [
        _untrained(item)
        for item in read_items(stretch.items[count : max(count, stretch.inherited)])
    ]
    return [*system, *inherited, *stretch.items[max(count, stretch.inherited) :]]


def _untrained(item: Item) -> Item:
    return replace(item, trained=False)
