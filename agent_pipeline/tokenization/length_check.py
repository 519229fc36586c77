"""A check that the rows of a training run fit the run's settings.

This is checked before a model is loaded, so that a wrong setting costs seconds. How rows are
encoded belongs in `encoding`.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError, counts_in_words
from agent_pipeline.sessions.session import Message, is_trained

_LENGTH_STEP = 512
"""Step of proposed lengths in tokens. A proposed length is a multiple of this number."""


def summarize_lengths(lengths: Sequence[int]) -> dict[str, int]:
    """Return the median, the 95th percentile and the maximum of the rows' lengths in tokens.

    The lengths are those before any row is shortened. Without rows, the summary is empty.
    """
    if not lengths:
        return {}
    ordered = sorted(lengths)
    shares = {"median": 0.5, "p95": 0.95, "longest": 1.0}
    return {name: pick_quantile(ordered, share) for name, share in shares.items()}


def pick_quantile(ordered: Sequence[int], share: float) -> int:
    """Return the smallest of the ordered lengths that this share of the lengths does not exceed.

    Example:
        >>> pick_quantile([1, 2, 3, 4], 0.5)
        2
    """
    return ordered[math.ceil(share * len(ordered)) - 1]


def check_fit(
    counts: dict[str, Any], max_length: int, most_dropped: float, base: Path, first_dropped: str
) -> None:
    """Check that only few rows are dropped or shortened.

    Args:
        counts: The counts of `encode_rows`.
        max_length: The setting of this name.
        most_dropped: The share of the rows that may be dropped or shortened.
        base: The folder of the base model, whose context limits the proposal.
        first_dropped: The sentence about the first row that was dropped for the most frequent
            reason.

    Raises:
        DataError: Too many rows are dropped or shortened; the sentence proposes a `max_length`.
    """
    reasons = {
        name.removeprefix("dropped_").replace("_", " "): count
        for name, count in counts.items()
        if name.startswith("dropped_") and name != "dropped_share" and count
    }
    dropped = sum(reasons.values())
    truncated = counts["truncated"]
    too_long = counts["dropped_too_long"] + counts["dropped_no_source"]
    lost = dropped + truncated
    if lost <= most_dropped * counts["in"]:
        return
    if too_long + truncated <= dropped - too_long:
        raise DataError(
            f"{dropped:,} of {counts['in']:,} rows cannot be used for training "
            f"({counts_in_words(reasons)}), which is more than `sft_adapter.most_dropped` = "
            f"{most_dropped:g} allows. {first_dropped}"
        )
    losses = f"{too_long:,} are dropped and {truncated:,} lose their beginning"
    rows = RowLengths(counts["in"], counts["tokens"])
    raise DataError(describe_misfit(lost, losses, rows, max_length, read_context_length(base)))


class RowLengths(NamedTuple):
    """The lengths of some rows.

    Attributes:
        rows: Number of rows.
        tokens: The summary of their lengths, as `summarize_lengths` returns it.
    """

    rows: int
    tokens: Mapping[str, int]


def describe_misfit(
    lost: int, losses: str, lengths: RowLengths, max_length: int, context: int | None
) -> str:
    """Return a sentence about rows that are too long, with a remedy.

    Args:
        lost: Number of rows that are too long.
        losses: What happens to these rows.
        lengths: The lengths of all rows.
        max_length: The setting `sft_adapter.max_length`.
        context: The longest text that the base model reads, in tokens; None if it is unknown.
    """
    tokens = lengths.tokens
    proposed_length = propose_length(tokens["p95"])
    remedy = f"set `sft_adapter.max_length` = {proposed_length}"
    if context and proposed_length > context:
        remedy = (
            f"choose a base model with a context of at least {proposed_length} tokens (the "
            f"context of this model is {context}), or leave out long sessions"
        )
    return (
        f"{lost:,} of {lengths.rows:,} rows do not fit into `sft_adapter.max_length` = "
        f"{max_length} tokens ({losses}; "
        f"the median is {tokens['median']:,} tokens, the longest {tokens['longest']:,}): "
        f"{remedy}, or set "
        f"`sft_adapter.most_dropped` = {math.ceil(100 * lost / lengths.rows) / 100:g} to train on "
        "the remaining rows."
    )


def propose_length(tokens: int) -> int:
    """Return the smallest multiple of the step that is a sufficient length."""
    return math.ceil(tokens / _LENGTH_STEP) * _LENGTH_STEP


def check_calls(
    rows: Sequence[DatasetRow], messages: Sequence[Sequence[Message]], max_length: int
) -> None:
    """Check that an agent that makes tool calls is not trained on rows without calls.

    Args:
        rows: The rows to train on.
        messages: The messages of each row that is left, after it was shortened.
        max_length: The setting of this name.

    Raises:
        DataError: The rows have calls, and no call is left to train.
    """
    turns_with_call = sum(_count_trained_calls(row["messages"]) for row in rows)
    turns_left = sum(_count_trained_calls(row_messages) for row_messages in messages)
    if turns_with_call and not turns_left:
        raise DataError(
            f"None of the {turns_with_call:,} turns with a call fits into "
            f"`sft_adapter.max_length` = {max_length} tokens, so the model would learn not to "
            "call: raise `sft_adapter.max_length`."
        )


def _count_trained_calls(messages: Sequence[Message]) -> int:
    """Count the trained turns that make a tool call."""
    return sum(bool(message.get("tool_calls")) and is_trained(message) for message in messages)


def read_context_length(base: Path) -> int | None:
    """Return the maximum context length of a base model according to its configuration."""
    try:
        config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    length = config.get("max_position_embeddings")
    if not length:
        length = (config.get("text_config") or {}).get("max_position_embeddings")
    return length if isinstance(length, int) else None
