"""A store that holds the sessions of a test."""

from collections.abc import Iterable
from pathlib import Path

from agent_pipeline.sessions.session import Session, encode_json

_FIELDS = (
    "session_id",
    "project",
    "agent",
    "messages",
    "tools",
    "created_at",
    "ended_at",
    "task_id",
    "trial",
    "model_id",
    "judgment",
    "score",
    "scores",
    "error",
    "archived",
    "usage",
    "cost_usd",
    "context",
)
"""Fields of a session that the reader `openai_chat` reads from a record."""


def write_store(path: Path, sessions: Iterable[Session]) -> Path:
    """Write sessions as a store of JSON lines, and return its path.

    The built-in reader `openai_chat` reads the store, so the setting `store` can name the path.
    Damage, reasoning and other fields that only a reader sets are not written.

    Args:
        path: The file, with the suffix `.jsonl`. An existing file is replaced.
        sessions: The sessions, of one agent or of several agents.
    """
    records = (
        {name: value for name in _FIELDS if (value := getattr(session, name)) not in (None, {}, [])}
        for session in sessions
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_json(record) + b"\n" for record in records))
    return path
