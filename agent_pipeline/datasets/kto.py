"""Unpaired preferences (KTO): a judged session is a completion with a label, good or bad.

The schema of `kto_dataset` and the conversion of a session into a row belong here.

The verdict is about the whole session. The completion therefore consists of everything from the
agent's first message after a user message to the agent's last message.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from agent_pipeline.datasets.comparison import cut_after_last_answer, has_untrained_turn
from agent_pipeline.datasets.preferences import find_unfit_reason
from agent_pipeline.datasets.splits import LINEAGE_COLUMNS, LineageRow, TaskSplit
from agent_pipeline.sessions.session import Message, Session, Tool
from agent_pipeline.sessions.tables import define_optional, define_required

KTO = pa.schema(
    [
        *LINEAGE_COLUMNS,
        *define_required(
            pa.json_(),
            prompt="chat messages before the agent's first answer",
            completion="chat messages from the agent's first answer to its last answer",
        ),
        *define_required(pa.bool_(), label="true for a good session, false for a bad session"),
        *define_required(pa.json_(), tools="tools that the agent had, as OpenAI function schemas"),
        *define_optional(
            pa.string(),
            verdict_by="judge that gave the label; unverified if nobody checked the session",
        ),
        *define_optional(
            pa.bool_(),
            served_model=(
                "whether the session contains an answer of a model that this pipeline trained"
            ),
        ),
    ]
)
"""Columns of the table `kto_dataset`."""


class KtoRow(LineageRow):
    """A row of `kto_dataset`."""

    prompt: list[Message]
    completion: list[Message]
    label: bool
    tools: list[Tool]
    verdict_by: str | None
    served_model: bool | None


def make_kto_rows(
    labelled_sessions: Iterable[tuple[Session, bool]],
    task_split: TaskSplit,
    paired_ids: Collection[str] = (),
    counts: Counter[str] | None = None,
) -> Iterator[KtoRow]:
    """Yield the rows of `kto_dataset`, one at a time.

    Args:
        labelled_sessions: Pairs of a session and its label, true if the session is good.
        task_split: Determines the split of a task.
        paired_ids: Ids of the sessions that are in a preference pair. They do not get a row.
        counts: Receives `desirable`, `undesirable`, `reasoning_left_out` (recorded thoughts that
            are not in the messages), and the sessions without a row: `in_a_pair`,
            `no_answer_to_a_user`, `a_turn_is_not_to_be_trained` (a completion with a turn of weight
            0), `left_out_as_infrastructure_error`, `left_out_as_attack_succeeded`.
    """
    counts = Counter() if counts is None else counts
    for session, label in labelled_sessions:
        unfit_reason = find_unfit_reason(session)
        if unfit_reason is not None:
            counts[f"left_out_as_{unfit_reason}"] += 1
            continue
        if session.session_id in paired_ids:
            counts["in_a_pair"] += 1
            continue
        parts = split_at_first_answer(session.messages)
        if parts is None:
            counts["no_answer_to_a_user"] += 1
            continue
        prompt, completion = parts
        if has_untrained_turn(completion):
            counts["a_turn_is_not_to_be_trained"] += 1
            continue
        counts["desirable" if label else "undesirable"] += 1
        if session.reasoning:
            counts["reasoning_left_out"] += len(session.reasoning)
        yield {
            "row_id": session.session_id,
            "session_id": session.session_id,
            "content_sha256": session.hash_content(),
            "task_key": session.task_key,
            "split": task_split.find_split(session.task_key),
            "prompt": prompt,
            "completion": completion,
            "label": label,
            "tools": session.tools,
            "verdict_by": None,
            "served_model": None,
        }


def split_at_first_answer(
    messages: list[Message],
) -> tuple[list[Message], list[Message]] | None:
    """Split a conversation into a prompt and a completion.

    The completion goes from the agent's first message after a user message to the agent's last
    message. The result is `None` if the agent has no message after a user message, or if neither
    the user nor a system prompt has words before it, as in `sft_dataset`.
    """
    messages = cut_after_last_answer(messages)
    user_spoke = has_request = False
    for index, message in enumerate(messages):
        if message["role"] in ("system", "user") and message["content"]:
            has_request = True
        if message["role"] == "user":
            user_spoke = True
        elif message["role"] == "assistant" and user_spoke and has_request:
            return messages[:index], messages[index:]
    return None
