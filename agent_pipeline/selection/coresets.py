"""A coreset: the chosen rows of a data set, with a word on every row, chosen or not.

Names and defaults of `CoresetSelector` are SAGE's (01 B3); the strategies are in `strategies`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.selection.clusters import neighbourhood
from agent_pipeline.selection.embeddings import conversation_text, embed
from agent_pipeline.selection.strategies import LOSS_RATIO, NEED_LOSSES, STRATEGIES, Pool
from agent_pipeline.traces.session import canonical_json, sha256_of

if TYPE_CHECKING:
    import numpy as np

LossModel = Callable[[list[dict[str, Any]]], Sequence[float | None]]
"""Gives each sample's loss (None: it has none), in order: `training.losses.row_losses` behind a lambda, say."""


class Choice(msgspec.Struct, frozen=True):
    """What became of one row. `rank` counts from 1 over chosen rows; `score` is what the strategy ranked by; `reason` in words."""

    row_id: str
    chosen: bool
    rank: int | None
    score: float | None
    reason: str


def select(
    rows: Sequence[dict[str, Any]],
    strategy: str,
    target_size: int,
    seed: int = 0,
    losses: Mapping[str, float | None] | None = None,
    loss_ratio: float = LOSS_RATIO,
) -> list[Choice]:
    """A choice about **every** row, sorted by row id; the same whatever the order of `rows`.

    `rows` need `row_id` and `messages`; `losses` by row id, for the strategies that look at loss. Of identical rows (messages and
    tools) the first by id stands for all. Up to `target_size` rows are chosen: fewer only where fewer are distinct, or have a loss.

    Raises `SettingsError` (unknown strategy, size below 1, ratio not in 0..1), `DataError` (no losses where they are needed, a row id
    twice).
    """
    check_settings(strategy, target_size, loss_ratio)
    rows = sorted(rows, key=lambda row: row["row_id"])
    ids = [row["row_id"] for row in rows]
    if twice := next((a for a, b in pairwise(ids) if a == b), None):
        raise DataError(f"The row id '{twice}' is given to more than one row: make the ids of the data set unique.")
    if len(rows) <= target_size:
        return [Choice(row_id, True, rank, None, "all rows kept: n ≤ target size") for rank, row_id in enumerate(ids, 1)]
    same_as = _first_of_each(rows)
    distinct = [row for row in rows if row["row_id"] not in same_as]
    pool = Pool(
        [row["row_id"] for row in distinct],
        [conversation_text(row["messages"]) for row in distinct],
        [losses.get(row["row_id"]) for row in distinct] if losses else None,
        seed,
        min(target_size, len(distinct)),
        loss_ratio,
    )
    ranking = STRATEGIES[strategy](pool)
    found = {
        pool.ids[index]: Choice(pool.ids[index], True, rank, score, reason) for rank, (index, score, reason) in enumerate(ranking.picks, 1)
    }
    for index, row_id in enumerate(pool.ids):
        found.setdefault(row_id, Choice(row_id, False, None, None, ranking.passed.get(index, ranking.otherwise)))
    for row_id, first in same_as.items():
        found[row_id] = Choice(row_id, False, None, None, f"identical to row {first}")
    return [found[row_id] for row_id in ids]


def check_settings(strategy: str, target_size: int, loss_ratio: float = LOSS_RATIO) -> None:
    """Raises `SettingsError` in a sentence."""
    if strategy not in STRATEGIES:
        raise SettingsError(f"There is no coreset strategy '{strategy}': choose one of {', '.join(STRATEGIES)}.")
    if target_size < 1:
        raise SettingsError(f"A coreset of {target_size} rows was asked for: set coreset_target_size to 1 or more.")
    if not 0 <= loss_ratio <= 1:
        raise SettingsError(f"The loss_ratio of a coreset is {loss_ratio}: set it to a share from 0 to 1.")


def _first_of_each(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Row id → id of the first row with the same messages and tools, for all but the first ones."""
    firsts: dict[str, str] = {}
    same: dict[str, str] = {}
    for row in rows:
        first = firsts.setdefault(sha256_of([row["messages"], row.get("tools") or []]), row["row_id"])
        if first != row["row_id"]:
            same[row["row_id"]] = first
    return same


@dataclass
class CoresetSelector:
    """The selection as an object, for samples that need no row ids: dicts with `messages` and, maybe, `tools`."""

    strategy: str = "hybrid"
    target_size: int = 1000
    loss_ratio: float = LOSS_RATIO
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self.strategy, self.target_size, self.loss_ratio)

    def select(self, samples: Sequence[dict[str, Any]], model: LossModel | None = None) -> list[dict[str, Any]]:
        """The chosen samples, in the order given. Raises `DataError` where the strategy needs a model and there is none."""
        rows = _with_ids(samples)
        losses = None
        if self.strategy in NEED_LOSSES and len(rows) > self.target_size:
            losses = {row["row_id"]: loss for row, loss in zip(rows, self.compute_losses(samples, model), strict=True)}
        chosen = {
            choice.row_id for choice in select(rows, self.strategy, self.target_size, self.seed, losses, self.loss_ratio) if choice.chosen
        }
        return [sample for sample, row in zip(samples, rows, strict=True) if row["row_id"] in chosen]

    def compute_losses(self, samples: Sequence[dict[str, Any]], model: LossModel | None) -> list[float | None]:
        """Each sample's loss under `model`, in order (null where it has none). Raises `DataError`."""
        if not callable(model):
            raise DataError(
                f"The coreset strategy '{self.strategy}' needs a model that gives each sample's loss: pass model, a function "
                "from samples to losses, or choose 'diversity' or 'random'."
            )
        losses = list(model(list(samples)))
        if len(losses) != len(samples):
            raise DataError(f"The model gave {len(losses)} losses for {len(samples)} samples: give one for each, None where there is none.")
        return losses

    def compute_diversity(self, samples: Sequence[dict[str, Any]]) -> "np.ndarray":
        """(n,) float32, 0 to about 1: how unlike its five nearest samples each one is (one minus mean cosine similarity)."""
        rows = _with_ids(samples)
        order = sorted(range(len(rows)), key=lambda i: rows[i]["row_id"])
        scores = 1 - neighbourhood(embed([conversation_text(rows[i]["messages"]) for i in order], self.seed), self.seed)
        back = {index: place for place, index in enumerate(order)}
        return scores[[back[i] for i in range(len(rows))]]


def _with_ids(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples as rows: their own `row_id`, else the hash of their content and how many like it came before."""
    seen: dict[str, int] = {}
    rows = []
    for sample in samples:
        row_id = sample.get("row_id")
        if row_id is None:
            content = sha256_of(canonical_json([sample["messages"], sample.get("tools") or []]))
            seen[content] = seen.get(content, -1) + 1
            row_id = f"{content}-{seen[content]:06d}"
        rows.append({**sample, "row_id": row_id})
    return rows
