"""Supervised fine-tuning rows: one kept session is one conversation that ends with a trained message of the agent.

Messages are in OpenAI's form. A turn that is not to be trained has OpenAI's `weight: 0` on the assistant's message; a message without
`weight` is trained. `tokenization.loss_masks` honours it.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from agent_pipeline.datasets.splits import ROW, TaskSplit
from agent_pipeline.judging.turns import untrained_turns
from agent_pipeline.sessions.session import (
    Message,
    add_thoughts,
    drop_error_marks,
    hash_json,
    is_trained,
)
from agent_pipeline.sessions.tables import decode_json, define_optional, define_required
from agent_pipeline.sessions.turn_class import classify_text

SFT = pa.schema(
    [
        *ROW,
        *define_required(
            pa.json_(), messages="chat messages to the agent's last; weight 0: not trained on"
        ),
        *define_required(pa.json_(), tools="the tools that the agent had: OpenAI function schemas"),
        *define_optional(
            pa.float64(),
            score="how good the session is, 0 to 1; of equal rows the better one is kept",
        ),
        *define_optional(pa.timestamp("us", tz="UTC"), created_at="when the session began (UTC)"),
        *define_optional(
            pa.list_(pa.string()),
            turn_classes="what each assistant message is: call, ask, cannot or answer",
        ),
        *define_optional(
            pa.string(),
            verdict_by="the judge that found the session good; unverified: nobody checked it",
        ),
    ]
)
"""A new column needs a line here, a value in `sft_rows`, and its origin in `defs.columns`. `score`: see `known_score`."""


class _Head(msgspec.Struct, gc=False):
    """What decides where a conversation is cut, and the classes of its turns."""

    role: str
    content: str | None = ""
    tool_calls: list[Any] | None = None
    weight: float = 1


_HEADS = msgspec.json.Decoder(list[_Head])


def sft_rows(
    rows: Iterable[Mapping[str, Any]],
    split: TaskSplit,
    counts: Counter[str] | None = None,
    untrained_facts: Sequence[str] = (),
    thoughts: bool = False,
) -> Iterator[dict[str, Any]]:
    """Rows of `SFT` from rows of sessions (`make_session_row`, or the table `curated_sessions`), one at a time, in their order.

    JSON columns may be `msgspec.Raw`; they are decoded only where a conversation changes. A turn with one of `untrained_facts` (names of
    `judging.turns.TurnFacts`, read in the column `turns`) is not trained. What follows the last trained message (a closing user message, a
    last tool result) is cut; a session without one makes no row. `row_id` is the session id, followed by `#` and the positions of the turns
    that a fact took out: another choice of turns is another row. `counts` gets `sessions`, `rows`, `trailing_messages_cut`,
    `no_assistant_message`, `no_turn_to_train`, `turns`, `turns_not_trained`, and of the recorded thoughts of the rows `reasoning_left_out`
    or, with `thoughts`, `reasoning_kept`: the messages then have them, and `content_sha256` counts them in.
    """
    counts = Counter() if counts is None else counts
    for row in rows:
        counts["sessions"] += 1
        messages = row["messages"]
        heads = (
            _HEADS.decode(messages)
            if isinstance(messages, msgspec.Raw)
            else msgspec.convert(messages, list[_Head])
        )
        turns = [at for at, each in enumerate(heads) if each.role == "assistant"]
        untrained = [turns[at] for at in untrained_turns(row.get("turns") or (), untrained_facts)]
        trained = [at for at in turns if heads[at].weight and at not in untrained]
        counts["turns"] += len(turns)
        if len(trained) < len(turns):
            counts["turns_not_trained"] += len(turns) - len(trained)
        if not trained:
            counts["no_turn_to_train" if turns else "no_assistant_message"] += 1
            continue
        counts["rows"] += 1
        if recorded := decode_json(row.get("reasoning") or []):
            counts["reasoning_kept" if thoughts else "reasoning_left_out"] += len(recorded)
        counts["trailing_messages_cut"] += len(heads) - trained[-1] - 1
        thought = recorded if thoughts else []
        if untrained or thought or trained[-1] + 1 < len(heads):
            kept = add_thoughts(decode_json(messages), thought)[: trained[-1] + 1]
            messages = [
                message | {"weight": 0} if at in untrained else message
                for at, message in enumerate(kept)
            ]
        yield {
            "row_id": row["session_id"]
            + ("#" + ",".join(map(str, untrained)) if untrained else ""),
            "session_id": row["session_id"],
            "content_sha256": hash_json([row["content_sha256"], thought])
            if thought
            else row["content_sha256"],
            "task_key": row["task_key"],
            "split": split.of(row["task_key"]),
            "messages": messages,
            "tools": row["tools"],
            "score": known_score(row),
            "created_at": row["created_at"],
            "turn_classes": [
                "call" if heads[at].tool_calls else classify_text(heads[at].content or "")
                for at in turns
                if at <= trained[-1]
            ],
            "verdict_by": row.get("verdict_by"),
        }


def known_score(session: Mapping[str, Any]) -> float | None:
    """How good a session is, 0 to 1; `None` where nobody judged it.

    A judged session has its `verdict_score`, in which no score overrules a person. Otherwise the source's judgment counts, else its score.
    """
    if "verdict_score" in session:
        return session["verdict_score"]
    return {"acceptable": 1.0, "unacceptable": 0.0}.get(session["judgment"] or "", session["score"])


def to_last_assistant(messages: list[Message]) -> list[Message]:
    """The messages up to and with the last trained one of the assistant, as data sets have them; empty where there is none."""
    trained = (
        index
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and is_trained(message)
    )
    return drop_error_marks(messages[: max(trained, default=-1) + 1])
