"""`CoresetSelector`: the selection of a coreset from samples in memory, with the names of SAGE.

The strategies belong to `selection`.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from agent_pipeline.compat.models import MAX_LENGTH, load_answerer
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.engine.scoring import compute_sft_losses
from agent_pipeline.errors import DataError
from agent_pipeline.selection.candidates import Candidates
from agent_pipeline.selection.clusters import measure_neighbourhood
from agent_pipeline.selection.coresets import CoresetOptions, select
from agent_pipeline.selection.embeddings import embed, format_conversation
from agent_pipeline.selection.pool import LOSS_RATIO
from agent_pipeline.selection.strategies import load_strategy
from agent_pipeline.sessions.session import hash_json

Sample: TypeAlias = DatasetRow
LossModel = Callable[[list[Sample]], Sequence[float | None]]
"""A function that returns the loss of each sample in order, or None for a sample without a loss."""


@dataclass
class CoresetSelector:
    """A selector that chooses a coreset from samples in memory.

    A sample has `messages`, and may have `tools` and `row_id`.

    Attributes:
        strategy: The strategy.
        target_size: The number of samples to select.
        loss_ratio: The share of samples that `hybrid` selects by their loss.
        seed: The seed of the strategy.

    Raises:
        SettingsError: The strategy does not exist, or a number is out of range.
    """

    strategy: str = "hybrid"
    target_size: int = 1000
    loss_ratio: float = LOSS_RATIO
    seed: int = 0

    def __post_init__(self) -> None:
        self._options = CoresetOptions(
            strategy=self.strategy,
            target_size=self.target_size,
            loss_ratio=self.loss_ratio,
            seed=self.seed,
        )

    def select(self, samples: Sequence[Sample], model: object = None) -> list[Sample]:
        """Return the selected samples in their original order.

        If the strategy tends to select noise, a `UserWarning` is issued.

        Args:
            samples: The samples.
            model: The model for strategies that need losses; see `compute_losses`.

        Raises:
            DataError: The strategy needs a model, and `model` is not a model.
        """
        rows, strategy = _add_row_ids(samples), load_strategy(self.strategy)
        losses = None
        if len(rows) > self.target_size:
            if strategy.warning:
                message = f"The coreset strategy '{self.strategy}': {strategy.warning}."
                warnings.warn(message, stacklevel=2)
            if strategy.needs_losses:
                row_ids = [row["row_id"] for row in rows]
                losses = dict(zip(row_ids, self.compute_losses(samples, model), strict=True))
        index = select(Candidates.of(lambda: rows), self._options, losses).index
        selected = set(index.filter(index["chosen"])["row_id"].to_pylist())
        return [
            sample for sample, row in zip(samples, rows, strict=True) if row["row_id"] in selected
        ]

    def compute_losses(self, samples: Sequence[Sample], model: object) -> list[float | None]:
        """Return the mean loss per trained token of each sample, in nats.

        Args:
            samples: The samples.
            model: A model of transformers in memory, its name or path, or a `LossModel`.

        Returns:
            The losses, in order. A sample without trained tokens has the loss None.

        Raises:
            DataError: `model` is not a model, or returns a wrong number of losses.
            ModelError: The model cannot be loaded.
        """
        answerer = load_answerer(model)
        if answerer is not None:
            rows: list[Sample] = [
                {"tools": [], "session_id": row["row_id"], **row} for row in _add_row_ids(samples)
            ]
            row_losses = compute_sft_losses(answerer.model, answerer.renderer, rows, MAX_LENGTH)
            return [row_loss.loss for row_loss in row_losses]
        if not callable(model):
            raise DataError(
                f"The strategy '{self.strategy}' needs the loss of each sample: pass a `model` (a "
                "model of transformers, its name, or a function that returns losses), or choose "
                "'diversity' or 'random'."
            )
        losses = list(model(list(samples)))
        if len(losses) != len(samples):
            raise DataError(
                f"The model returned {len(losses)} losses for {len(samples)} samples: return one "
                f"loss per sample, or None for a sample without a loss."
            )
        return losses

    def compute_diversity(self, samples: Sequence[Sample]) -> np.ndarray:
        """Return how different each sample is from its five nearest samples.

        Returns:
            One minus the mean cosine similarity, from 0 to about 1, of shape (n,) and type float32.
        """
        # The samples are sorted by id, so that the order of the samples changes nothing.
        order = np.argsort([row["row_id"] for row in _add_row_ids(samples)], kind="stable")
        texts = [format_conversation(samples[index]["messages"]) for index in order]
        scores = np.empty(len(samples), dtype=np.float32)
        scores[order] = 1 - measure_neighbourhood(embed(texts, self.seed), self.seed)
        return scores


def _add_row_ids(samples: Sequence[Sample]) -> list[Sample]:
    """Return samples, each with a `row_id`.

    A sample without a `row_id` gets the hash of its content, and how many equal samples precede it.
    """
    occurrences: Counter[str] = Counter()
    rows: list[Sample] = []
    for sample in samples:
        row_id = str(sample.get("row_id") or "")
        if not row_id:
            content = hash_json([sample["messages"], sample.get("tools") or []])
            row_id = f"{content}-{occurrences[content]:06d}"
            occurrences[content] += 1
        rows.append({**sample, "row_id": row_id})
    return rows
