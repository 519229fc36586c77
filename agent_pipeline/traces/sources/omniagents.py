"""The omniagents session store: `<home>/sessions/<project>/<agent>/sessions.db`, verdicts in `<home>/traces/<project>.db`.

`OMNIAGENTS_HOME` moves the tree there as it does here. Read-only, in one snapshot, while the agent may be writing (WAL). Our own
convention on top: a session's `context_json` may carry `task_id`, `trial`, `model` and `tools` (OpenAI function schemas).
"""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.traces.items import mended_unicode, to_messages
from agent_pipeline.traces.partitions import PartitionKey, make_key
from agent_pipeline.traces.session import Session, Tool
from agent_pipeline.traces.sources.base import (
    add_note,
    clean_text,
    columns,
    file_signature,
    parsed_object,
    read_only,
    timestamp,
    unreadable,
)

# One ordered pass over the history for the whole partition, not a query a session. Sessions without history come too (empty).
_ROWS = """
SELECT s.session_id, s.archived, s.created_at, s.context_json, h.id, h.msg_json
FROM sessions AS s LEFT JOIN history AS h ON h.session_id = s.session_id
WHERE s.session_id IS NOT NULL
ORDER BY s.session_id, h.id
"""

_ORPHANS = "SELECT count(*) FROM history AS h WHERE NOT EXISTS (SELECT 1 FROM sessions AS s WHERE s.session_id = h.session_id)"


class OmniagentsSource:
    """An omniagents home directory."""

    name: ClassVar[str] = "omniagents"
    looks_like: ClassVar[str] = "a folder with sessions/<project>/<agent>/sessions.db"

    def __init__(self, path: Path) -> None:
        self.home = path
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        return (path / "sessions").is_dir()

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._databases())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        databases = self._databases()
        if key not in databases:
            known = ", ".join(map(str, sorted(databases))) or "none"
            raise PartitionError(f"The store {self.home} has no partition {key}: it has {known}.")
        path = databases[key]
        judgments = self._judgments(path.parent.parent.name)
        with read_only(path) as connection:
            if not {"session_id", "archived", "created_at", "context_json"} <= columns(connection, "sessions"):
                raise StoreError(f"{path} has no omniagents table 'sessions': it is some other program's database.")
            if count := connection.execute(_ORPHANS).fetchone()[0]:
                add_note(self.notes, f"{path}: {count} history items belong to no session and were left out.")
            for session_id, group in groupby(connection.execute(_ROWS), key=lambda row: str(row[0])):
                yield _session(key, session_id, list(group), judgments.get(session_id))

    def signature(self) -> str:
        verdicts = sorted((self.home / "traces").glob("*.db"))
        return file_signature(*(path for _, path in sorted(self._databases().items())), *verdicts)

    def _databases(self) -> dict[PartitionKey, Path]:
        found: dict[PartitionKey, Path] = {}
        for path in self._session_files():
            try:
                key = make_key(path.parent.parent.name, path.parent.name)
            except PartitionError as error:  # a stray folder must not keep all agents from their night
                add_note(self.notes, f"{path.parent} was left out: {error}")
                continue
            if key in found:
                raise StoreError(f"{found[key].parent} and {path.parent} are both the partition {key}: rename one of them.")
            found[key] = path
        return found

    def _session_files(self) -> list[Path]:
        """Every `sessions.db`; walked by hand, since `glob` passes over a folder that it may not read without a word."""
        try:
            projects = sorted(path for path in (self.home / "sessions").iterdir() if path.is_dir())
            agents = [path for project in projects for path in sorted(project.iterdir()) if path.is_dir()]
            return [path / "sessions.db" for path in agents if (path / "sessions.db").exists()]
        except OSError as error:
            raise unreadable(self.home / "sessions", error) from error

    def _judgments(self, project: str) -> dict[str, str | None]:
        """Session id → judgment, the last row of an id deciding; empty, with a note that says so, where there are none to read."""
        path = self.home / "traces" / f"{project}.db"
        if not path.exists():
            add_note(self.notes, f"There is no verdict file {path}: no session of {project} is judged.")
            return {}
        with read_only(path) as connection:
            if not {"group_id", "judgment"} <= columns(connection, "analysis"):
                add_note(self.notes, f"{path} has no table analysis(group_id, judgment): no session of {project} is judged.")
                return {}
            return {str(group): clean_text(judgment) for group, judgment in _analysis(connection)}


def _analysis(connection: sqlite3.Connection) -> Iterator[tuple[object, object]]:
    yield from connection.execute("SELECT group_id, judgment FROM analysis ORDER BY rowid")


def _session(key: PartitionKey, session_id: str, rows: list[tuple[Any, ...]], judgment: str | None) -> Session:
    _, archived, created_at, context_json, *_ = rows[0]
    chat = to_messages(parsed_object(text) for *_, item_id, text in rows if item_id is not None)
    context, tools = _context(context_json, chat.damage)
    return Session(
        session_id=clean_text(session_id) or "",
        project=key.project,
        agent=key.agent,
        source=OmniagentsSource.name,
        messages=chat.messages,
        tools=tools,
        tools_origin="source" if tools else "none",
        archived=bool(archived),
        created_at=timestamp(created_at),
        task_id=clean_text(context.get("task_id")),
        trial=clean_text(context.get("trial")),
        model_id=clean_text(context.get("model")),
        judgment=judgment,
        damage=dict(chat.damage),
        skipped=dict(chat.skipped),
        context=context,
    )


def _context(raw: Any, damage: Counter[str]) -> tuple[dict[str, Any], list[Tool]]:
    """A session's context and, out of it, its tools; `invalid_context` and `invalid_tools` are counted where there is one that is none."""
    if raw is None or raw in ("", "null"):
        return {}, []
    try:
        context: dict[str, Any] | None = mended_unicode(parsed_object(raw), damage)
    except ValueError:
        context = None
    if context is None:
        damage["invalid_context"] += 1
        return {}, []
    tools = context.pop("tools", None) or []
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        damage["invalid_tools"] += 1
        tools = []
    return context, tools
