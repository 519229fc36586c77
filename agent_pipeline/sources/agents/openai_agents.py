"""The OpenAI Agents SDK's `SQLiteSession`: one file with a table of sessions and one of messages, ordered by `id`.

The names of the two tables are the user's to choose, so they are found by their columns (several pairs in one file are several agents).
The file says neither project nor agent: a pair of tables is the partition `<file name>/<default>`, or `<file name>/<table>`. System
instructions are never stored; a setting may supply them. Where `AdvancedSQLiteSession` interleaves branches (`message_structure`), one
branch is taken: `main`. Verdicts may lie beside the file (`labels.py`).
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, NamedTuple

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.items import Item, to_messages
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.agents.omniagents import by_session
from agent_pipeline.sources.base import (
    add_note,
    clean_text,
    columns,
    file_signature,
    is_sqlite,
    parsed_object,
    quoted,
    read_only,
    timestamp,
)
from agent_pipeline.sources.formats.files import usable_key
from agent_pipeline.sources.formats.labels import Labels, labels_file

BRANCH = "main"

_SESSION_COLUMNS = {"session_id", "created_at", "updated_at"}
_MESSAGE_COLUMNS = {"id", "session_id", "message_data"}
_STRUCTURE = "message_structure"
_USUAL = ("agent_sessions", "agent_messages")
_DEFAULT = "default"

_ROWS = """
SELECT s.session_id, s.created_at, m.id, m.message_data
FROM {sessions} AS s LEFT JOIN {messages} AS m ON m.session_id = s.session_id
WHERE s.session_id IS NOT NULL
ORDER BY s.session_id, m.id
"""

_BRANCH_ROWS = """
SELECT s.session_id, s.created_at, m.id, m.message_data
FROM {sessions} AS s LEFT JOIN (
    SELECT b.session_id, b.sequence_number, m.id, m.message_data
    FROM message_structure AS b JOIN {messages} AS m ON m.id = b.message_id AND m.session_id = b.session_id
    WHERE b.branch_id = ?
) AS m ON m.session_id = s.session_id
WHERE s.session_id IS NOT NULL
ORDER BY s.session_id, m.sequence_number, m.id
"""

_ORPHANS = "SELECT count(*) FROM {messages} AS m WHERE NOT EXISTS (SELECT 1 FROM {sessions} AS s WHERE s.session_id = m.session_id)"
_ELSEWHERE = "SELECT count(*) FROM {messages} WHERE id NOT IN (SELECT message_id FROM message_structure WHERE branch_id = ?)"
_BRANCHES = "SELECT DISTINCT branch_id FROM message_structure WHERE branch_id <> ? ORDER BY branch_id LIMIT 6"


class _Tables(NamedTuple):
    sessions: str
    messages: str

    def sql(self, text: str) -> str:
        return text.format(sessions=quoted(self.sessions), messages=quoted(self.messages))


class OpenAIAgentsSource:
    """One SQLite file of the OpenAI Agents SDK."""

    name: ClassVar[str] = "openai_agents"
    looks_like: ClassVar[str] = "an SQLite file with the tables agent_sessions and agent_messages, or two with their columns"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        if not is_sqlite(path):
            return False
        with read_only(path) as connection:
            return bool(_pairs(connection))

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._tables())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        return (session for session, _ in self.histories(key))

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[Item]]]:
        """Every session with its items as they are recorded, without those that are no JSON object; raises what `sessions` raises."""
        tables = self._tables()
        if key not in tables:
            raise PartitionError(f"The store {self.path} has no partition {key}: it has {', '.join(map(str, sorted(tables)))}.")
        pair, labels = tables[key], Labels(self.sidecars(), self.notes)
        with read_only(self.path) as connection:
            if count := connection.execute(pair.sql(_ORPHANS)).fetchone()[0]:
                add_note(self.notes, f"{self.path}: {count} messages belong to no session and were left out.")
            for session_id, rows in by_session(self._rows(connection, pair), str(self.path)):
                items = [parsed_object(text) for *_, item_id, text in rows if item_id is not None]
                chat = to_messages(items)
                name = clean_text(session_id) or ""
                session = Session(
                    session_id=name,
                    project=key.project,
                    agent=key.agent,
                    source=self.name,
                    messages=chat.messages,
                    created_at=timestamp(rows[0][1]),
                    reasoning=chat.reasoning,
                    damage=dict(chat.damage),
                    skipped=dict(chat.skipped),
                    **labels.of(name),
                )
                yield session, [item for item in items if item is not None]

    def signature(self) -> str:
        return file_signature(self.path, *self.sidecars())

    def sidecars(self) -> list[Path]:
        """The file of labels, if there is one."""
        return labels_file(self.path)

    def _tables(self) -> dict[PartitionKey, _Tables]:
        with read_only(self.path) as connection:
            pairs = _pairs(connection)
        if not pairs:
            raise StoreError(f"{self.path} has no tables of the OpenAI Agents SDK: it is some other program's database.")
        alone = len(pairs) == 1
        return {usable_key(self.path.stem, _DEFAULT if alone or pair == _USUAL else pair.messages): pair for pair in pairs}

    def _rows(self, connection: sqlite3.Connection, pair: _Tables) -> sqlite3.Cursor:
        structure = columns(connection, _STRUCTURE)
        if not {"branch_id", "message_id", "session_id"} <= structure:
            return connection.execute(pair.sql(_ROWS))
        others = [clean_text(row[0]) or "" for row in connection.execute(_BRANCHES, (BRANCH,))]
        count = connection.execute(pair.sql(_ELSEWHERE), (BRANCH,)).fetchone()[0]
        if others or count:
            named = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "") or "none"
            add_note(
                self.notes,
                f"{self.path} has conversation branches: of each session {BRANCH!r} was taken, and {count} messages that are only in "
                f"others ({named}) were left out.",
            )
        ordered = (
            _BRANCH_ROWS if "sequence_number" in structure else _BRANCH_ROWS.replace("b.sequence_number", "b.rowid AS sequence_number")
        )
        return connection.execute(pair.sql(ordered), (BRANCH,))


def _pairs(connection: sqlite3.Connection) -> list[_Tables]:
    """Tables of sessions with their tables of messages: by the foreign key that the SDK writes, else the only ones there are."""
    names = sorted(row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'") if isinstance(row[0], str))
    found = {name: columns(connection, name) for name in names}
    sessions = [name for name, has in found.items() if has >= _SESSION_COLUMNS]
    messages = [name for name, has in found.items() if has >= _MESSAGE_COLUMNS]
    pairs = [_Tables(parent, name) for name in messages for parent in _parents(connection, name) if parent in sessions]
    if not pairs and {_USUAL[0], _USUAL[1]} <= set(sessions) | set(messages):
        return [_Tables(*_USUAL)]
    if not pairs and len(sessions) == len(messages) == 1:
        return [_Tables(sessions[0], messages[0])]
    return pairs


def _parents(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA foreign_key_list({quoted(table)})")
    return sorted({row[2] for row in rows if isinstance(row[2], str) and row[3] == "session_id"})
