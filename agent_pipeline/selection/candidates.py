"""The rows that selection chooses from, with columns in memory and texts on disk.

The texts are read again each time. Further inputs of strategies, such as losses and embeddings,
belong to `pool`.
"""

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
from agent_pipeline.selection.embeddings import format_conversation
from agent_pipeline.sessions.session import Message, encode_json, is_trained, list_calls
from agent_pipeline.sessions.tables import define_optional, define_required, is_sorted, to_table

CandidateRow = Mapping[str, Any]
"""A dataset row that selection can choose, with at least the columns `row_id` and `messages`."""

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
READ = [*(id_field.name for id_field in IDS), "messages", "score", "created_at", "project", "agent"]
"""Columns that selection reads from a dataset."""


class RepeatedRowIdError(DataError):
    """Raised if two rows of a dataset have the same id.

    Attributes:
        row_id: The id.
    """

    def __init__(self, row_id: str) -> None:
        self.row_id = row_id
        super().__init__(
            f"The row id '{row_id}' is given to more than one row: make the ids of the data set "
            "unique."
        )


@dataclass(frozen=True)
class Candidates:
    """The rows of a dataset, ordered by row id.

    Attributes:
        table: A table with the columns `CANDIDATE`.
        read: Returns the rows again, in the order of the table.
    """

    table: pa.Table
    read: Callable[[], Iterable[CandidateRow]]

    @classmethod
    def of(cls, read: Callable[[], Iterable[CandidateRow]]) -> "Candidates":
        """Create candidates from rows.

        Rows are held in memory only if they are not ordered by id.

        Args:
            read: Returns the rows, which have `row_id`, `messages` and any other columns of `READ`.

        Raises:
            RepeatedRowIdError: two rows have the same id.
        """
        table = to_table(map(_make_columns, read()), CANDIDATE)
        ids = table["row_id"]
        if not is_sorted(ids):
            rows = sorted(read(), key=itemgetter("row_id"))
            return cls.of(lambda: rows)
        repeated = ids[1:].filter(pc.equal(ids[1:], ids[:-1]))
        if len(repeated):
            raise RepeatedRowIdError(str(repeated[0]))
        return cls(table, read)

    def texts(self, indices: Any = slice(None)) -> "Conversations":
        """Return the conversations of the rows with the given indices as texts, or of all rows."""
        is_wanted = np.zeros(len(self.table), bool)
        is_wanted[indices] = True
        return Conversations(self.read, is_wanted)


@dataclass(frozen=True)
class Conversations:
    """The conversations of some rows as texts, in the order of all rows.

    Memory holds one text at a time.

    Attributes:
        read: Returns all rows.
        is_wanted: (n,) bool, whether the text of each row is included.
    """

    read: Callable[[], Iterable[CandidateRow]]
    is_wanted: np.ndarray

    def __len__(self) -> int:
        return int(self.is_wanted.sum())

    def __iter__(self) -> Iterator[str]:
        return (
            format_conversation(row["messages"])
            for row, is_wanted in zip(self.read(), self.is_wanted, strict=True)
            if is_wanted
        )


def sort_by_judgment(rows: Candidates) -> np.ndarray:
    """Return the indices of all rows, with the best judged rows first.

    The rows with the best score come first, then the earliest, then the first by id.
    """
    scores, began = rows.table["score"], rows.table["began"]
    unjudged_last = pc.fill_null(pc.negate(scores), float("inf")).to_numpy()
    undated_last = pc.fill_null(began, float("inf")).to_numpy()
    return np.lexsort((undated_last, unjudged_last))  # numpy sorts by the last key first


def _make_columns(row: CandidateRow) -> dict[str, object]:
    """Return the values that a row has for the columns `CANDIDATE`."""
    messages = row["messages"]
    calls = Counter(name for name, _ in list_calls(messages))
    agent = [str(row[name]) for name in ("project", "agent") if row.get(name)]
    tool = min(calls, key=lambda name: (-calls[name], name)) if calls else "no tool"
    trained = [
        message for message in messages if message["role"] == "assistant" and is_trained(message)
    ]
    created_at = row.get("created_at")
    return {
        **{id_field.name: row.get(id_field.name) or "" for id_field in IDS},
        "identity": hash_conversation(messages),
        "called": sorted(calls),
        "group": " ".join([*agent, tool]),
        "words": len(_TOKEN.findall(format_conversation(trained))),
        "score": row.get("score"),
        "began": created_at.timestamp() if isinstance(created_at, datetime) else None,
    }


def hash_conversation(messages: Sequence[Message]) -> bytes:
    """Return the sha256 of a conversation's messages, its calls, and the turns that are trained.

    The system message is left out. Call ids are left out too, because they differ by chance.
    """
    spoken = [message for message in messages if message["role"] != "system"]
    content = [
        [
            message["role"],
            message.get("content") or "",
            [
                [call["function"]["name"], call["function"]["arguments"]]
                for call in message.get("tool_calls") or ()
            ],
            is_trained(message),
        ]
        for message in spoken
    ]
    return hashlib.sha256(encode_json(content)).digest()
