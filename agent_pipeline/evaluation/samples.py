"""The evaluation samples: one sample per assistant turn of the held-out rows, with the model's
prompt and the agent's recorded turn.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.models.tool_call_parsers import ParsedCall
from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import Message, Tool, hash_json, is_trained, list_calls
from agent_pipeline.sessions.turn_class import TurnClass, classify_turn


@dataclass(frozen=True)
class TurnSample:
    """An assistant turn of a held-out row, with the messages before it.

    Attributes:
        row_id: The id of the row.
        session_id: The id of the session.
        task_key: The key of the task.
        turn_index: The position of the turn in the row's messages.
        prompt: All messages before the turn.
        tools: The tools of the row.
        expected: The recorded turn.
        calls: The calls of the recorded turn.
        text: The text of the recorded turn.
    """

    row_id: str
    session_id: str
    task_key: str
    turn_index: int
    prompt: list[Message]
    tools: list[Tool]
    expected: Message
    calls: tuple[ParsedCall, ...]
    text: str

    @property
    def turn_class(self) -> TurnClass | None:
        """Return the class of the agent's decision, or None if the agent said nothing."""
        return classify_turn(self.expected)

    @property
    def key(self) -> str:
        """Return the sha256 of the prompt and the expected turn, without the ids of tool calls.
        Samples with equal keys test the same thing.
        """
        plain = [
            {k: v for k, v in message.items() if k not in ("tool_calls", "tool_call_id")}
            for message in self.prompt
        ]
        calls = [
            [(call.name, call.arguments) for call in expected_calls(message)]
            for message in (*self.prompt, self.expected)
        ]
        return hash_json([plain, calls, self.tools, self.text])


def expected_calls(message: Message) -> tuple[ParsedCall, ...]:
    """Return the tool calls that a message contains."""
    return tuple(ParsedCall(name, decode_arguments(raw)) for name, raw in list_calls([message]))


def turn_samples(
    rows: Sequence[DatasetRow], max_samples: int = 0, split: str = "test", seed: int = 0
) -> tuple[list[TurnSample], dict[str, int]]:
    """Return the samples of the rows of a split in order, and counts of the samples.

    The counts are `turns`, `duplicates`, `left_out` and `samples`. Equal samples are returned once.
    If more than `max_samples` samples are left, one sample per task is chosen in turn until there
    are enough, so that a small number of samples still comes from many tasks.

    Args:
        rows: The SFT rows.
        max_samples: The maximum number of samples; 0 means no limit.
        split: The split. Rows of other splits are skipped.
        seed: The seed of the random order of tasks and samples.
    """
    samples: dict[str, TurnSample] = {}
    turns = 0
    for row in rows:
        if row["split"] != split:
            continue
        for index, message in enumerate(row["messages"]):
            if message["role"] != "assistant" or not is_trained(
                message
            ):  # untrained turns are not references either
                continue
            turns += 1
            sample = TurnSample(
                row_id=row["row_id"],
                session_id=row["session_id"],
                task_key=row["task_key"],
                turn_index=index,
                prompt=row["messages"][:index],
                tools=row.get("tools") or [],
                expected=message,
                calls=expected_calls(message),
                text=message.get("content") or "",
            )
            samples.setdefault(sample.key, sample)
    chosen = (
        _spread(samples, max_samples, seed)
        if 0 < max_samples < len(samples)
        else list(samples.values())
    )
    counts = {
        "turns": turns,
        "duplicates": turns - len(samples),
        "left_out": len(samples) - len(chosen),
        "samples": len(chosen),
    }
    return chosen, counts


def _spread(samples: dict[str, TurnSample], limit: int, seed: int) -> list[TurnSample]:
    """Return `limit` samples that come from as many tasks as possible, in their original order.

    The first sample of each task is chosen first, then the second sample of each task, in an order
    that is given by a hash.
    """
    tasks: dict[str, list[str]] = {}
    for key in sorted(samples, key=lambda key: hash_json([seed, key])):
        tasks.setdefault(samples[key].task_key, []).append(key)
    ranked = sorted(
        (rank, hash_json([seed, task]), key)
        for task, keys in tasks.items()
        for rank, key in enumerate(keys)
    )
    chosen = {key for _, _, key in ranked[:limit]}
    return [sample for key, sample in samples.items() if key in chosen]


def as_text(sample: TurnSample) -> str:
    """Return the expected turn as text for a person: its calls as JSON, or its answer if there are
    no calls.
    """
    calls = [{"name": call.name, "arguments": call.arguments} for call in sample.calls]
    return "\n".join(json.dumps(call, ensure_ascii=False) for call in calls) or sample.text
