"""The omniagents session store: `<home>/sessions/<project>/<agent>/sessions.db`, verdicts in `<home>/traces/<project>.db`.

`OMNIAGENTS_HOME` moves the tree there as it does here. Read-only, in one snapshot, while the agent may be writing (WAL). Our own
convention on top: a session's `context_json` may carry `task_id`, `trial`, `model` and `tools` (OpenAI function schemas).
"""

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.traces.items import to_messages
from agent_pipeline.traces.partitions import PartitionKey, make_key
from agent_pipeline.traces.session import Session
from agent_pipeline.traces.sources.base import columns, file_signature, parsed_object, read_only, timestamp

# One ordered pass over the history for the whole partition, not a query a session. Sessions without history come too (empty).
_ROWS = """
SELECT s.session_id, s.archived, s.created_at, s.context_json, h.id, h.msg_json
FROM sessions AS s LEFT JOIN history AS h ON h.session_id = s.session_id
ORDER BY s.session_id, h.id
"""


class OmniagentsSource:
    """An omniagents home directory."""

    name = "omniagents"
    looks_like = "a folder with sessions/<project>/<agent>/sessions.db"

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
            orphans = connection.execute("SELECT count(*) FROM history WHERE session_id NOT IN (SELECT session_id FROM sessions)")
            if count := orphans.fetchone()[0]:
                self.notes.append(f"{path}: {count} history items belong to no session and were left out.")
            rows = connection.execute(_ROWS)
            for session_id, group in groupby(rows, key=lambda row: row[0]):
                yield _session(key, str(session_id), list(group), judgments.get(str(session_id)))

    def signature(self) -> str:
        verdicts = sorted((self.home / "traces").glob("*.db"))
        return file_signature(*(path for _, path in sorted(self._databases().items())), *verdicts)

    def _databases(self) -> dict[PartitionKey, Path]:
        found: dict[PartitionKey, Path] = {}
        for path in sorted((self.home / "sessions").glob("*/*/sessions.db")):
            key = make_key(path.parent.parent.name, path.parent.name)
            if key in found:
                raise StoreError(f"{found[key].parent} and {path.parent} are both the partition {key}: rename one of them.")
            found[key] = path
        return found

    def _judgments(self, project: str) -> dict[str, str | None]:
        """Session id → judgment, the last row of an id deciding; empty, with a note that says so, where there are none to read."""
        path = self.home / "traces" / f"{project}.db"
        if not path.exists():
            self.notes.append(f"There is no verdict file {path}: no session of {project} is judged.")
            return {}
        with read_only(path) as connection:
            if not {"group_id", "judgment"} <= columns(connection, "analysis"):
                self.notes.append(f"{path} has no table analysis(group_id, judgment): no session of {project} is judged.")
                return {}
            return {str(group): judgment for group, judgment in _analysis(connection)}


def _analysis(connection: sqlite3.Connection) -> Iterator[tuple[object, str | None]]:
    yield from connection.execute("SELECT group_id, judgment FROM analysis ORDER BY rowid")


def _session(key: PartitionKey, session_id: str, rows: list[tuple[Any, ...]], judgment: str | None) -> Session:
    _, archived, created_at, context_json, *_ = rows[0]
    context = parsed_object(context_json) or {}
    chat = to_messages(parsed_object(text) for *_, item_id, text in rows if item_id is not None)
    tools = context.pop("tools", None)
    return Session(
        session_id=session_id,
        project=key.project,
        agent=key.agent,
        source=OmniagentsSource.name,
        messages=chat.messages,
        tools=tools if isinstance(tools, list) else [],
        tools_origin="source" if tools else "none",
        archived=bool(archived),
        created_at=timestamp(created_at),
        task_id=_text(context.get("task_id")),
        trial=_text(context.get("trial")),
        model_id=_text(context.get("model")),
        judgment=judgment,
        damage=dict(chat.damage),
        skipped=dict(chat.skipped),
        context=context,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)
