"""The varied rows of each epoch of imitation learning, as tokens.

The rows are varied again in every epoch (`datasets.variation`). A varied row that cannot be trained
on, or that would lose its beginning, is replaced by the original row, so that every epoch has the
same number of rows. Sessions are joined once for all epochs (`datasets.joining`).
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from msgspec import UNSET, UnsetType

from agent_pipeline.datasets.joining import JoinedRow, join_sessions
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.variation import Variation, VariedRow, vary_rows
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.progress import Progress, silent
from agent_pipeline.tokenization.encoding import EncodedRow, encode_row
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.report import VariationReport
from agent_pipeline.training.trainers.sft import MixedOrder


def find_variation(config: TrainingConfig, renderer: ChatRenderer) -> Variation:
    """Return what differs from row to row, by the options and the chat template.

    A template that sorts the tools renders every order of the tools in the same way. With any other
    template, the tools stand in another order in each optimizer step, so that the model does not
    learn their positions.
    """
    return Variation(
        permutes_tools=not renderer.template.sorts_tools,
        masked_names=config.masked_names,
        extra_tools=config.extra_tools,
    )


def join_rows(
    renderer: ChatRenderer, rows: Sequence[DatasetRow], config: TrainingConfig
) -> list[JoinedRow]:
    """Join a share of the rows into rows of several sessions that fit into `max_length`."""

    def fits(row: DatasetRow) -> bool:
        encoded = encode_row(renderer, row, config.max_length)
        return encoded is not None and not encoded.truncated

    return join_sessions(rows, config.joined_sessions, config.seed, fits)


@dataclass(frozen=True)
class VariedEpochs:
    """The rows of each epoch as tokens.

    Attributes:
        epochs: The rows of each epoch. Every epoch has the same rows in the same order.
        report: The counts of varied rows.
        is_varied: Whether the options vary rows. If not, there is one epoch, which is repeated.
    """

    epochs: list[list[Encoded]]
    report: VariationReport
    is_varied: bool


def vary_epochs(
    renderer: ChatRenderer,
    rows: Sequence[EncodedRow],
    mixed_in: int,
    config: TrainingConfig,
    progress: Progress = silent,
) -> VariedEpochs:
    """Vary the rows of each epoch, and encode them.

    Args:
        renderer: The model's tokenizer and chat template.
        rows: The rows as tokens.
        mixed_in: How many rows at the end of `rows` are spread evenly over each epoch.
        config: The options.
        progress: Is called after each epoch.
    """
    variation = find_variation(config, renderer)
    if not variation:
        return VariedEpochs([[row.encoded for row in rows]], VariationReport(), False)
    originals = [_restore_row(row) for row in rows]
    counts: Counter[str] = Counter()
    epochs: list[list[Encoded]] = []
    epoch_count = count_epochs(len(rows), config)
    for epoch in range(epoch_count):
        steps = list_steps(len(rows) - mixed_in, mixed_in, config, epoch)
        varied_rows = vary_rows(originals, variation, config.seed, epoch, steps)
        epochs.append(
            [
                _encode_varied(renderer, original, varied, config.max_length, counts)
                for original, varied in zip(rows, varied_rows, strict=True)
            ]
        )
        progress(epoch + 1, epoch_count, "varying rows")
    names = ("permuted", "masked", "extended", "names_in_text", "unchanged")
    report = VariationReport(
        rows=len(rows) * epoch_count,
        epochs=epoch_count,
        **{name: counts[name] for name in names},
    )
    return VariedEpochs(epochs, report, True)


def describe_variation(
    varied: VariedEpochs, joined: Sequence[JoinedRow]
) -> VariationReport | UnsetType:
    """Return the counts of varied and joined rows, or `UNSET` if no row is varied or joined."""
    sizes = [len(row.row_ids) for row in joined if len(row.row_ids) > 1]
    if not varied.is_varied and not sizes:
        return UNSET
    return msgspec.structs.replace(
        varied.report, joined_rows=len(sizes), joined_sessions=sum(sizes)
    )


def count_epochs(row_count: int, config: TrainingConfig) -> int:
    """Return the number of epochs that training begins."""
    epochs = config.num_train_epochs
    if config.max_steps:
        epochs = min(epochs, config.max_steps / math.ceil(row_count / config.step_rows))
    return max(1, math.ceil(epochs))


def list_steps(new: int, mixed_in: int, config: TrainingConfig, epoch: int) -> list[int]:
    """Return the optimizer step of each row in an epoch.

    Args:
        new: The number of new rows.
        mixed_in: The number of rows that are spread over the epoch.
        config: The options.
        epoch: The epoch.
    """
    order = MixedOrder(new, mixed_in, config.seed, shuffled=not config.in_order)
    order.set_epoch(epoch)
    steps = [0] * (new + mixed_in)
    for position, row_index in enumerate(order):
        steps[row_index] = position // config.step_rows
    return steps


def _restore_row(row: EncodedRow) -> DatasetRow:
    return {
        "row_id": row.row_id,
        "session_id": row.row_id,
        "messages": row.messages,
        "tools": row.tools,
    }


def _encode_varied(
    renderer: ChatRenderer,
    original: EncodedRow,
    varied: VariedRow,
    max_length: int,
    counts: Counter[str],
) -> Encoded:
    """Return the tokens of a varied row, or of the original row if the varied row does not fit.

    Args:
        renderer: The model's tokenizer and chat template.
        original: The original row.
        varied: The varied row.
        max_length: The most tokens.
        counts: Receives what was changed.
    """
    if not varied.is_changed:
        counts["names_in_text"] += varied.changes["names_in_text"]
        return original.encoded
    encoded = encode_row(renderer, varied.row, max_length)
    if encoded is None or encoded.truncated:
        counts["unchanged"] += 1
        return original.encoded
    counts.update(varied.changes)
    return encoded.encoded
