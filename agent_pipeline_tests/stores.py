"""Small stores of both kinds, written for one test."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from agent_pipeline.sample.store import SESSIONS_SCHEMA, VERDICTS_SCHEMA

AGENTS_SCHEMA = """
CREATE TABLE agent_sessions (session_id TEXT PRIMARY KEY, created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP,
    updated_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
CREATE TABLE agent_messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL, message_data TEXT NOT NULL,
    created_at TIMESTAMP DEFAULT CURRENT_TIMESTAMP);
"""

HELLO = [
    {"role": "user", "content": "hello"},
    {"role": "assistant", "content": "Hello, what can I do?"},
]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str) -> dict[str, Any]:
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def call(name: str, call_id: Any = None, arguments: Any = "{}") -> dict[str, Any]:
    return {"type": "function_call", "name": name, "call_id": call_id, "arguments": arguments}


def result(output: Any, call_id: Any = None) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def execute(path: Path, *statements: str | tuple[str, Sequence[Any]]) -> None:
    """Run statements on a database and commit."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(*([statement] if isinstance(statement, str) else statement))


def add_sessions(
    path: Path, sessions: Mapping[str, Sequence[Any]], context: str | None = None
) -> None:
    """Sessions with their items; an item that is no dict is stored as it is."""
    with closing(sqlite3.connect(path)) as connection, connection:
        for session_id, items in sessions.items():
            values = (session_id, "2026-01-02 03:04:05", context)
            connection.execute(
                "INSERT INTO sessions (session_id, created_at, context_json) VALUES (?, ?, ?)",
                values,
            )
            for item in items:
                text = json.dumps(item) if isinstance(item, dict) else item
                connection.execute(
                    "INSERT INTO history (session_id, msg_json) VALUES (?, ?)", (session_id, text)
                )


def omniagents_home(
    home: Path,
    sessions: Mapping[str, Sequence[Any]] | None = None,
    key: str = "shop/support",
    context: str | None = None,
    verdicts: Any = (),
) -> Path:
    """An omniagents home with one agent (or one agent more)."""
    path = home / "sessions" / key / "sessions.db"
    path.parent.mkdir(parents=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(SESSIONS_SCHEMA)
    add_sessions(path, {"s1": HELLO} if sessions is None else sessions, context)
    traces = home / "traces" / f"{key.partition('/')[0]}.db"
    if verdicts and not traces.exists():
        traces.parent.mkdir(exist_ok=True)
        with closing(sqlite3.connect(traces)) as connection, connection:
            connection.executescript(VERDICTS_SCHEMA)
            connection.executemany(
                "INSERT INTO analysis (group_id, judgment) VALUES (?, ?)", verdicts
            )
    return home


def sessions_db(home: Path, key: str = "shop/support") -> Path:
    return home / "sessions" / key / "sessions.db"
