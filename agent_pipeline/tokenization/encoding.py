"""A data set as tokens: each row shortened to fit, encoded and checked; a row that cannot be trained on is counted by its reason."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, TypeVar, get_args

from agent_pipeline.errors import DataError, first_line
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import THOUGHT, Message, is_trained
from agent_pipeline.tokenization.length_check import row_tokens
from agent_pipeline.tokenization.loss_masks import Encoded, check, encode
from agent_pipeline.tokenization.truncation import truncate, untrain_turns_without_source

Item = TypeVar("Item")
DropReason = Literal["too_long", "no_source", "not_rendered", "not_proven"]
"""Why a row falls out: its last exchange alone is too long; after shortening, all its turns state values that were cut away; the
chat template fails on it; its mask cannot be proven on its tokens."""


class RowDropped(DataError):
    """A row that cannot be trained on. `reason` says why, the text says it in a sentence."""

    def __init__(self, text: str, reason: DropReason, tokens: int = 0) -> None:
        super().__init__(text)
        self.reason = reason
        self.tokens = tokens
        """The length of the whole row; 0 if it is unknown."""


@dataclass(frozen=True)
class EncodedRow:
    """A row that fits: its tokens, and the messages they show (fewer than the row's, where it was too long).

    `unsourced_calls` and `unsourced_answers`: turns that are not trained, because what they call with or tell was cut away.
    """

    row_id: str
    encoded: Encoded
    messages: list[Message]
    truncated: bool
    unsourced_calls: int
    unsourced_answers: int = 0
    whole_tokens: int = 0
    """The length of the row before it was shortened."""


class Counted(NamedTuple, Generic[Item]):
    """The rows that can be trained on, in order; the counts; and the first dropped row's sentence ("" where none was dropped).

    `counts` has `in`, `dropped_<reason>` for each `DropReason`, `trained` (in = all dropped + trained) and `dropped_share`, from 0 to 1.
    """

    rows: list[Item]
    counts: dict[str, Any]
    first_dropped: str


def encode_rows(
    renderer: ChatRenderer,
    rows: list[dict[str, Any]],
    max_length: int,
    progress: Progress = silent,
) -> Counted[EncodedRow]:
    """Encode the rows (`as_trained`) in at most `max_length` tokens each.

    The counts also have `tokens` (`fit.row_tokens`), `truncated`, `unsourced_calls`, `unsourced_answers` and `special_literals` (rows whose
    texts hold special tokens: they are trained as text). If messages have thoughts, they have `reasoning_trained` or
    `reasoning_not_rendered`: turns with a thought that is trained, or that the chat template does not show.
    """
    thoughts = sum(
        THOUGHT in message and is_trained(message) for row in rows for message in row["messages"]
    )
    lengths: list[int] = []

    def measured(row: dict[str, Any]) -> EncodedRow:
        try:
            encoded = encode_or_raise(renderer, row, max_length)
        except RowDropped as error:
            lengths.extend([error.tokens] if error.tokens else [])
            raise
        lengths.append(encoded.whole_tokens)
        return encoded

    encoded = encoded_or_counted(as_trained(renderer, rows), measured, progress)
    shortened: dict[str, Any] = {
        "tokens": row_tokens(lengths),
        "truncated": sum(row.truncated for row in encoded.rows),
        "unsourced_calls": sum(row.unsourced_calls for row in encoded.rows),
        "unsourced_answers": sum(row.unsourced_answers for row in encoded.rows),
        "special_literals": sum(row.encoded.literals > 0 for row in encoded.rows),
    }
    if thoughts and renderer.template.reasoning:
        shortened["reasoning_trained"] = sum(THOUGHT in row.messages[-1] for row in encoded.rows)
    elif thoughts:
        shortened["reasoning_not_rendered"] = thoughts
    return Counted(encoded.rows, encoded.counts | shortened, encoded.first_dropped)


def as_trained(renderer: ChatRenderer, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows as they are trained.

    If a row's past is shown otherwise than it was said, by the chat template or by the server, each trained turn becomes a row: what is
    asked there when the model is served, and the turn.
    """
    trained = []
    for row in rows:
        if renderer.trains_turns_apart(row["messages"]):
            trained += [row | {"messages": messages} for messages in _turns(row["messages"])]
        else:
            trained.append(row)
    return trained


def _turns(messages: list[Message]) -> Iterator[list[Message]]:
    """Yield each trained turn with what was said before it, in which nothing is trained."""
    for index, message in enumerate(messages):
        if message["role"] == "assistant" and is_trained(message):
            before: list[Message] = [
                {**earlier, "weight": 0} if earlier["role"] == "assistant" else earlier
                for earlier in messages[:index]
            ]
            yield [*before, message]


def encoded_or_counted(
    rows: Sequence[dict[str, Any]],
    encode_one: Callable[[dict[str, Any]], Item],
    progress: Progress = silent,
) -> Counted[Item]:
    """What `encode_one` makes of each row; rows for which it raises `RowDropped` are counted by its reason."""
    encoded: list[Item] = []
    dropped: Counter[str] = Counter()
    first_dropped = ""
    for number, row in enumerate(rows, 1):
        try:
            encoded.append(encode_one(row))
        except RowDropped as error:
            dropped[error.reason] += 1
            first_dropped = first_dropped or str(error)
        progress(number, len(rows), "rows tokenised")
    counts = {
        "in": len(rows),
        **{f"dropped_{reason}": dropped[reason] for reason in get_args(DropReason)},
        "trained": len(encoded),
        "dropped_share": round(dropped.total() / len(rows), 4) if rows else 0.0,
    }
    return Counted(encoded, counts, first_dropped)


def encode_row(renderer: ChatRenderer, row: dict[str, Any], max_length: int) -> EncodedRow | None:
    """The row in at most `max_length` tokens; None where it cannot be trained on."""
    try:
        return encode_or_raise(renderer, row, max_length)
    except RowDropped:
        return None


def encode_or_raise(renderer: ChatRenderer, row: dict[str, Any], max_length: int) -> EncodedRow:
    """The row in at most `max_length` tokens.

    Raises:
        RowDropped: it cannot be trained on.
    """
    from jinja2 import TemplateError

    name, tools = f"Row {row['row_id']} (session {row['session_id']})", row.get("tools")

    lengths: list[int] = []

    def length(messages: list[Message]) -> int:
        lengths.append(len(renderer.token_ids(renderer.render(messages, tools))))
        return lengths[-1]

    try:
        shorter = truncate(row["messages"], length, max_length)
        messages = shorter
        if shorter is not None and len(shorter) < len(row["messages"]):
            messages = untrain_turns_without_source(row["messages"], shorter, tools or ())
        encoded = encode(renderer, messages, tools) if messages is not None else None
    except (
        TemplateError,
        TypeError,
        LookupError,
        ValueError,
        DataError,
    ) as error:  # a template is a program
        raise RowDropped(
            f"{name} cannot be rendered by the chat template: {first_line(error)}; repair it.",
            "not_rendered",
        ) from error
    if shorter is None or messages is None or encoded is None:
        raise RowDropped(
            f"{name} is longer than {max_length} tokens in its last exchange alone: raise max_length.",
            "too_long",
            lengths[0],
        )
    untrained = [
        message
        for message, original in zip(messages, shorter, strict=True)
        if message is not original
    ]
    if untrained and not any(encoded.trained):
        raise RowDropped(
            f"{name} is longer than {max_length} tokens, and every turn that is left states values that were cut away: raise max_length.",
            "no_source",
            lengths[0],
        )
    try:
        check(encoded, renderer, messages, name)
    except DataError as error:
        raise RowDropped(str(error), "not_proven", lengths[0]) from error
    calls = sum(bool(message.get("tool_calls")) for message in untrained)
    return EncodedRow(
        row["row_id"],
        encoded,
        messages,
        len(messages) < len(row["messages"]),
        calls,
        len(untrained) - calls,
        lengths[0],
    )
