"""Supervised fine-tuning rows: one kept session is one conversation that ends with the agent's words or calls."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from agent_pipeline.datasets.splits import SplitSizes, split_of
from agent_pipeline.traces.session import Message, Session

SFT = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("messages", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
    ]
)


def sft_rows(sessions: Iterable[Session], sizes: SplitSizes, counts: Counter[str] | None = None) -> Iterator[dict[str, Any]]:
    """Rows of `SFT` in the order of the sessions; `row_id` is the session id, since a session is one row.

    What follows the agent's last message (a closing user message, a last tool result) teaches nothing and is cut; a session without any
    message of the agent makes no row. `counts` gets `sessions`, `rows`, `trailing_messages_cut`, `no_assistant_message`.
    """
    counts = Counter() if counts is None else counts
    for session in sessions:
        counts["sessions"] += 1
        messages = to_last_assistant(session.messages)
        if not messages:
            counts["no_assistant_message"] += 1
            continue
        counts["rows"] += 1
        counts["trailing_messages_cut"] += len(session.messages) - len(messages)
        yield {
            "row_id": session.session_id,
            "session_id": session.session_id,
            "content_sha256": session.content_sha256(),
            "task_key": session.task_key,
            "split": split_of(session.task_key, sizes),
            "messages": messages,
            "tools": session.tools,
        }


def to_last_assistant(messages: list[Message]) -> list[Message]:
    """The messages up to and with the last of the assistant; empty where there is none."""
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return messages[: last + 1]
