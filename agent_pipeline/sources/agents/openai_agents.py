"""The OpenAI Agents SDK's `SQLiteSession`: a file with a table of sessions and one of messages.

The user chooses the names of the two tables, so the reader recognizes tables by their columns.
Several pairs of tables in one file are several agents. The file names neither a project nor an
agent, so a pair of tables becomes the partition `<file name>/default` or `<file name>/<table>`. The
SDK never stores system instructions; a setting may supply them. If `AdvancedSQLiteSession` recorded
branches (`message_structure`), the branch `main` is read. A file of verdicts may lie next to the
database (`labels.py`).
"""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sources.agents.item_store import ItemStore, SessionRow, as_text, side_by_side
from agent_pipeline.sources.base import add_note, no_partition
from agent_pipeline.sources.formats.fields import clean_text
from agent_pipeline.sources.formats.file_source import DEFAULT_AGENT, usable_key
from agent_pipeline.sources.formats.labels import labels_beside, read_labels
from agent_pipeline.sources.formats.sqlite import columns, is_sqlite, quoted, read_only

BRANCH = "main"

_SESSION_COLUMNS = {"session_id", "created_at", "updated_at"}
_MESSAGE_COLUMNS = {"id", "session_id", "message_data"}

_SESSIONS = (
    "SELECT session_id, NULL, created_at, NULL FROM {sessions} WHERE session_id IS NOT NULL ORDER "
    "BY session_id"
)
_MESSAGES = """
SELECT session_id, message_data FROM {messages}
WHERE session_id IN (SELECT session_id FROM {sessions}) ORDER BY session_id, id
"""
_BRANCH_MESSAGES = """
SELECT m.session_id, m.message_data
FROM message_structure AS b
  JOIN {messages} AS m ON m.id = b.message_id AND m.session_id = b.session_id
WHERE b.branch_id = ? AND m.session_id IN (SELECT session_id FROM {sessions})
ORDER BY m.session_id, {order}, m.id
"""
_ORPHANS = (
    "SELECT count(*) FROM {messages} AS m WHERE NOT EXISTS (SELECT 1 FROM {sessions} AS s WHERE "
    "s.session_id = m.session_id)"
)
_ELSEWHERE = (
    "SELECT count(*) FROM {messages} WHERE id NOT IN (SELECT message_id FROM message_structure "
    "WHERE branch_id = ?)"
)
_BRANCHES = (
    "SELECT DISTINCT branch_id FROM message_structure WHERE branch_id <> ? ORDER BY branch_id "
    "LIMIT 6"
)


class _Tables(NamedTuple):
    """The names of a table of sessions and of the table with the messages of these sessions."""

    sessions: str
    messages: str

    def sql(self, text: str, **more: str) -> str:
        return text.format(sessions=quoted(self.sessions), messages=quoted(self.messages), **more)


_USUAL = _Tables("agent_sessions", "agent_messages")


class OpenAIAgentsSource(ItemStore):
    """A reader of a database file that the SDK's `SQLiteSession` wrote."""

    name = "openai_agents"
    version = 2
    looks_like = (
        "an SQLite file with the tables agent_sessions and agent_messages, or with tables that "
        "have their columns"
    )

    @classmethod
    def detect(cls, path: Path) -> bool:
        if not is_sqlite(path):
            return False
        with read_only(path) as connection:
            return bool(_pairs(connection))

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._tables())

    def read(self, key: PartitionKey) -> Iterator[tuple[SessionRow, list[Any]]]:
        tables = self._tables()
        if key not in tables:
            raise no_partition(self.path, key, tables)
        pair, labels = tables[key], read_labels(self.sidecars(), self.notes)
        with read_only(self.path) as connection:
            if count := connection.execute(pair.sql(_ORPHANS)).fetchone()[0]:
                add_note(
                    self.notes,
                    f"{self.path}: {count} messages belong to no session and were left out.",
                )
            items = self._items(connection, pair)
            rows = connection.execute(pair.sql(_SESSIONS))
            heads = (
                SessionRow._make((*row, labels.get(clean_text(as_text(row[0])) or "", {})))
                for row in rows
            )
            yield from side_by_side(heads, items, str(self.path))

    def sidecars(self) -> list[Path]:
        return labels_beside(self.path)

    def _tables(self) -> dict[PartitionKey, _Tables]:
        with read_only(self.path) as connection:
            pairs = _pairs(connection)
        if not pairs:
            raise StoreError(
                f"{self.path} has no tables of the OpenAI Agents SDK, so another program wrote "
                "it: move the file out of the store."
            )
        is_default = {pair: len(pairs) == 1 or pair == _USUAL for pair in pairs}
        return {
            usable_key(self.path.stem, DEFAULT_AGENT if is_default[pair] else pair.messages): pair
            for pair in pairs
        }

    def _items(
        self, connection: sqlite3.Connection, pair: _Tables
    ) -> Iterator[tuple[object, object]]:
        """Yield pairs of a session id and a message, in order.

        If a session has several branches, only the branch `main` is read. The connection returns
        texts as bytes from here on.
        """
        structure = columns(connection, "message_structure")
        if not {"branch_id", "message_id", "session_id"} <= structure:
            connection.text_factory = bytes
            return connection.execute(pair.sql(_MESSAGES))
        others = [clean_text(row[0]) or "" for row in connection.execute(_BRANCHES, (BRANCH,))]
        count = connection.execute(pair.sql(_ELSEWHERE), (BRANCH,)).fetchone()[0]
        if others or count:
            named = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "") or "none"
            add_note(
                self.notes,
                f"{self.path} has conversation branches: the branch {BRANCH} of each session was "
                f"taken, and {count} messages that are only in other branches ({named}) were left "
                "out.",
            )
        connection.text_factory = bytes
        order = "b.sequence_number" if "sequence_number" in structure else "b.rowid"
        return connection.execute(pair.sql(_BRANCH_MESSAGES, order=order), (BRANCH,))


def _pairs(connection: sqlite3.Connection) -> list[_Tables]:
    """Return the pairs of a session table and a message table in the database.

    The foreign key that the SDK writes shows which tables belong together. If there is no key, a
    single table of each kind makes a pair.
    """
    names = sorted(
        row[0]
        for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if isinstance(row[0], str)
    )
    columns_of = {name: columns(connection, name) for name in names}
    sessions = [name for name, has in columns_of.items() if has >= _SESSION_COLUMNS]
    messages = [name for name, has in columns_of.items() if has >= _MESSAGE_COLUMNS]
    pairs = [
        _Tables(parent, name)
        for name in messages
        for parent in _parents(connection, name)
        if parent in sessions
    ]
    if not pairs and set(_USUAL) <= set(sessions) | set(messages):
        return [_USUAL]
    if not pairs and len(sessions) == len(messages) == 1:
        return [_Tables(sessions[0], messages[0])]
    return pairs


def _parents(connection: sqlite3.Connection, table: str) -> list[str]:
    rows = connection.execute(f"PRAGMA foreign_key_list({quoted(table)})")
    return sorted({row[2] for row in rows if isinstance(row[2], str) and row[3] == "session_id"})
