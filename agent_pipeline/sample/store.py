"""The writer of the omniagents layout: one database of sessions per agent, and one database of
verdicts per project.
"""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from agent_pipeline.sample.record import Recorded

SESSIONS_SCHEMA = """
CREATE TABLE sessions (session_id TEXT PRIMARY KEY, archived INTEGER DEFAULT 0, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    context_json TEXT, variables_json TEXT, hold INTEGER DEFAULT 0, user_id TEXT);
CREATE TABLE history (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT, msg_json TEXT,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE INDEX idx_history_session_id ON history(session_id, id);
CREATE INDEX idx_sessions_created_at ON sessions(created_at);
"""
VERDICTS_SCHEMA = "CREATE TABLE analysis (group_id TEXT, judgment TEXT, reason TEXT);"

SECONDS_PER_ITEM = 7
"""Seconds between the items of a session. The rows of sessions that overlap in time are
interleaved, as in a live store.
"""


def write_sessions(path: Path, sessions: list[Recorded]) -> None:
    """Write an agent's `sessions.db`: the sessions in the given order, and their items in the order
    of time.
    """
    rows = [
        (session.started + timedelta(seconds=SECONDS_PER_ITEM * index), session.session_id, text)
        for session in sessions
        for index, text in enumerate(session.texts)
    ]
    rows.sort(key=lambda row: row[0])
    with database(path, SESSIONS_SCHEMA) as connection:
        connection.executemany(
            "INSERT INTO sessions (session_id, archived, created_at, context_json) VALUES (?, ?, "
            "?, ?)",
            (
                (s.session_id, int(s.archived), str(s.started), s.context and json.dumps(s.context))
                for s in sessions
            ),
        )
        connection.executemany(
            "INSERT INTO history (session_id, msg_json, created_at) VALUES (?, ?, ?)",
            ((session_id, text, str(moment)) for moment, session_id, text in rows),
        )


def write_verdicts(path: Path, sessions: Iterable[Recorded]) -> None:
    """Write a project's verdicts: first the first verdict of every session, then the later
    verdicts.
    """
    with database(path, VERDICTS_SCHEMA) as connection:
        connection.executemany(
            "INSERT INTO analysis VALUES (?, ?, ?)", verdict_rows(list(sessions))
        )


def verdict_rows(sessions: list[Recorded]) -> Iterator[tuple[str, str | None, str | None]]:
    """Yield the rows of `analysis`. A session without a verdict has a row of nulls or no row."""
    for number in range(max(len(session.verdicts) for session in sessions)):
        for session in sessions:
            for verdict in session.verdicts[number : number + 1]:
                yield session.session_id, verdict and verdict.judgment, verdict and verdict.reason


@contextmanager
def database(path: Path, schema: str) -> Iterator[sqlite3.Connection]:
    """Open a new database, and commit and close it at the end. No write-ahead log file is left
    behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.executescript(schema)
        yield connection
        connection.commit()
    finally:
        connection.close()
