"""Supervised fine-tuning rows: one kept session is one conversation that ends with the agent's words or calls.

Messages are in OpenAI's form. A turn that is not to be learnt has OpenAI's `weight: 0` on the assistant's message; a message without
`weight` is learnt. `training.masks` honours it: no token of such a turn is trained.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from agent_pipeline.datasets.splits import TaskSplit
from agent_pipeline.judging import ConfiguredMeasure, EvaluationContext
from agent_pipeline.sessions.session import Message, Session, is_learnt
from agent_pipeline.sessions.tables import row_session

SFT = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("messages", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("created_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""`score` (see `known_score`) and `created_at` are the session's, null where nobody knows: of rows alike the better judged stands, then the
earlier."""


def sft_rows(
    sessions: Iterable[Session], split: TaskSplit, counts: Counter[str] | None = None, measures: Sequence[ConfiguredMeasure] = ()
) -> Iterator[dict[str, Any]]:
    """Rows of `SFT` in the order of the sessions, one at a time.

    With `measures`, only the turns that pass all of them are learnt; see `unlearnt_turns`. What follows the last learnt message (a closing
    user message, a last tool result) teaches nothing and is cut; a session without any makes no row. `row_id` is the session id, with
    the positions of what is not learnt behind a `#`: another choice of turns is another row, to whoever trains on it. `counts` gets
    `sessions`, `rows`, `trailing_messages_cut`, `no_assistant_message`, `no_turn_to_learn`, `turns`, `turns_not_learnt`,
    `turns_not_measured`.
    """
    counts = Counter() if counts is None else counts
    for session in sessions:
        counts["sessions"] += 1
        unlearnt = unlearnt_turns(session, measures, counts) if measures else []
        messages = weighted(session.messages, unlearnt)
        if not messages:
            agent_spoke = any(message["role"] == "assistant" for message in session.messages)
            counts["no_turn_to_learn" if agent_spoke else "no_assistant_message"] += 1
            continue
        counts["rows"] += 1
        counts["trailing_messages_cut"] += len(session.messages) - len(messages)
        yield {
            "row_id": session.session_id + ("#" + ",".join(map(str, unlearnt)) if unlearnt else ""),
            "session_id": session.session_id,
            "content_sha256": session.content_sha256(),
            "task_key": session.task_key,
            "split": split.of(session.task_key),
            "messages": messages,
            "tools": session.tools,
            "score": known_score(session.score, session.judgment),
            "created_at": session.created_at,
        }


_ENDS_WITH_WORDS = b'"role":"assistant"}]'
"""How the lake's JSON of messages ends (sorted keys, no blanks) where the last one is the agent's and calls nothing. Quotes within a text
have a backslash before them, so that no text can end so."""


def sft_rows_of_table(
    rows: Iterable[dict[str, Any]], split: TaskSplit, counts: Counter[str] | None = None, measures: Sequence[ConfiguredMeasure] = ()
) -> Iterator[dict[str, Any]]:
    """`sft_rows` of rows of the table `curated_sessions` whose JSON columns are `msgspec.Raw`: what stays as it is is not read."""
    counts = Counter() if counts is None else counts
    for row in rows:
        if measures or not bytes(row["messages"]).endswith(_ENDS_WITH_WORDS):
            session = row_session(row)
            session.score = known_score(session.score, row["verdict"])
            yield from sft_rows([session], split, counts, measures)
            continue
        counts["sessions"] += 1
        counts["rows"] += 1
        yield {name: row[name] for name in SFT.names if name in row} | {
            "row_id": row["session_id"],
            "split": split.of(row["task_key"]),
            "score": known_score(row["score"], row["verdict"]),
        }


def known_score(score: float | None, verdict: str | None) -> float | None:
    """How good a session is, 0 to 1: its score, else what its verdict says; null where nobody judged it."""
    return score if score is not None else {"acceptable": 1.0, "unacceptable": 0.0}.get(verdict or "")


def unlearnt_turns(session: Session, measures: Sequence[ConfiguredMeasure], counts: Counter[str]) -> list[int]:
    """The positions of the assistant's messages that fail a measure, taken of the turn alone: its words, its calls and their results.

    A measure that raises leaves the turn unlearnt (nobody found it good); one that does not apply to it says nothing.
    """
    unlearnt = []
    for at, message in enumerate(session.messages):
        if message["role"] != "assistant":
            continue
        end = at + 1
        while end < len(session.messages) and session.messages[end]["role"] == "tool":
            end += 1
        results = [each.take(EvaluationContext(session.messages[at:end], session.tools)) for each in measures]
        raised = any(result.passed is None and result.reason.startswith("raised ") for result in results)
        counts["turns"] += 1
        counts["turns_not_measured"] += raised
        if raised or any(result.passed is False for result in results):
            unlearnt.append(at)
    counts["turns_not_learnt"] += len(unlearnt)
    return unlearnt


def weighted(messages: list[Message], unlearnt: Sequence[int]) -> list[Message]:
    """The messages up to and with the last one to learn, the assistant's at the positions `unlearnt` with `weight: 0`."""
    if not unlearnt:
        return to_last_assistant(messages)
    marked = [message | {"weight": 0} if at in unlearnt else message for at, message in enumerate(messages)]
    last = max((at for at, message in enumerate(marked) if message["role"] == "assistant" and is_learnt(message)), default=-1)
    return marked[: last + 1]


def to_last_assistant(messages: list[Message]) -> list[Message]:
    """The messages up to and with the last of the assistant; empty where there is none."""
    last = max((index for index, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
    return messages[: last + 1]
