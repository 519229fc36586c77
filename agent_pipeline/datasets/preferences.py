"""Preference pairs: a good and a bad trial of one task, from one and the same prompt.

A pair needs equal system prompt, tools and first user turn; call ids are made comparable first, since every run draws its own. The
prompt is the longest common beginning from which both sides go on with the agent's message. Equal answers of the agent, or one side's
being the beginning of the other's, make no pair (they say that a shorter answer is worse, or better, than itself).
"""

import copy
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from agent_pipeline.datasets.sft import to_last_assistant
from agent_pipeline.datasets.splits import SplitSizes, split_of
from agent_pipeline.traces.session import Message, Session, canonical_json, sha256_of

PREFERENCES = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("case_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("rejected_session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("rejected_content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("prompt", pa.json_(), nullable=False),
        pa.field("chosen", pa.json_(), nullable=False),
        pa.field("rejected", pa.json_(), nullable=False),
        pa.field("tools", pa.json_(), nullable=False),
    ]
)


def preference_rows(
    good: Iterable[Session], bad: Iterable[Session], sizes: SplitSizes, counts: Counter[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Rows of `PREFERENCES`: within a task and an equal start, good and bad sessions are paired off in the order of their ids, each once.

    `counts` gets `pairs`, the pairings that made none (`equal_answers`, `one_is_a_beginning_of_the_other`, `different_prompts`), and
    `sessions_without_a_partner`, which wait for an unpaired (KTO) set.
    """
    counts = Counter() if counts is None else counts
    groups: dict[tuple[str, str], tuple[list[Session], list[Session]]] = defaultdict(lambda: ([], []))
    for side, sessions in enumerate((good, bad)):
        for session in sessions:
            groups[session.task_key, _start(session)][side].append(session)
    for (task_key, _), sides in sorted(groups.items()):
        chosen_side, rejected_side = (sorted(side, key=lambda session: session.session_id) for side in sides)
        counts["sessions_without_a_partner"] += abs(len(chosen_side) - len(rejected_side))
        for chosen, rejected in zip(chosen_side, rejected_side, strict=False):
            parts = split_pair(chosen.messages, rejected.messages)
            if isinstance(parts, str):
                counts[parts] += 1
                continue
            counts["pairs"] += 1
            yield _row(task_key, sizes, chosen, rejected, parts)


def split_pair(chosen: list[Message], rejected: list[Message]) -> tuple[list[Message], list[Message], list[Message]] | str:
    """`(prompt, chosen rest, rejected rest)` with comparable call ids, or the name of the reason why the two make no pair."""
    one, other = (to_last_assistant(comparable(messages)) for messages in (chosen, rejected))
    # What users and tools said may differ between trials whose agents did the same: only the agents' own messages are compared.
    own, others = (_of_assistant(messages) for messages in (one, other))
    if own == others:
        return "equal_answers"
    if own == others[: len(own)] or others == own[: len(others)]:
        return "one_is_a_beginning_of_the_other"
    common = next(index for index, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    while common and not one[common]["role"] == other[common]["role"] == "assistant":
        common -= 1
    if not any(message["role"] == "user" for message in one[:common]):
        return "different_prompts"
    return one[:common], one[common:], other[common:]


def _of_assistant(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message["role"] == "assistant"]


def comparable(messages: list[Message]) -> list[Message]:
    """A copy in which call ids are numbered in order (`call_1`, …) and arguments are in canonical JSON."""
    copied = copy.deepcopy(messages)
    names: dict[str, str] = {}
    for message in copied:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = made = f"call_{len(names) + 1}"
            call["id"] = made
            call["function"]["arguments"] = _canonical_arguments(call["function"]["arguments"])
        if "tool_call_id" in message:
            message["tool_call_id"] = names.get(message["tool_call_id"], message["tool_call_id"])
    return copied


def _canonical_arguments(text: str) -> str:
    try:
        return canonical_json(json.loads(text))
    except (ValueError, RecursionError):
        return text


def _start(session: Session) -> str:
    """Identity of everything before the agent's first message, and of the tools."""
    first = next((index for index, message in enumerate(session.messages) if message["role"] == "assistant"), len(session.messages))
    return sha256_of([session.messages[:first], session.tools])


def _row(
    task_key: str, sizes: SplitSizes, chosen: Session, rejected: Session, parts: tuple[list[Message], list[Message], list[Message]]
) -> dict[str, Any]:
    prompt, chosen_rest, rejected_rest = parts
    return {
        "row_id": f"{chosen.session_id}|{rejected.session_id}",
        "case_id": task_key,
        "session_id": chosen.session_id,
        "rejected_session_id": rejected.session_id,
        "content_sha256": chosen.content_sha256(),
        "rejected_content_sha256": rejected.content_sha256(),
        "task_key": task_key,
        "split": split_of(task_key, sizes),
        "prompt": prompt,
        "chosen": chosen_rest,
        "rejected": rejected_rest,
        "tools": chosen.tools,
    }
