"""A coreset: the chosen rows of a data set, with a word on every row, chosen or not.

Names and defaults of `CoresetSelector` are SAGE's (01 B3); the strategies are found by `registry`.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.selection.clusters import neighbourhood
from agent_pipeline.selection.dedup import duplicates, reasons
from agent_pipeline.selection.embeddings import Embed, conversation_text, embed
from agent_pipeline.selection.pool import LOSS_RATIO, MIN_SCORE, Pool
from agent_pipeline.selection.registry import strategy as named
from agent_pipeline.sessions.session import Message, is_learnt, sha256_of, tool_calls

if TYPE_CHECKING:
    import numpy as np

    from agent_pipeline.training.losses import RowLoss

LossModel = Callable[[list[dict[str, Any]]], Sequence[float | None]]
"""Gives each sample's loss (None: it has none), in order."""

MAX_WANTED = 512
"""targeted: more wanted examples than this are thinned by hash; their rounds would hardly differ."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


class Choice(msgspec.Struct, frozen=True):
    """What became of one row. `rank` counts from 1 over chosen rows; `score` is what the strategy ranked by; `reason` in words."""

    row_id: str
    chosen: bool
    rank: int | None
    score: float | None
    reason: str


@dataclass(frozen=True, kw_only=True)
class Options:
    """What may be known of rows beside their text, and how a choice is made.

    `losses` and `lengths` (tokens of the assistant; counted in words where a row has none) are by row id. `near`: rows whose words are at
    least so alike (Jaccard) are duplicates, left out before anything is chosen; null: only identical rows are, and only where not all rows
    are taken. `min_score`: rows judged worse are out of `diversity` and `hybrid`; a row without a score is not: curation let it through.
    `wanted` are rows of the select split. `embed` places texts in space.
    """

    losses: Mapping[str, float | None] | None = None
    lengths: Mapping[str, int] | None = None
    loss_ratio: float = LOSS_RATIO
    loss_band: tuple[float, float] = (0.25, 0.75)
    min_score: float = MIN_SCORE
    near: float | None = None
    wanted: Sequence[Mapping[str, Any]] = ()
    embed: Embed | None = None

    def checked(self) -> "Options":
        """Itself. Raises `SettingsError` in a sentence."""
        if not 0 <= self.loss_ratio <= 1:
            raise SettingsError(f"The loss_ratio of a coreset is {self.loss_ratio}: set it to a share from 0 to 1.")
        if not 0 <= self.min_score <= 1:
            raise SettingsError(f"The min_score of a coreset is {self.min_score}: set it to a score from 0 to 1.")
        low, high = self.loss_band
        if not 0 <= low < high <= 1:
            raise SettingsError(f"The loss_band of a coreset is {low} to {high}: set two shares from 0 to 1, the lower first.")
        if strange := sorted({str(row["split"]) for row in self.wanted if row.get("split", "select") != "select"}):
            raise SettingsError(
                f"Wanted examples of the split {', '.join(strange)} were given: take them from the select split; what is tested on "
                "must not choose what is trained on."
            )
        return self


def select(
    rows: Sequence[Mapping[str, Any]],
    strategy: str,
    target_size: int,
    seed: int = 0,
    losses: Mapping[str, float | None] | None = None,
    loss_ratio: float | None = None,
    options: Options | None = None,
) -> list[Choice]:
    """A choice about **every** row, sorted by row id; the same whatever the order of `rows`.

    `rows` need `row_id` and `messages`, and may have `score` and `created_at`. `losses` and `loss_ratio`, where given, are short for the
    options of that name. Of identical rows (what was said and done is the same) one stands for all. Up to `target_size` rows are chosen:
    fewer only where fewer are distinct, or have the loss or the score that the strategy needs.

    Raises `SettingsError` (unknown strategy, an option out of range), `DataError` (no losses where they are needed, a row id twice).
    """
    short: dict[str, Any] = {name: value for name, value in (("losses", losses), ("loss_ratio", loss_ratio)) if value is not None}
    options = replace(options or Options(), **short).checked()
    found = check_settings(strategy, target_size, options.loss_ratio)
    rows = sorted(rows, key=lambda row: row["row_id"])
    ids = [row["row_id"] for row in rows]
    if twice := next((a for a, b in pairwise(ids) if a == b), None):
        raise DataError(f"The row id '{twice}' is given to more than one row: make the ids of the data set unique.")
    all_fit = len(rows) <= target_size
    same = {} if all_fit and options.near is None else reasons(duplicates(rows, options.near, seed=seed).found)
    distinct = [row for row in rows if row["row_id"] not in same]
    choices = {row_id: Choice(row_id, False, None, None, reason) for row_id, reason in same.items()}
    if all_fit:
        choices |= {
            row["row_id"]: Choice(row["row_id"], True, rank, None, "all rows kept: n ≤ target size") for rank, row in enumerate(distinct, 1)
        }
        return [choices[row_id] for row_id in ids]
    pool = pool_of(distinct, min(target_size, len(distinct)), seed, options)
    ranking = found.choose(pool)
    for rank, (index, score, reason) in enumerate(ranking.picks, 1):
        choices[pool.ids[index]] = Choice(pool.ids[index], True, rank, score, reason)
    for index, row_id in enumerate(pool.ids):
        choices.setdefault(row_id, Choice(row_id, False, None, None, ranking.passed.get(index, ranking.otherwise)))
    return [choices[row_id] for row_id in ids]


def pool_of(rows: Sequence[Mapping[str, Any]], size: int, seed: int, options: Options) -> Pool:
    """The pool of distinct rows that are sorted by id."""
    ids = [row["row_id"] for row in rows]
    texts = [conversation_text(row["messages"]) for row in rows]
    scores = [row.get("score") for row in rows]
    lengths = options.lengths or {}
    wanted = sorted(options.wanted, key=lambda row: sha256_of(row["row_id"]))[:MAX_WANTED]
    wanted_texts = [conversation_text(row["messages"]) for row in sorted(wanted, key=lambda row: row["row_id"])]
    together: list[np.ndarray] = []

    def vectors() -> "np.ndarray":
        if not together:  # rows and wanted examples must be in one space
            together.append((options.embed or (lambda given: embed(given, seed)))([*texts, *wanted_texts]))
        return together[0]

    return Pool(
        ids,
        size,
        embed=lambda: vectors()[: len(texts)],
        losses=[options.losses.get(row_id) for row_id in ids] if options.losses else None,
        scores=scores if any(score is not None for score in scores) else None,
        lengths=[lengths[row["row_id"]] if row["row_id"] in lengths else assistant_words(row["messages"]) for row in rows],
        groups=[group(row) for row in rows],
        wanted=(lambda: vectors()[len(texts) :]) if wanted_texts else None,
        seed=seed,
        loss_ratio=options.loss_ratio,
        min_score=options.min_score,
        loss_band=options.loss_band,
    )


def check_settings(strategy: str, target_size: int, loss_ratio: float = LOSS_RATIO) -> Any:
    """The strategy. Raises `SettingsError` in a sentence."""
    found = named(strategy)
    if target_size < 1:
        raise SettingsError(f"A coreset of {target_size} rows was asked for: set coreset_target_size to 1 or more.")
    if not 0 <= loss_ratio <= 1:
        raise SettingsError(f"The loss_ratio of a coreset is {loss_ratio}: set it to a share from 0 to 1.")
    return found


def assistant_words(messages: Sequence[Message]) -> int:
    """Words and marks of what the assistant said and called, in turns that are learnt: its tokens, roughly, where no tokenizer has
    counted them."""
    said = [message for message in messages if message["role"] == "assistant" and is_learnt(message)]
    return len(_TOKEN.findall(conversation_text(said)))


def group(row: Mapping[str, Any]) -> str:
    """Whose work a row is: the agent, where the row says so, and the tool it calls most (ties: the first by name)."""
    calls = Counter(name for name, _ in tool_calls(row["messages"]))
    tool = min(calls, key=lambda name: (-calls[name], name)) if calls else "no tool"
    return " ".join([*(str(row[name]) for name in ("project", "agent") if row.get(name)), tool])


@dataclass
class CoresetSelector:
    """The selection as an object, for samples that need no row ids: dicts with `messages` and, maybe, `tools` and `score`."""

    strategy: str = "hybrid"
    target_size: int = 1000
    loss_ratio: float = LOSS_RATIO
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self.strategy, self.target_size, self.loss_ratio)

    def select(self, samples: Sequence[dict[str, Any]], model: Any = None) -> list[dict[str, Any]]:
        """The chosen samples, in the order given. `model` as for `compute_losses`.

        Raises `DataError` where the strategy needs a model and there is none. Warns (`UserWarning`) of a strategy that picks noise.
        """
        rows = _with_ids(samples)
        strategy = named(self.strategy)
        if strategy.warning and len(rows) > self.target_size:
            warnings.warn(f"The coreset strategy '{self.strategy}': {strategy.warning}.", stacklevel=2)
        losses = None
        if strategy.needs_losses and len(rows) > self.target_size:
            judged = self.strategy == "hybrid" and model is None and any(row.get("score") is not None for row in rows)
            if not judged:
                losses = {row["row_id"]: loss for row, loss in zip(rows, self.compute_losses(samples, model), strict=True)}
        chosen = {
            choice.row_id for choice in select(rows, self.strategy, self.target_size, self.seed, losses, self.loss_ratio) if choice.chosen
        }
        return [sample for sample, row in zip(samples, rows, strict=True) if row["row_id"] in chosen]

    def compute_losses(self, samples: Sequence[dict[str, Any]], model: Any) -> list[float | None]:
        """Each sample's mean loss (nats) over the assistant's tokens under `model`, in order; null where it has no such token.

        `model`: a model of transformers in memory, the name or path of one, or a function from samples to losses. Raises `DataError`,
        `ModelError`.
        """
        if isinstance(model, str | Path) or hasattr(model, "get_output_embeddings"):
            return [each.loss for each in model_losses(samples, model)]
        if not callable(model):
            raise DataError(
                f"The coreset strategy '{self.strategy}' needs a model that gives each sample's loss: pass model, a model of transformers, "
                "its name, or a function from samples to losses, or choose 'diversity' or 'random'."
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


def model_losses(samples: Sequence[dict[str, Any]], model: Any, max_length: int = 2048) -> "list[RowLoss]":
    """Loss and number of trained tokens of each sample, under a model in memory or one of this name or path.

    Raises ModelError, DataError.
    """
    from agent_pipeline.training.base_model import resolve_base_model
    from agent_pipeline.training.encoding import encode_row
    from agent_pipeline.training.losses import encoded_losses, row_losses
    from agent_pipeline.training.templates import load_tokenizer

    rows = [{"tools": [], "session_id": row["row_id"], **row} for row in _with_ids(samples)]
    if isinstance(model, str | Path):
        from agent_pipeline.config.settings import load_settings

        return row_losses(rows, resolve_base_model(str(model), load_settings().cache_path), max_length=max_length)
    tokenizer, _ = load_tokenizer(Path(model.name_or_path))
    encoded = [encode_row(tokenizer, row, max_length) for row in rows]
    return encoded_losses(model, [row.encoded if row else None for row in encoded])


def _with_ids(samples: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Samples as rows: their own `row_id`, else the hash of their content and how many like it came before."""
    seen: Counter[str] = Counter()
    rows = []
    for sample in samples:
        row_id = sample.get("row_id")
        if row_id is None:
            content = sha256_of([sample["messages"], sample.get("tools") or []])
            row_id = f"{content}-{seen[content]:06d}"
            seen[content] += 1
        rows.append({**sample, "row_id": cast("str", row_id)})
    return rows
