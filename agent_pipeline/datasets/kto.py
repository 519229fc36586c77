"""Unpaired preferences (KTO): a judged session is a completion with a label, good or bad; it needs no partner.

The verdict is about the whole session, so the completion is everything that followed the first request: from the agent's first message
after a user's to its last.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa

from agent_pipeline.datasets.pair_messages import has_untrained_turn, to_last_answer
from agent_pipeline.datasets.preferences import unfit_to_compare
from agent_pipeline.datasets.splits import ROW, TaskSplit
from agent_pipeline.sessions.session import Message, Session
from agent_pipeline.sessions.tables import define_optional, define_required

KTO = pa.schema(
    [
        *ROW,
        *define_required(
            pa.json_(),
            prompt="chat messages before the agent's first answer",
            completion="from there to the agent's last",
        ),
        *define_required(pa.bool_(), label="true: the session is good; false: it is bad"),
        *define_required(pa.json_(), tools="the tools that the agent had: OpenAI function schemas"),
        *define_optional(
            pa.string(),
            verdict_by="the judge that gave the label; unverified: nobody checked the session",
        ),
    ]
)


def labelled_rows(
    labelled: Iterable[tuple[Session, bool]],
    split: TaskSplit,
    paired: Collection[str] = (),
    counts: Counter[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Rows of `KTO`, one at a time, without the sessions `paired`, which are in a pair already.

    `counts` gets `desirable`, `undesirable`, `reasoning_left_out` (recorded thoughts that the messages do not have), `in_a_pair`,
    `no_answer_to_a_user`, `a_turn_is_not_to_be_trained` (a completion with a turn of weight 0), and the sessions that are neither good nor
    bad: `left_out_as_infrastructure_error`, `left_out_as_attack_succeeded`.
    """
    counts = Counter() if counts is None else counts
    for session, label in labelled:
        if (unfit := unfit_to_compare(session)) is not None:
            counts[f"left_out_as_{unfit}"] += 1
        elif session.session_id in paired:
            counts["in_a_pair"] += 1
        elif (parts := prompt_and_completion(session.messages)) is None:
            counts["no_answer_to_a_user"] += 1
        elif has_untrained_turn(parts[1]):
            counts["a_turn_is_not_to_be_trained"] += 1
        else:
            counts["desirable" if label else "undesirable"] += 1
            if session.reasoning:
                counts["reasoning_left_out"] += len(session.reasoning)
            yield {
                "row_id": session.session_id,
                "session_id": session.session_id,
                "content_sha256": session.hash_content(),
                "task_key": session.task_key,
                "split": split.of(session.task_key),
                "prompt": parts[0],
                "completion": parts[1],
                "label": label,
                "tools": session.tools,
                "verdict_by": None,
            }


def prompt_and_completion(messages: list[Message]) -> tuple[list[Message], list[Message]] | None:
    """A conversation cut before the agent's first message after a user's, and after its last; `None` where there is no such message."""
    messages = to_last_answer(messages)
    asked = next(
        (at for at, message in enumerate(messages) if message["role"] == "user"), len(messages)
    )
    first = next(
        (at for at in range(asked, len(messages)) if messages[at]["role"] == "assistant"), None
    )
    return None if first is None else (messages[:first], messages[first:])
