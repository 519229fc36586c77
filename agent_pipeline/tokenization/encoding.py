"""Encoding of a dataset as tokens: each row is shortened to fit, encoded, and checked.

A row that cannot be trained on is counted by its reason, and never lost silently. Which tokens of a
row are trained belongs in `loss_masks`, and which exchanges are removed in `truncation`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError, first_line
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import THOUGHT, Message, Tool, is_trained
from agent_pipeline.tokenization.length_check import summarize_lengths
from agent_pipeline.tokenization.loss_masks import (
    Encoded,
    MessageNotShown,
    check_mask,
    check_prompt_shown,
    encode_conversation,
)
from agent_pipeline.tokenization.truncation import truncate, untrain_turns_without_source

Item = TypeVar("Item")
Row: TypeAlias = DatasetRow
"""A row with `row_id`, `session_id`, `messages` and perhaps `tools`."""

DropReason = Literal["too_long", "no_source", "not_rendered", "not_shown", "not_proven"]
"""The reason why a row is dropped.

`too_long`: its last exchange alone is too long. `no_source`: after it was shortened, all its turns
state values that were cut away. `not_rendered`: the chat template fails on it. `not_shown`: the
chat template does not show one of its system or user messages. `not_proven`: its mask cannot be
proven on its tokens, or its calls cannot be read back from them.
"""


class RowDropped(DataError):
    """Raised if a row cannot be trained on.

    Attributes:
        reason: Why the row is dropped.
        tokens: The length of the whole row; 0 if the length is unknown.
    """

    def __init__(self, text: str, reason: DropReason, tokens: int = 0) -> None:
        super().__init__(text)
        self.reason = reason
        self.tokens = tokens


@dataclass(frozen=True)
class EncodedRow:
    """A row that fits into the length limit, as tokens.

    Attributes:
        row_id: The id of the row.
        encoded: The tokens and their mask.
        messages: The messages that the tokens show; fewer than the row's if the row was shortened.
        truncated: Whether the row was shortened.
        unsourced_calls: The number of turns with a call that are not trained, because their values
            were cut away.
        unsourced_answers: The number of other turns that are not trained for the same reason.
        whole_tokens: The length of the row in tokens before it was shortened.
        tools: The tools that the tokens show.
    """

    row_id: str
    encoded: Encoded
    messages: list[Message]
    truncated: bool
    unsourced_calls: int
    unsourced_answers: int = 0
    whole_tokens: int = 0
    tools: list[Tool] = field(default_factory=list)


class Counted(NamedTuple, Generic[Item]):
    """The rows that can be trained on, and counts over all rows.

    Attributes:
        rows: The rows that can be trained on, in order.
        counts: `in`, `dropped_<reason>` per `DropReason`, `trained` (in = all dropped + trained)
            and `dropped_share`, from 0 to 1.
        first_dropped: The sentence about the first row that was dropped for the most frequent
            reason; empty if no row was dropped.
    """

    rows: list[Item]
    counts: dict[str, Any]
    first_dropped: str


def encode_rows(
    renderer: ChatRenderer,
    rows: list[Row],
    max_length: int,
    progress: Progress = silent,
) -> Counted[EncodedRow]:
    """Encode all rows as tokens, in the form in which training uses them.

    Args:
        renderer: The model's tokenizer and chat template.
        rows: The rows.
        max_length: The most tokens per row.
        progress: Is told how many rows are done.

    Returns:
        The encoded rows. The counts also have `tokens` (a summary of the rows' lengths),
        `truncated`, `unsourced_calls`, `unsourced_answers` and `special_literals` (rows whose texts
        hold special tokens, which are trained as text). If messages have thoughts, the counts have
        `reasoning_trained` (turns whose thought is trained) or `reasoning_not_rendered` (turns
        whose thought the chat template does not show).
    """
    lengths: list[int] = []

    def encode_and_measure(row: Row) -> EncodedRow:
        try:
            encoded_row = encode_row_or_raise(renderer, row, max_length)
        except RowDropped as error:
            if error.tokens:
                lengths.append(error.tokens)
            raise
        lengths.append(encoded_row.whole_tokens)
        return encoded_row

    trained_rows = split_into_trained_rows(renderer, rows)
    encoded = encode_and_count(trained_rows, encode_and_measure, progress)
    more_counts: dict[str, object] = {
        "tokens": summarize_lengths(lengths),
        "truncated": sum(row.truncated for row in encoded.rows),
        "unsourced_calls": sum(row.unsourced_calls for row in encoded.rows),
        "unsourced_answers": sum(row.unsourced_answers for row in encoded.rows),
        "special_literals": sum(row.encoded.literals > 0 for row in encoded.rows),
    }
    thoughts = sum(
        THOUGHT in message and is_trained(message) for row in rows for message in row["messages"]
    )
    if thoughts and renderer.template.reasoning:
        shown_thoughts = sum(THOUGHT in row.messages[-1] for row in encoded.rows)
        more_counts["reasoning_trained"] = shown_thoughts
    elif thoughts:
        more_counts["reasoning_not_rendered"] = thoughts
    return Counted(encoded.rows, encoded.counts | more_counts, encoded.first_dropped)


def split_into_trained_rows(renderer: ChatRenderer, rows: Iterable[Row]) -> list[Row]:
    """Split rows into the rows that training uses.

    If the chat template or the server renders earlier messages of a row differently than they were
    written, each trained turn becomes a separate row: the prompt that a server would send, and the
    turn.
    """
    trained_rows: list[Row] = []
    for row in rows:
        if renderer.trains_turns_apart(row["messages"]):
            trained_rows += [row | {"messages": turn} for turn in _split_turns(row["messages"])]
        else:
            trained_rows.append(row)
    return trained_rows


def _split_turns(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield each trained turn with its earlier messages, which are not trained."""
    for index, message in enumerate(messages):
        if message["role"] != "assistant" or not is_trained(message):
            continue
        earlier_messages: list[Message] = [
            {**earlier, "weight": 0} if earlier["role"] == "assistant" else earlier
            for earlier in messages[:index]
        ]
        yield [*earlier_messages, message]


def encode_and_count(
    rows: Sequence[Row],
    encode_one: Callable[[Row], Item],
    progress: Progress = silent,
) -> Counted[Item]:
    """Encode rows with a function, and count the rows that the function drops.

    Args:
        rows: The rows.
        encode_one: Encodes a row, or raises `RowDropped`.
        progress: Is told how many rows are done.
    """
    items: list[Item] = []
    dropped: Counter[str] = Counter()
    first_dropped: dict[str, str] = {}
    for row_number, row in enumerate(rows, start=1):
        try:
            items.append(encode_one(row))
        except RowDropped as error:
            dropped[error.reason] += 1
            first_dropped.setdefault(error.reason, str(error))
        progress(row_number, len(rows), "rows tokenised")
    counts = {
        "in": len(rows),
        **{f"dropped_{reason}": dropped[reason] for reason in get_args(DropReason)},
        "trained": len(items),
        "dropped_share": round(dropped.total() / len(rows), 4) if rows else 0.0,
    }
    sentences = [first_dropped[reason] for reason, _ in dropped.most_common(1)]
    return Counted(items, counts, "".join(sentences))


def encode_row(renderer: ChatRenderer, row: Row, max_length: int) -> EncodedRow | None:
    """Return a row in at most `max_length` tokens, or None if it cannot be trained on."""
    try:
        return encode_row_or_raise(renderer, row, max_length)
    except RowDropped:
        return None


def encode_row_or_raise(renderer: ChatRenderer, row: Row, max_length: int) -> EncodedRow:
    """Return a row in at most `max_length` tokens.

    Args:
        renderer: The model's tokenizer and chat template.
        row: The row.
        max_length: The most tokens.

    Raises:
        RowDropped: The row cannot be trained on.
    """
    from jinja2 import TemplateError

    name = _name_row(row)
    tools = row.get("tools")
    lengths: list[int] = []

    def count_tokens(messages: list[Message]) -> int:
        lengths.append(len(renderer.token_ids(renderer.render(messages, tools))))
        return lengths[-1]

    try:
        shorter = truncate(row["messages"], count_tokens, max_length)
        messages = shorter
        if shorter is not None and len(shorter) < len(row["messages"]):
            messages = untrain_turns_without_source(row["messages"], shorter, tools or ())
        encoded = None
        if messages is not None:
            encoded = encode_conversation(renderer, messages, tools)
    except (TemplateError, TypeError, LookupError, ValueError, DataError) as error:
        raise _explain_drop(name, error) from error
    whole_tokens = lengths[0]
    if shorter is None or messages is None or encoded is None:
        raise RowDropped(
            f"{name} is longer than {max_length} tokens even if only its last exchange is kept: "
            "raise `max_length`.",
            "too_long",
            whole_tokens,
        )
    untrained = [
        message
        for message, original in zip(messages, shorter, strict=True)
        if message is not original
    ]
    if untrained and not any(encoded.trained):
        raise RowDropped(
            f"{name} is longer than {max_length} tokens, and after shortening, every remaining "
            "turn uses values that were only in the removed part: raise `max_length`.",
            "no_source",
            whole_tokens,
        )
    try:
        check_mask(encoded, renderer, messages, name, tools)
    except DataError as error:
        raise RowDropped(str(error), "not_proven", whole_tokens) from error
    untrained_calls = sum(bool(message.get("tool_calls")) for message in untrained)
    return EncodedRow(
        row_id=row["row_id"],
        encoded=encoded,
        messages=messages,
        truncated=len(messages) < len(row["messages"]),
        unsourced_calls=untrained_calls,
        unsourced_answers=len(untrained) - untrained_calls,
        whole_tokens=whole_tokens,
        tools=tools or [],
    )


def render_prompt_or_raise(renderer: ChatRenderer, row: Row, prompt: list[Message]) -> str:
    """Render the prompt of a row up to the position at which the assistant answers.

    Raises:
        RowDropped: The template fails, or it does not show a system or user message.
    """
    from jinja2 import TemplateError

    try:
        text = renderer.render(prompt, row.get("tools"), add_generation_prompt=True)
        check_prompt_shown(renderer, prompt, text)
    except (TemplateError, TypeError, LookupError, ValueError, DataError) as error:
        raise _explain_drop(_name_row(row), error) from error
    return text


def _name_row(row: Row) -> str:
    return f"Row {row['row_id']} (session {row['session_id']})"


def _explain_drop(name: str, error: Exception) -> RowDropped:
    """Return the `RowDropped` for an error of a chat template.

    A template is a program, so it may raise errors of many types.
    """
    if isinstance(error, MessageNotShown):
        return RowDropped(
            f"{name} cannot be used for training, because {error}: choose a base model whose chat "
            "template shows every system and user message, for example several system messages.",
            "not_shown",
        )
    return RowDropped(
        f"{name} cannot be rendered by the chat template ({first_line(error)}): repair the row.",
        "not_rendered",
    )
