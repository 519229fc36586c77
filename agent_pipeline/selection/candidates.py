"""The rows that selection chooses from: what it needs to know of them in columns, and their texts, which are read anew each time."""

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.splits import LINEAGE_COLUMNS
from agent_pipeline.errors import DataError
from agent_pipeline.selection.embeddings import conversation_text
from agent_pipeline.sessions.session import Message, encode_json, is_trained, list_calls
from agent_pipeline.sessions.tables import define_optional, define_required, is_sorted, to_table

Row = Mapping[str, Any]

_TOKEN = re.compile(r"\w+|[^\w\s]")

IDS = LINEAGE_COLUMNS[:-1]

CANDIDATE = pa.schema(
    [
        *IDS,
        *define_required(
            pa.binary(), identity="sha256 of what was said and done, and of which turns are trained"
        ),
        *define_required(pa.list_(pa.string()), called="the names of the tools that were called"),
        *define_required(
            pa.string(), group="the agent, where the row names it, and the tool that is called most"
        ),
        *define_required(pa.int64(), words="words and marks of the assistant's trained turns"),
        *define_optional(
            pa.float64(),
            score="how good it is, 0 to 1",
            began="when it began, in seconds since 1970",
        ),
    ]
)
READ = [*(each.name for each in IDS), "messages", "score", "created_at", "project", "agent"]
"""The columns of a data set that selection reads."""


@dataclass(frozen=True)
class Candidates:
    """What selection knows of rows: `table` (`CANDIDATE`), sorted by row id, and `read`, which opens the rows anew in that order."""

    table: pa.Table
    read: Callable[[], Iterable[Row]]

    @classmethod
    def of(cls, read: Callable[[], Iterable[Row]]) -> "Candidates":
        """Rows with `row_id`, `messages` and those columns of `READ` that they have; only rows that are not sorted by id are held.

        Raises:
            DataError: two rows have one id.
        """
        table = to_table(map(_columns, read()), CANDIDATE)
        ids = table["row_id"]
        if not is_sorted(ids):
            rows = sorted(read(), key=itemgetter("row_id"))
            return cls.of(lambda: rows)
        if len(twice := ids[1:].filter(pc.equal(ids[1:], ids[:-1]))):
            raise DataError(
                f"The row id '{twice[0]}' is given to more than one row: make the ids of the data set unique."
            )
        return cls(table, read)

    def texts(self, places: Any = slice(None)) -> "Conversations":
        """What was said and done in the rows at these places, or in all."""
        wanted = np.zeros(len(self.table), bool)
        wanted[places] = True
        return Conversations(self.read, wanted)


@dataclass(frozen=True)
class Conversations:
    """The texts of the rows that are `wanted` (n,), in the order of all rows; memory holds one at a time."""

    read: Callable[[], Iterable[Row]]
    wanted: np.ndarray

    def __len__(self) -> int:
        return int(self.wanted.sum())

    def __iter__(self) -> Iterator[str]:
        return (
            conversation_text(row["messages"])
            for row, wanted in zip(self.read(), self.wanted, strict=True)
            if wanted
        )


def _columns(row: Row) -> dict[str, Any]:
    messages = row["messages"]
    calls = Counter(name for name, _ in list_calls(messages))
    agent = [str(row[name]) for name in ("project", "agent") if row.get(name)]
    tool = min(calls, key=lambda name: (-calls[name], name)) if calls else "no tool"
    trained = [
        message for message in messages if message["role"] == "assistant" and is_trained(message)
    ]
    return {
        **{each.name: row.get(each.name) or "" for each in IDS},
        "identity": identity(messages),
        "called": sorted(calls),
        "group": " ".join([*agent, tool]),
        "words": len(_TOKEN.findall(conversation_text(trained))),
        "score": row.get("score"),
        "began": time.timestamp() if isinstance(time := row.get("created_at"), datetime) else None,
    }


def identity(messages: Sequence[Message]) -> bytes:
    """sha256 of what was said and done: all messages but the system's, without the ids of calls, which differ by chance; and of which turns
    are trained."""
    return hashlib.sha256(
        encode_json(
            [
                [
                    message["role"],
                    message.get("content") or "",
                    [
                        [call["function"]["name"], call["function"]["arguments"]]
                        for call in message.get("tool_calls") or ()
                    ],
                    is_trained(message),
                ]
                for message in messages
                if message["role"] != "system"
            ]
        )
    ).digest()
