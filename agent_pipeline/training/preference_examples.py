"""Judged completions as tokens: pairs of assistant turns for DPO, whole sessions for KTO.

The loss counts the assistant's tokens of the completion only. The losses themselves belong to
`trainers.preferences`, and which sessions are paired belongs to `datasets`.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.scoring import compute_losses
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import Message
from agent_pipeline.tokenization.encoding import (
    Counted,
    EncodedRow,
    RowDropped,
    encode_and_count,
    encode_row_or_raise,
    split_into_trained_rows,
)
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.decision_probes import is_same_decision, name_decision

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Row: TypeAlias = DatasetRow
"""A row of `preference_dataset` or `kto_dataset`, as the lake stores it."""

MAX_KIND_WEIGHT = 4.0
"""Largest weight that a kind of decision can get.

A few examples of a rare kind must not decide a training run.
"""


@dataclass(frozen=True)
class PreferenceExample:
    """One judged completion or pair of completions, as tokens.

    Attributes:
        row_id: The row of the data set.
        rows: For a pair, the chosen and the rejected completion. For a session, its completion, and
            the completion of another session behind the same prompt: KTO measures with it how far
            the model has moved.
        kind: The kind of decision; examples of each kind count the same.
        good: Whether the completion of a session was judged good.
        weight: The weight in the loss.
        reference: The log-probability of each of the two rows before training, in nats.
    """

    row_id: str
    rows: tuple[Encoded, Encoded]
    kind: str
    good: bool = True
    weight: float = 1.0
    reference: tuple[float, float] = (0.0, 0.0)


EncodeFunction = Callable[[ChatRenderer, Sequence[Row], int, Progress], Counted[PreferenceExample]]


def encode_pairs(
    renderer: ChatRenderer,
    rows: Sequence[Row],
    max_length: int,
    progress: Progress = silent,
) -> Counted[PreferenceExample]:
    """Encode the pairs of `preference_dataset` as examples.

    Each example has the first turn that differs.

    A pair is left out, and counted as `same_decision`, if both turns decide the same and the
    rejected session continues. The fault of that session came later, and the pair would teach the
    wording.

    Args:
        renderer: The renderer of the model.
        rows: The rows.
        max_length: Tokens per completion with its prompt.
        progress: Is called after each row.
    """
    telling_rows = [
        row
        for row in rows
        if len(row["rejected"]) == 1 or not is_same_decision(row["chosen"][0], row["rejected"][0])
    ]
    encoded = encode_and_count(
        telling_rows, lambda row: _encode_pair(renderer, row, max_length), progress
    )
    counts = encoded.counts | {"in": len(rows), "same_decision": len(rows) - len(telling_rows)}
    return Counted(balance_kinds(encoded.rows), counts, encoded.first_dropped)


def encode_sessions(
    renderer: ChatRenderer,
    rows: Sequence[Row],
    max_length: int,
    progress: Progress = silent,
) -> Counted[PreferenceExample]:
    """Encode the rows of `kto_dataset` as examples. Every assistant turn of a completion counts.

    If the template makes a training row of each turn, each turn is an example.

    Args:
        renderer: The renderer of the model.
        rows: The rows.
        max_length: Tokens per completion with its prompt.
        progress: Is called after each row.
    """

    def encode_completion(row: Row) -> tuple[Row, EncodedRow]:
        return row, _encode_completion(renderer, row, row["completion"], max_length)

    parts = [part for row in rows for part in _split_into_turns(renderer, row)]
    encoded = encode_and_count(parts, encode_completion, progress)
    completions = [encoded_row.encoded for _, encoded_row in encoded.rows]
    other_completions = completions[-1:] + completions[:-1]
    examples = [
        PreferenceExample(
            row["row_id"],
            (completion, join_mismatched(completion, other)),
            "good" if row["label"] else "bad",
            row["label"],
        )
        for (row, _), completion, other in zip(
            encoded.rows, completions, other_completions, strict=True
        )
    ]
    return Counted(balance_kinds(examples), encoded.counts, encoded.first_dropped)


def _split_into_turns(renderer: ChatRenderer, row: Row) -> list[Row]:
    """Split a row into one row per turn if the chat template needs this.

    Otherwise, return the row.
    """
    prompt = [message | {"weight": 0} for message in row["prompt"]]
    whole = row | {"messages": [*prompt, *row["completion"]]}
    conversations = [part["messages"] for part in split_into_trained_rows(renderer, [whole])]
    if not renderer.trains_turns_apart(whole["messages"]):
        return [row]
    return [
        row | {"prompt": messages[:-1], "completion": messages[-1:]} for messages in conversations
    ]


def _encode_pair(renderer: ChatRenderer, row: Row, max_length: int) -> PreferenceExample:
    chosen = _encode_completion(renderer, row, row["chosen"][:1], max_length)
    rejected = _encode_completion(renderer, row, row["rejected"][:1], max_length)
    # Messages are compared, not tokens: the line break before an answer may be one token together
    # with the beginning of the answer.
    if chosen.messages[:-1] != rejected.messages[:-1]:
        raise RowDropped(
            f"Pair {row['row_id']} does not fit, because shortening would give its two answers "
            f"different prompts: raise `max_length` above {max_length}.",
            "too_long",
        )
    kind = name_decision(row["chosen"][0])
    return PreferenceExample(row["row_id"], (chosen.encoded, rejected.encoded), kind)


def _encode_completion(
    renderer: ChatRenderer, row: Row, completion: list[Message], max_length: int
) -> EncodedRow:
    """Encode a prompt, which is not trained, together with its completion.

    Raises:
        RowDropped: the row is too long, or the template cannot render it.
    """
    prompt = [
        message | {"weight": 0} if message["role"] == "assistant" else message
        for message in row["prompt"]
    ]
    return encode_row_or_raise(renderer, row | {"messages": [*prompt, *completion]}, max_length)


def join_mismatched(row: Encoded, other: Encoded) -> Encoded:
    """Return a row with the prompt of one row and the completion of another row."""
    prompt_end, completion_start = row.trained.index(True), other.trained.index(True)
    return Encoded(
        row.input_ids[:prompt_end] + other.input_ids[completion_start:],
        [False] * prompt_end + other.trained[completion_start:],
        [],
    )


def balance_kinds(examples: Sequence[PreferenceExample]) -> list[PreferenceExample]:
    """Return the examples with weights that make all kinds of decisions count equally.

    No example weighs more than `MAX_KIND_WEIGHT`.
    """
    examples_by_kind = Counter(example.kind for example in examples)
    mean = len(examples) / max(len(examples_by_kind), 1)
    weights = {kind: min(MAX_KIND_WEIGHT, mean / count) for kind, count in examples_by_kind.items()}
    return [replace(example, weight=weights[example.kind]) for example in examples]


def compute_log_probs(
    model: "PreTrainedModel", examples: Sequence[PreferenceExample], progress: Progress = silent
) -> list[tuple[float, float]]:
    """Return the log-probabilities (in nats) of each example's two rows under a model in memory."""
    rows = [row for example in examples for row in example.rows]
    log_probs = [
        -(loss.loss or 0.0) * loss.trained_tokens for loss in compute_losses(model, rows, progress)
    ]
    return list(zip(log_probs[::2], log_probs[1::2], strict=True))


def set_reference(
    model: "PreTrainedModel", examples: Sequence[PreferenceExample], progress: Progress = silent
) -> list[PreferenceExample]:
    """Return the examples with a model's log-probabilities set as their reference values."""
    references = compute_log_probs(model, examples, progress)
    return [
        replace(example, reference=reference)
        for example, reference in zip(examples, references, strict=True)
    ]
