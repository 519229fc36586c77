"""Rows for supervised fine-tuning (SFT): one kept session becomes one conversation to imitate.

The schema of `sft_dataset` and the conversion of a session into a row belong here. `judging`
decides which sessions are kept, and `selection` decides which rows are trained.

Messages have OpenAI's form. An assistant message that must not be trained has OpenAI's `weight: 0`;
a message without `weight` is trained. The loss masks of training respect the weight.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.splits import LINEAGE_COLUMNS, LineageRow, TaskSplit
from agent_pipeline.judging.turn_facts import find_untrained_turns
from agent_pipeline.sessions.session import (
    Message,
    Thought,
    Tool,
    add_thoughts,
    drop_error_marks,
    hash_json,
    is_trained,
)
from agent_pipeline.sessions.tables import decode_json, define_optional, define_required
from agent_pipeline.sessions.turn_class import TurnClass, classify_text
from agent_pipeline.structs import convert_value, json_decoder

SFT = pa.schema(
    [
        *LINEAGE_COLUMNS,
        *define_required(
            pa.json_(),
            messages=(
                "chat messages up to the agent's last message; a message with weight 0 is not "
                "trained on"
            ),
            tools="tools that the agent had, as OpenAI function schemas",
        ),
        *define_optional(
            pa.float64(),
            score="score of the session, 0 to 1; for equal rows, the highest score",
        ),
        *define_optional(
            pa.timestamp("us", tz="UTC"), created_at="time at which the session began (UTC)"
        ),
        *define_optional(
            pa.list_(pa.string()),
            turn_classes=(
                "class of each assistant message: call (a tool call), ask (a question to the "
                "user), cannot (a refusal) or answer"
            ),
        ),
        *define_optional(
            pa.string(),
            verdict_by=(
                "judge that found the session good; unverified if nobody checked the session"
            ),
        ),
        *define_optional(
            pa.bool_(),
            served_model=(
                "whether the session contains an answer of a model that this pipeline trained"
            ),
        ),
    ]
)
"""Columns of the table `sft_dataset`.

