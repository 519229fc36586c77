"""What is right about a generated text: its calls, or that it is an answer."""

from dataclasses import dataclass
from typing import Any

from agent_pipeline.evaluation.samples import TurnSample
from agent_pipeline.training.families import read_reply


@dataclass(frozen=True)
class Score:
    """What is right. Where an answer was expected only `call_or_answer` is judged: the others are None, not False."""

    call_or_answer: bool
    tool_name: bool | None
    arguments: bool | None
    exact: bool | None
    invalid_call: bool


def same(left: Any, right: Any) -> bool:
    """JSON equality: numbers by value (1 equals 1.0), booleans are no numbers, the order of keys means nothing."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def score(sample: TurnSample, text: str) -> Score:
    """How a generated text compares with what the agent did.

    Of several expected calls all must be there, in order, and no other: `tool_name` compares the names, `arguments` the
    arguments, position by position, `exact` both. A call that is no valid JSON is a wrong call.
    """
    reply = read_reply(text)
    if not sample.calls:
        return Score(not reply.is_call, None, None, None, bool(reply.invalid))
    complete = not reply.invalid and len(reply.calls) == len(sample.calls)
    names = complete and all(a.name == b.name for a, b in zip(reply.calls, sample.calls, strict=True))
    arguments = complete and all(same(a.arguments, b.arguments) for a, b in zip(reply.calls, sample.calls, strict=True))
    return Score(reply.is_call, names, arguments, names and arguments, bool(reply.invalid))
