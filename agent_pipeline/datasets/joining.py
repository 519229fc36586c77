"""Joining of sessions: several sessions become one conversation of several requests.

An agent's sessions often hold one request each. A model that was trained on them does not look up
the facts of a second request. Sessions are joined only if they cannot contradict each other: they
have the same system prompt and tools, different tasks, and no common ids, dates or calls. A joined
row is used in training only. The rows of a data set and their lineage stay as they are.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import cast

from agent_pipeline.datasets.masking import list_row_texts
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.sessions.session import (
    Message,
    ToolCall,
    canonicalize_arguments,
    dump_canonical_json,
    is_trained,
    list_calls,
)
from agent_pipeline.sessions.turn_class import classify_turn

MOST_SESSIONS = 3
"""Maximum number of sessions in one row."""

_PARTNERS_TRIED = 32
"""Number of sessions that are tried as the next session of a row."""

_ONE_USER_RULE = re.compile(
    r"\b(?:one|single|same|another|other|different)"
    r" (?:users?|customers?|clients?|persons?|people|callers?|guests?|patients?|members?)\b",
    re.IGNORECASE,
)
"""Words of a system prompt that may forbid to help two users in one conversation."""

_TOKEN = re.compile(r"[\w@][\w@.:/#-]*")
_TIME = re.compile(r"\d{1,2}:\d{2}")
_SMALL_NUMBER = re.compile(r"\d{1,3}(?:\.\d{1,2})?")


@dataclass(frozen=True)
class JoinedRow:
    """A row of one session or of several sessions.

    Attributes:
        row: The row.
        row_ids: The ids of the rows that it was made from.
    """

    row: DatasetRow
    row_ids: tuple[str, ...]


def join_sessions(
    rows: Sequence[DatasetRow],
    share: float,
    seed: int,
    fits: Callable[[DatasetRow], bool] = lambda row: True,
) -> list[JoinedRow]:
    """Join a share of the rows into rows of two or three sessions.

    Each session is in exactly one of the returned rows. A joined row replaces the row of its first
    session.

    Args:
        rows: SFT rows.
        share: The share of the rows that are joined with others. It may be smaller, because few
            rows can be joined.
        seed: The seed of the choice.
        fits: Whether a joined row is short enough.
    """
    rng = Random(f"{seed} joined sessions")
    wanted = round(share * len(rows))
    order = list(range(len(rows)))
    rng.shuffle(order)
    sessions = [_Session(row) for row in rows]
    groups: dict[str, list[int]] = {}
    if wanted > 1:
        for index in order:
            groups.setdefault(sessions[index].frame, []).append(index)
    partners = {
        index: [
            group[(place + offset) % len(group)]
            for offset in range(1, min(len(group), _PARTNERS_TRIED))
        ]
        for group in groups.values()
        for place, index in enumerate(group)
    }
    joined_rows: dict[int, JoinedRow] = {}
    used: set[int] = set()
    for index in order:
        if len(used) + 2 > wanted:
            break
        if index in used or not sessions[index].can_be_followed:
            continue
        size = min(rng.choice((2, 2, MOST_SESSIONS)), wanted - len(used))
        unused = [partner for partner in partners[index] if partner not in used]
        chain = _find_chain([index, *unused], sessions, size)
        while len(chain) > 1 and not fits(_join([rows[member] for member in chain])):
            chain.pop()
        if len(chain) > 1:
            members = [rows[member] for member in chain]
            joined_rows[index] = JoinedRow(
                _join(members), tuple(member["row_id"] for member in members)
            )
            used.update(chain)
    return [
        joined_rows.get(index) or JoinedRow(row, (row["row_id"],))
        for index, row in enumerate(rows)
        if index in joined_rows or index not in used
    ]


def _find_chain(candidates: Sequence[int], sessions: "Sequence[_Session]", size: int) -> list[int]:
    """Return up to `size` sessions that can follow each other, beginning with the first candidate.

    Args:
        candidates: The indices of sessions with the same system prompt and tools.
        sessions: All sessions.
        size: The largest number of sessions.
    """
    chain = [candidates[0]]
    for index in candidates[1:]:
        if len(chain) == size or not sessions[chain[-1]].can_be_followed:
            break
        if sessions[index].can_follow and all(
            sessions[index].agrees_with(sessions[member]) for member in chain
        ):
            chain.append(index)
    return chain


@dataclass(frozen=True)
class _Session:
    """A row, and the facts that decide whether it can be joined."""

    row: DatasetRow

    @cached_property
    def frame(self) -> str:
        """Return the system prompt and the tools as a text. Joined sessions have the same."""
        system = [message for message in self.row["messages"] if message["role"] == "system"]
        return dump_canonical_json([system, self.row.get("tools") or []])

    @cached_property
    def can_be_followed(self) -> bool:
        """Return whether the session ends with a trained answer that asks nothing.

        If the system prompt may forbid to help two users in one conversation, nothing may follow.
        """
        messages = self.row["messages"]
        return (
            bool(messages)
            and not _ONE_USER_RULE.search(self.frame)
            and messages[-1]["role"] == "assistant"
            and is_trained(messages[-1])
            and classify_turn(messages[-1]) in ("answer", "cannot")
        )

    @cached_property
    def can_follow(self) -> bool:
        """Return whether a user speaks first, and the only system message is the first message."""
        roles = [message["role"] for message in _drop_system(self.row["messages"])]
        return bool(roles) and roles[0] == "user" and "system" not in roles

    @cached_property
    def calls(self) -> set[tuple[str, str]]:
        return {
            (name, canonicalize_arguments(arguments))
            for name, arguments in list_calls(self.row["messages"])
        }

    @cached_property
    def ids(self) -> set[str]:
        """Return the ids, dates and addresses of the session that are not in the system prompt."""
        system_text, texts = "", list_row_texts(self.row)
        if self.row["messages"] and self.row["messages"][0]["role"] == "system":
            system_text = self.row["messages"][0].get("content") or ""
        keys = [
            message.get("content") or ""
            for message in self.row["messages"]
            if message["role"] == "tool"
        ]
        return set(_list_ids("\n".join([*texts, *keys]))) - set(_list_ids(system_text))

    def agrees_with(self, other: "_Session") -> bool:
        """Return whether two sessions are of different tasks and share no ids and calls."""
        return (
            self.row.get("task_key") != other.row.get("task_key")
            and self.ids.isdisjoint(other.ids)
            and self.calls.isdisjoint(other.calls)
        )


def _list_ids(text: str) -> Iterator[str]:
    """Yield the words with a digit or an `@`, without small numbers and times of the day."""
    for word in _TOKEN.findall(text):
        plain = word.rstrip(".:/#-").lower()
        if not any(char.isdigit() or char == "@" for char in plain):
            continue
        if not _SMALL_NUMBER.fullmatch(plain) and not _TIME.fullmatch(plain):
            yield plain


def _drop_system(messages: Sequence[Message]) -> Sequence[Message]:
    return messages[1:] if messages and messages[0]["role"] == "system" else messages


def _join(rows: Sequence[DatasetRow]) -> DatasetRow:
    """Return one row with the messages of several rows, in order.

    The ids of the calls are made different. The row has the ids of all rows and of all sessions.
    """
    messages = list(rows[0]["messages"])
    for position, row in enumerate(rows[1:], start=2):
        messages += [
            _mark_call_ids(message, f"s{position}_") for message in _drop_system(row["messages"])
        ]
    joined = {
        **rows[0],
        "row_id": " + ".join(row["row_id"] for row in rows),
        "session_id": " + ".join(row["session_id"] for row in rows),
        "task_key": " + ".join(row["task_key"] for row in rows if "task_key" in row),
        "messages": messages,
    }
    return cast(DatasetRow, joined)


def _mark_call_ids(message: Message, prefix: str) -> Message:
    """Return a message whose call ids begin with a prefix."""
    if message.get("tool_calls"):
        calls: list[ToolCall] = [
            {**call, "id": prefix + call.get("id", "")} for call in message["tool_calls"]
        ]
        return {**message, "tool_calls": calls}
    if message["role"] == "tool":
        return {**message, "tool_call_id": prefix + (message.get("tool_call_id") or "")}
    return message