A new column needs a line here, a value in `make_sft_rows`, and its origin in `defs.columns`.
"""


class SftRow(LineageRow):
    """A row of `sft_dataset`.

    JSON columns may be `msgspec.Raw`, which is written unchanged.
    """

    messages: list[Message] | msgspec.Raw
    tools: list[Tool] | msgspec.Raw
    score: float | None
    created_at: datetime | None
    turn_classes: list[TurnClass | None]
    verdict_by: str | None
    served_model: bool | None


class _MessageHead(msgspec.Struct, gc=False):
    """The fields of a message that determine a training row.

    They determine where a conversation is cut, and the class of a turn.
    """

    role: str
    content: str | None = ""
    tool_calls: list[Any] | None = None
    weight: float = 1


_DECODER = json_decoder(list[_MessageHead])

_EXCLUDED_MARK = "#"
"""Precedes, in the id of a row, the indices of the messages that are excluded from training."""


@dataclass(frozen=True)
class _Turns:
    """The turns of a session, given as indices of its messages.

    Attributes:
        heads: The head of every message.
        agent: The agent's messages.
        unrequested: The agent's messages before the first words of a system prompt or a user. They
            would be trained if somebody had requested them.
        excluded: The agent's messages that a fact, or the missing request, excludes from training.
        trained: The agent's messages that are trained.
    """

    heads: list[_MessageHead]
    agent: list[int]
    unrequested: list[int]
    excluded: list[int]
    trained: list[int]

    def classify(self) -> list[TurnClass | None]:
        """Return the class of each agent message, up to the last message that is trained."""
        classes: list[TurnClass | None] = []
        for message_index in self.agent:
            if message_index <= self.trained[-1]:
                head = self.heads[message_index]
                classes.append("call" if head.tool_calls else classify_text(head.content or ""))
        return classes


def make_sft_rows(
    rows: Iterable[Mapping[str, object]],
    task_split: TaskSplit,
    counts: Counter[str] | None = None,
    untrained_facts: Sequence[str] = (),
    thoughts: bool = False,
) -> Iterator[SftRow]:
    """Convert rows of sessions into rows of `sft_dataset`, and yield them in the same order.

    Messages after the last trained message (a closing user message, a last tool result) are cut
    off. A turn before the first words of a system prompt or a user is not trained, because a model
    would learn to invent the request. A session without a trained message does not get a row. The
    `row_id` is the session id, followed by `#` and the indices of the messages that a fact or the
    missing request excluded, because a different choice of turns is a different row.

    Args:
        rows: Rows of `sessions` or `curated_sessions`. JSON columns may be `msgspec.Raw`. They are
            decoded only if a conversation changes.
        task_split: Determines the split of a task.
        counts: Receives `sessions`, `rows`, `trailing_messages_cut`, `no_assistant_message`,
            `no_turn_to_train`, `no_request`, `turns`, `turns_not_trained` and, among these,
            `turns_without_request`, and the recorded thoughts of the rows: `reasoning_left_out`,
            or `reasoning_kept` if `thoughts`.
        untrained_facts: Names of `judging.turn_facts.TurnFacts`. A turn with one of these facts in
            the column `turns` is not trained.
        thoughts: Whether messages include the recorded thoughts. If so, `content_sha256` covers
            them too.
    """
    counts = Counter() if counts is None else counts
    for row in rows:
        counts["sessions"] += 1
        turns = _find_turns(row, untrained_facts)
        counts["turns"] += len(turns.agent)
        if len(turns.trained) < len(turns.agent):
            counts["turns_not_trained"] += len(turns.agent) - len(turns.trained)
        if turns.unrequested:
            counts["turns_without_request"] += len(turns.unrequested)
        if not turns.trained:
            counts[_explain_missing_row(turns)] += 1
            continue
        counts["rows"] += 1
        recorded_thoughts = decode_json(row.get("reasoning") or [])
        if recorded_thoughts:
            counts["reasoning_kept" if thoughts else "reasoning_left_out"] += len(recorded_thoughts)
        counts["trailing_messages_cut"] += len(turns.heads) - turns.trained[-1] - 1
        yield _make_row(row, turns, task_split, recorded_thoughts if thoughts else [])


def _find_turns(row: Mapping[str, Any], untrained_facts: Sequence[str]) -> _Turns:
    messages = row["messages"]
    if isinstance(messages, msgspec.Raw):
        heads = _DECODER.decode(messages)
    else:
        heads = convert_value(messages, list[_MessageHead])
    agent = [index for index, head in enumerate(heads) if head.role == "assistant"]
    excluded_turns = find_untrained_turns(row.get("turns") or (), untrained_facts)
    excluded = {agent[turn_index] for turn_index in excluded_turns}
    first_request = next(
        (
            index
            for index, head in enumerate(heads)
            if head.role in ("system", "user") and head.content
        ),
        len(heads),
    )
    wanted = [index for index in agent if heads[index].weight and index not in excluded]
    unrequested = [index for index in wanted if index < first_request]
    trained = wanted[len(unrequested) :]
    return _Turns(heads, agent, unrequested, sorted({*excluded, *unrequested}), trained)


def _explain_missing_row(turns: _Turns) -> str:
    """Return the count to which a session without a turn to train belongs."""
    if turns.unrequested:
        return "no_request"
    return "no_turn_to_train" if turns.agent else "no_assistant_message"


def _make_row(
    row: Mapping[str, Any],
    turns: _Turns,
    task_split: TaskSplit,
    thoughts: Sequence[Thought],
) -> SftRow:
    """Return the SFT row of a session that has at least one turn to train."""
    messages = row["messages"]
    end = turns.trained[-1] + 1
    if turns.excluded or thoughts or end < len(turns.heads):
        messages = add_thoughts(decode_json(messages), thoughts)[:end]
        for message_index in turns.excluded:
            if message_index < end:
                messages[message_index] = messages[message_index] | {"weight": 0}
    row_id = row["session_id"]
    if turns.excluded:
        row_id += _EXCLUDED_MARK + ",".join(map(str, turns.excluded))
    content_sha256 = row["content_sha256"]
    if thoughts:
        content_sha256 = hash_json([content_sha256, thoughts])
    return {
        "row_id": row_id,
        "session_id": row["session_id"],
        "content_sha256": content_sha256,
        "task_key": row["task_key"],
        "split": task_split.find_split(row["task_key"]),
        "messages": messages,
        "tools": row["tools"],
        "score": _find_score(row),
        "created_at": row["created_at"],
        "turn_classes": turns.classify(),
        "verdict_by": row.get("verdict_by"),
        "served_model": row.get("served_model"),
    }


def list_excluded_messages(row_id: str, session_id: str) -> list[int]:
    """Return the indices of the messages that are excluded from training, according to a row's id.

    >>> list_excluded_messages("s1#3,7", "s1")
    [3, 7]
    """
    prefix = session_id + _EXCLUDED_MARK
    if not row_id.startswith(prefix):
        return []
    return [int(index) for index in row_id.removeprefix(prefix).split(",")]


def _find_score(session_row: Mapping[str, Any]) -> float | None:
    """Return a score from 0 to 1 that shows how good a session is, or `None`.

    A judged session has a `verdict_score`, in which no score overrules a person. If it is missing,
    the source's judgment counts. If there is no judgment, the source's score counts.
    """
    score: float | None
    if "verdict_score" in session_row:
        score = session_row["verdict_score"]
    elif session_row["judgment"] in ("acceptable", "unacceptable"):
        score = 1.0 if session_row["judgment"] == "acceptable" else 0.0
    else:
        score = session_row["score"]
    return score


def cut_after_last_trained_turn(messages: list[Message]) -> list[Message]:
    """Return the messages without error marks, up to the agent's last trained message.

    The list is empty if no message is trained.
    """
    end = 0
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and is_trained(message):
            end = index + 1
    return drop_error_marks(messages[:end])
