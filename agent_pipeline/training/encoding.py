"""A data set as tokens: each row made to fit, encoded, checked and, where it cannot fit, counted."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import Message
from agent_pipeline.training.masks import Encoded, check, encode
from agent_pipeline.training.rendering import render
from agent_pipeline.training.truncation import truncate

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class EncodedRow:
    """A row that fits: its tokens, and the messages they show (fewer than the row's, where it was too long)."""

    row_id: str
    encoded: Encoded
    messages: list[Message]
    truncated: bool


def encode_row(tokenizer: "PreTrainedTokenizerBase", row: dict[str, Any], max_length: int) -> EncodedRow | None:
    """The row in at most `max_length` tokens, or None where its last exchange alone is longer.

    Raises DataError, naming the row, where the chat template cannot render it without loss.
    """
    from jinja2 import TemplateError

    name, tools = f"Row {row['row_id']} (session {row['session_id']})", row.get("tools")

    def length(messages: list[Message]) -> int:
        return len(tokenizer(render(tokenizer, messages, tools), add_special_tokens=False).input_ids)

    try:
        messages = truncate(row["messages"], length, max_length)
        if messages is None:
            return None
        encoded = encode(tokenizer, messages, tools)
    except (TemplateError, TypeError, DataError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(f"{name} cannot be rendered by the chat template: {reason}; leave the row out or mend it.") from error
    check(encoded, tokenizer, messages, name)
    return EncodedRow(row["row_id"], encoded, messages, len(messages) < len(row["messages"]))


def encode_rows(
    tokenizer: "PreTrainedTokenizerBase", rows: list[dict[str, Any]], max_length: int, progress: Progress = silent
) -> tuple[list[EncodedRow], dict[str, int]]:
    """The rows that fit, in order; counts `in`, `truncated`, `dropped_too_long`, `trained`: in = dropped + trained."""
    kept: list[EncodedRow] = []
    for number, row in enumerate(rows, 1):
        encoded = encode_row(tokenizer, row, max_length)
        if encoded is not None:
            kept.append(encoded)
        progress(number, len(rows), "rows tokenised")
    counts = {"in": len(rows), "truncated": sum(row.truncated for row in kept), "dropped_too_long": len(rows) - len(kept)}
    return kept, {**counts, "trained": len(kept)}
