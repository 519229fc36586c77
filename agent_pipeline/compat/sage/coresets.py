"""`CoresetSelector`: the choice of training rows as an object, for samples that need no row ids
(SAGE's names and defaults).
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from agent_pipeline.compat.models import MAX_LENGTH, answering_of
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
"""Gives each sample's loss in order; `None` where it has none."""


@dataclass
class CoresetSelector:
    """Chooses samples: dicts with `messages` and, maybe, `tools` and `row_id`.

    Raises:
        SettingsError: the strategy does not exist, or a number cannot work.
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
        """The chosen samples, in the order given. `model` as for `compute_losses`. Warns
        (`UserWarning`) of a strategy that picks noise.

        Raises:
            DataError: the strategy needs a model and there is none.
        """
        rows, strategy = _with_ids(samples), load_strategy(self.strategy)
        has_to_choose = len(rows) > self.target_size
        if strategy.warning and has_to_choose:
            warnings.warn(
                f"The coreset strategy '{self.strategy}': {strategy.warning}.", stacklevel=2
            )
        losses = None
        if strategy.needs_losses and has_to_choose:
            losses = dict(
                zip(
                    (row["row_id"] for row in rows),
                    self.compute_losses(samples, model),
                    strict=True,
                )
            )
        index = select(Candidates.of(lambda: rows), self._options, losses).index
        chosen = set(index.filter(index["chosen"])["row_id"].to_pylist())
        return [
            sample for sample, row in zip(samples, rows, strict=True) if row["row_id"] in chosen
        ]

    def compute_losses(self, samples: Sequence[Sample], model: object) -> list[float | None]:
        """Each sample's mean loss over its trained tokens under `model` (nats), in order; `None`
        where it has no such token.

        `model`: a model of transformers in memory, the name or path of one, or a function from
        samples to losses (`LossModel`).

        Raises:
            DataError: `model` is none of these, or gives another number of losses.
            ModelError: it cannot be loaded.
        """
        if (answering := answering_of(model)) is not None:
            rows: list[Sample] = [
                {"tools": [], "session_id": row["row_id"], **row} for row in _with_ids(samples)
            ]
            return [
                loss.loss
                for loss in compute_sft_losses(
                    answering.model, answering.renderer, rows, MAX_LENGTH
                )
            ]
        if not callable(model):
            raise DataError(
                f"The coreset strategy '{self.strategy}' needs a model that gives each sample's "
                f"loss: pass model, a model of transformers, "
                "its name, or a function from samples to losses, or choose 'diversity' or 'random'."
            )
        losses = list(model(list(samples)))
        if len(losses) != len(samples):
            raise DataError(
                f"The model gave {len(losses)} losses for {len(samples)} samples: give one for "
                f"each, None where there is none."
            )
        return losses

    def compute_diversity(self, samples: Sequence[Sample]) -> np.ndarray:
        """(n,) float32, 0 to about 1: how unlike its five nearest samples each one is (one minus
        the mean cosine similarity).
        """
        # In the order of ids, so that a sample's score does not depend on where it stands.
        order = np.argsort([row["row_id"] for row in _with_ids(samples)], kind="stable")
        scores = np.empty(len(samples), dtype=np.float32)
        texts = [format_conversation(samples[index]["messages"]) for index in order]
        scores[order] = 1 - measure_neighbourhood(embed(texts, self.seed), self.seed)
        return scores


def _with_ids(samples: Sequence[Sample]) -> list[Sample]:
    """Samples as rows: with their own `row_id`, else the hash of their content and how many like it
    came before.
    """
    seen: Counter[str] = Counter()
    rows: list[Sample] = []
    for sample in samples:
        row_id = str(sample.get("row_id") or "")
        if not row_id:
            content = hash_json([sample["messages"], sample.get("tools") or []])
            row_id = f"{content}-{seen[content]:06d}"
            seen[content] += 1
        rows.append({**sample, "row_id": row_id})
    return rows
