"""Whether the rows of a training run fit its settings: measured before a model is loaded, so that a wrong setting costs seconds."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agent_pipeline.errors import DataError
from agent_pipeline.sessions.session import Message, is_trained

_STEP = 512
"""Proposed lengths are multiples of this many tokens."""


def row_tokens(lengths: Sequence[int]) -> dict[str, int]:
    """Return the median, the 95th percentile and the maximum of the rows' lengths in tokens, before any is shortened."""
    ordered = sorted(lengths)
    shares = {"median": 0.5, "p95": 0.95, "longest": 1.0} if ordered else {}
    return {name: ordered[math.ceil(share * len(ordered)) - 1] for name, share in shares.items()}


def check_fit(
    counts: dict[str, Any], max_length: int, most_dropped: float, base: Path, first_dropped: str
) -> None:
    """Check that few rows are dropped or shortened.

    Args:
        counts: The counts of `encode_rows`.
        max_length: The setting of this name.
        most_dropped: The share of the rows that may be dropped or shortened.
        base: The folder of the base model, whose context limits the proposal.
        first_dropped: The sentence about the first dropped row.

    Raises:
        DataError: too many rows are dropped or shortened; the sentence proposes a `max_length`.
    """
    dropped = sum(
        count
        for name, count in counts.items()
        if name.startswith("dropped_") and name != "dropped_share"
    )
    too_long = counts["dropped_too_long"] + counts["dropped_no_source"]
    lost, limit = dropped + counts["truncated"], most_dropped * counts["in"]
    if lost <= limit:
        return
    if too_long + counts["truncated"] <= dropped - too_long:
        raise DataError(
            f"{dropped:,} of {counts['in']:,} rows cannot be trained on, which is more than sft_adapter.most_dropped = {most_dropped:g} "
            f"allows. {first_dropped}"
        )
    tokens, proposed = counts["tokens"], propose_length(counts["tokens"]["p95"])
    context = _context(base)
    remedy = f"set sft_adapter.max_length = {proposed}"
    if context and proposed > context:
        remedy = f"choose a base model with a context of at least {proposed} tokens (this one has {context}), or leave long sessions out"
    raise DataError(
        f"{lost:,} of {counts['in']:,} rows do not fit into sft_adapter.max_length = {max_length} tokens: {too_long:,} are dropped and "
        f"{counts['truncated']:,} lose their beginning (median {tokens['median']:,} tokens, longest {tokens['longest']:,}): {remedy}, or "
        f"set sft_adapter.most_dropped = {math.ceil(100 * lost / counts['in']) / 100:g} to train on what is left."
    )


def propose_length(tokens: int) -> int:
    """Return the next round length."""
    return math.ceil(tokens / _STEP) * _STEP


def check_calls(
    rows: Sequence[dict[str, Any]], messages: Sequence[Sequence[Message]], max_length: int
) -> None:
    """Check that an agent that makes calls is not trained without one.

    Args:
        rows: The rows to train on.
        messages: The messages of each row that is left, after it was shortened.
        max_length: The setting of this name.

    Raises:
        DataError: the rows have calls, and no call is left to train.
    """
    called = sum(_calls(row["messages"]) for row in rows)
    if called and not any(map(_calls, messages)):
        raise DataError(
            f"None of the {called:,} turns with a call fits into sft_adapter.max_length = {max_length} tokens, so the model would learn "
            "not to call: raise it."
        )


def _calls(messages: Sequence[Message]) -> int:
    return sum(bool(message.get("tool_calls")) and is_trained(message) for message in messages)


def _context(base: Path) -> int | None:
    """The longest context of a base model, by its configuration."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    found = config.get("max_position_embeddings") or (config.get("text_config") or {}).get(
        "max_position_embeddings"
    )
    return found if isinstance(found, int) else None
