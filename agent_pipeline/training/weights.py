"""How much each trained token counts in the loss of imitation, by what its turn decides.

A few tokens of a turn say whether the agent calls or speaks, and most turns are calls: a plain mean over tokens hardly sees the decision.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from agent_pipeline.sessions.turn_class import turn_class
from agent_pipeline.training.encoding import EncodedRow
from agent_pipeline.training.masks import Encoded

MOST_WEIGHT = 4.0
"""The largest weight by which kinds are balanced: a few examples of a rare kind must not decide a training."""

Kind = TypeVar("Kind")


def balancing(amounts: Mapping[Kind, float]) -> dict[Kind, float]:
    """Weights under which each kind amounts to the same, up to `MOST_WEIGHT`."""
    mean = sum(amounts.values()) / max(len(amounts), 1)
    return {kind: min(MOST_WEIGHT, mean / amount) for kind, amount in amounts.items()}


def weighed(
    rows: Sequence[EncodedRow], decision_weight: float, balance_classes: bool
) -> tuple[list[Encoded], dict[str, Any]]:
    """The rows' tokens with their weights, and a report of each class of turns (`sessions.turn_class`).

    A token that decides counts `decision_weight` times. With `balance_classes` the trained tokens of each class weigh the same together,
    none more than `MOST_WEIGHT` times its own. The report has `turns`, `tokens`, `deciding_tokens`, the class's `weight`, and its `share`
    of the whole loss. Without either setting the rows are as they were.
    """
    figures: dict[str, Counter[str]] = {}
    classes = [
        [
            turn_class(message) or "nothing"
            for message in row.messages
            if message["role"] == "assistant"
        ]
        for row in rows
    ]
    classes = [
        kinds[-len(row.encoded.turns) :] for row, kinds in zip(rows, classes, strict=True)
    ]  # where rows are turns: the last
    for row, kinds in zip(rows, classes, strict=True):
        deciding = set(row.encoded.deciding)
        for kind, (start, end) in zip(kinds, row.encoded.turns, strict=True):
            trained = [at for at in range(start, end) if row.encoded.trained[at]]
            if trained:
                figures.setdefault(kind, Counter()).update(
                    turns=1, tokens=len(trained), deciding_tokens=len(deciding & {*trained})
                )
    amounts = {
        kind: each["tokens"] + (decision_weight - 1) * each["deciding_tokens"]
        for kind, each in sorted(figures.items())
    }
    factors = balancing(amounts) if balance_classes else dict.fromkeys(amounts, 1.0)
    total = sum(amounts[kind] * factors[kind] for kind in amounts)
    report = {
        kind: {
            **figures[kind],
            "weight": round(factors[kind], 4),
            "share": round(amounts[kind] * factors[kind] / total, 4),
        }
        for kind in amounts
    }
    if decision_weight == 1 and not balance_classes:
        return [row.encoded for row in rows], report
    return [
        _weighed(row.encoded, kinds, factors, decision_weight)
        for row, kinds in zip(rows, classes, strict=True)
    ], report


def _weighed(
    row: Encoded, kinds: Sequence[str], factors: Mapping[str, float], decision_weight: float
) -> Encoded:
    weights = [0.0] * len(row.input_ids)
    for kind, (start, end) in zip(kinds, row.turns, strict=True):
        weights[start:end] = [
            factors[kind] if trained else 0.0 for trained in row.trained[start:end]
        ]
    for at in row.deciding:
        weights[at] *= decision_weight
    return replace(row, weights=weights)
