"""One evaluation sample per assistant turn of the held-out rows: what the model is shown, and what the agent then did."""

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
    """Turn `turn_index` (a position in the row's messages): `prompt` is all before it, then came `calls` or `text`."""

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
        """What kind of decision the agent took; None where it said nothing."""
        return classify_turn(self.expected)

    @property
    def key(self) -> str:
        """sha256 of what is asked and expected, tool-call ids aside: equal samples test the same thing."""
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
    """The calls of a canonical message."""
    return tuple(ParsedCall(name, decode_arguments(raw)) for name, raw in list_calls([message]))


def turn_samples(
    rows: Sequence[DatasetRow], max_samples: int = 0, split: str = "test", seed: int = 0
) -> tuple[list[TurnSample], dict[str, int]]:
    """The samples of the rows of `split`, in order, and the counts `turns`, `duplicates`, `left_out`, `samples`.

    Of equal samples there is one. Where more than `max_samples` (0: no limit) are left, tasks take turns, in an order given by a
    hash with `seed`, until there are enough: so few samples still come from many tasks.
    """
    samples: dict[str, TurnSample] = {}
    turns = 0
    for row in rows:
        if row["split"] != split:
            continue
        for index, message in enumerate(row["messages"]):
            if message["role"] != "assistant" or not is_trained(
                message
            ):  # what should not be trained is not a reference either
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
    """`limit` samples, in their own order: the first of each task, then the second of each, by hash."""
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
    """What was expected, for a person to read: the calls as JSON, else the answer."""
    calls = [{"name": call.name, "arguments": call.arguments} for call in sample.calls]
    return "\n".join(json.dumps(call, ensure_ascii=False) for call in calls) or sample.text
