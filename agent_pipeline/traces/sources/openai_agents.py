"""The OpenAI Agents SDK's `SQLiteSession`: one file, `agent_sessions` and `agent_messages`, ordered by `id`.

The file says neither project nor agent: it is one partition, `<file name>/<default>`. System instructions are never stored; a setting may
supply them. Where `AdvancedSQLiteSession` interleaves branches (`message_structure`), one branch is taken: `main`.
"""

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import ClassVar

from agent_pipeline.errors import PartitionError
from agent_pipeline.traces.items import to_messages
from agent_pipeline.traces.partitions import PartitionKey, make_key
from agent_pipeline.traces.session import Session
from agent_pipeline.traces.sources.base import add_note, clean_text, columns, file_signature, is_sqlite, parsed_object, read_only, timestamp

BRANCH = "main"

_ROWS = """
SELECT s.session_id, s.created_at, m.id, m.message_data
FROM agent_sessions AS s LEFT JOIN agent_messages AS m ON m.session_id = s.session_id {on_branch}
WHERE s.session_id IS NOT NULL
ORDER BY s.session_id, m.id
"""


_ORPHANS = "SELECT count(*) FROM agent_messages AS m WHERE NOT EXISTS (SELECT 1 FROM agent_sessions AS s WHERE s.session_id = m.session_id)"


class OpenAIAgentsSource:
    """One SQLite file of the OpenAI Agents SDK."""

    name: ClassVar[str] = "openai_agents"
    looks_like: ClassVar[str] = "an SQLite file with the tables agent_sessions and agent_messages"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        if not is_sqlite(path):
            return False
        with read_only(path) as connection:
            return "message_data" in columns(connection, "agent_messages") and bool(columns(connection, "agent_sessions"))

    def partitions(self) -> list[PartitionKey]:
        return [make_key(self.path.stem, "default")]

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        if key not in self.partitions():
            raise PartitionError(f"The store {self.path} has no partition {key}: it has {self.partitions()[0]}.")
        with read_only(self.path) as connection:
            if count := connection.execute(_ORPHANS).fetchone()[0]:
                add_note(self.notes, f"{self.path}: {count} messages belong to no session and were left out.")
            for session_id, group in groupby(connection.execute(self._query(connection)), key=lambda row: str(row[0])):
                rows = list(group)
                chat = to_messages(parsed_object(text) for *_, item_id, text in rows if item_id is not None)
                yield Session(
                    session_id=clean_text(session_id) or "",
                    project=key.project,
                    agent=key.agent,
                    source=self.name,
                    messages=chat.messages,
                    created_at=timestamp(rows[0][1]),
                    damage=dict(chat.damage),
                    skipped=dict(chat.skipped),
                )

    def signature(self) -> str:
        return file_signature(self.path)

    def _query(self, connection: sqlite3.Connection) -> str:
        structure = columns(connection, "message_structure")
        if "branch_id" not in structure:
            return _ROWS.format(on_branch="")
        elsewhere = (
            f"SELECT count(*) FROM agent_messages WHERE id NOT IN (SELECT message_id FROM message_structure WHERE branch_id = '{BRANCH}')"
        )
        count = connection.execute(elsewhere).fetchone()[0]
        add_note(
            self.notes,
            f"{self.path} has conversation branches: of each session {BRANCH!r} was taken, and {count} messages of others were left out.",
        )
        on_branch = (
            f"AND m.id IN (SELECT message_id FROM message_structure AS b WHERE b.session_id = s.session_id AND b.branch_id = '{BRANCH}')"
        )
        return _ROWS.format(on_branch=on_branch)
