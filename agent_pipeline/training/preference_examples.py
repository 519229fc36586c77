"""Judged completions as tokens: pairs for DPO, whole sessions for KTO. The loss counts the assistant's tokens of the completion only."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.scoring import encoded_losses
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.encoding import (
    Counted,
    EncodedRow,
    RowDropped,
    as_trained,
    encode_or_raise,
    encoded_or_counted,
)
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.decision_probes import decision, same_decision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Row = dict[str, Any]

MAX_KIND_WEIGHT = 4.0
"""The largest weight of a kind of decision: a few examples of a rare kind must not decide a training run."""


@dataclass(frozen=True)
class Example:
    """What one judgment is about. `rows` of a pair: the chosen and the rejected completion; of a session: the completion, and another
    session's after the same prompt, from which KTO estimates how far the model has moved. `reference`: the log-probability of each."""

    row_id: str
    rows: tuple[Encoded, Encoded]
    kind: str
    good: bool = True
    weight: float = 1.0
    reference: tuple[float, float] = (0.0, 0.0)


Encode = Callable[[ChatRenderer, Sequence[Row], int, Progress], Counted[Example]]


def encode_pairs(
    renderer: ChatRenderer,
    rows: Sequence[Row],
    max_length: int,
    progress: Progress = silent,
) -> Counted[Example]:
    """Rows of `preference_dataset`, one turn a side: the first that differs.

    A pair is left out, and counted as `same_decision`, where both turns decide the same and the rejected session goes on: its fault came
    later, and the pair would teach the wording.
    """
    telling = [
        row
        for row in rows
        if len(row["rejected"]) == 1 or not same_decision(row["chosen"][0], row["rejected"][0])
    ]
    encoded = encoded_or_counted(telling, lambda row: _pair(renderer, row, max_length), progress)
    counts = encoded.counts | {"in": len(rows), "same_decision": len(rows) - len(telling)}
    return Counted(balanced(encoded.rows), counts, encoded.first_dropped)


def encode_sessions(
    renderer: ChatRenderer,
    rows: Sequence[Row],
    max_length: int,
    progress: Progress = silent,
) -> Counted[Example]:
    """Rows of `kto_dataset`: every assistant's turn of the completion counts (by itself, where each turn is a row of its own)."""

    def session(row: Row) -> tuple[Row, EncodedRow]:
        return row, _completed(renderer, row, row["completion"], max_length)

    encoded = encoded_or_counted(
        [each for row in rows for each in _as_trained(renderer, row)], session, progress
    )
    completions = [each.encoded for _, each in encoded.rows]
    examples = [
        Example(
            row["row_id"],
            (own, mismatched(own, other)),
            "good" if row["label"] else "bad",
            row["label"],
        )
        for (row, _), own, other in zip(
            encoded.rows, completions, completions[-1:] + completions[:-1], strict=True
        )
    ]
    return Counted(balanced(examples), encoded.counts, encoded.first_dropped)


def _as_trained(renderer: ChatRenderer, row: Row) -> list[Row]:
    whole = row | {
        "messages": [*(message | {"weight": 0} for message in row["prompt"]), *row["completion"]]
    }
    turns = [each["messages"] for each in as_trained(renderer, [whole])]
    return (
        [row | {"prompt": each[:-1], "completion": each[-1:]} for each in turns]
        if renderer.trains_turns_apart(whole["messages"])
        else [row]
    )


def _pair(renderer: ChatRenderer, row: Row, max_length: int) -> Example:
    chosen, rejected = (
        _completed(renderer, row, row[side][:1], max_length) for side in ("chosen", "rejected")
    )
    # Messages, not tokens: the line break before an answer may make one token with those that it begins with.
    if chosen.messages[:-1] != rejected.messages[:-1]:
        raise RowDropped(
            f"Pair {row['row_id']} was shortened to two prompts: raise max_length above {max_length}.",
            "too_long",
        )
    return Example(row["row_id"], (chosen.encoded, rejected.encoded), decision(row["chosen"][0]))


def _completed(
    renderer: ChatRenderer, row: Row, completion: list[Message], max_length: int
) -> EncodedRow:
    """A prompt, of which nothing is trained, and its completion; proved as every row is. Raises RowDropped."""
    prompt = [
        message | {"weight": 0} if message["role"] == "assistant" else message
        for message in row["prompt"]
    ]
    return encode_or_raise(renderer, row | {"messages": [*prompt, *completion]}, max_length)


def mismatched(row: Encoded, other: Encoded) -> Encoded:
    """The prompt of one row with the completion of another."""
    start, begins = row.trained.index(True), other.trained.index(True)
    return Encoded(
        row.input_ids[:start] + other.input_ids[begins:],
        [False] * start + other.trained[begins:],
        [],
    )


def balanced(examples: Sequence[Example]) -> list[Example]:
    """Return the examples with weights under which each kind counts the same, up to a limit.

    No example weighs more than `MAX_KIND_WEIGHT`.
    """
    examples_by_kind = Counter(example.kind for example in examples)
    mean = len(examples) / max(len(examples_by_kind), 1)
    weights = {kind: min(MAX_KIND_WEIGHT, mean / count) for kind, count in examples_by_kind.items()}
    return [replace(example, weight=weights[example.kind]) for example in examples]


def log_probs(
    model: "PreTrainedModel", examples: Sequence[Example], progress: Progress = silent
) -> list[tuple[float, float]]:
    """Of each example's two rows, in nats, under a model in memory."""
    rows = [row for example in examples for row in example.rows]
    values = [
        -(each.loss or 0.0) * each.trained_tokens for each in encoded_losses(model, rows, progress)
    ]
    return list(zip(values[::2], values[1::2], strict=True))


def with_reference(
    model: "PreTrainedModel", examples: Sequence[Example], progress: Progress = silent
) -> list[Example]:
    """The examples with the model's log-probabilities as their reference."""
    values = log_probs(model, examples, progress)
    return [
        replace(example, reference=value) for example, value in zip(examples, values, strict=True)
    ]
