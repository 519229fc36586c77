"""A coreset: which training rows were chosen and which were not, in columns that say why, as an index of row ids."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options
from agent_pipeline.selection.coverage import coverage
from agent_pipeline.selection.duplicates import Duplicates, duplicates
from agent_pipeline.selection.embeddings import TFIDF, Embed, check_embeddings, embed
from agent_pipeline.selection.pool import LOSS_RATIO, Candidate, Pool, Reason, candidate
from agent_pipeline.selection.strategies import strategy as named
from agent_pipeline.selection.tables import CORESET
from agent_pipeline.selection.vectors import kept_vectors
from agent_pipeline.sessions.tables import to_table
from agent_pipeline.storage.lake import Lake

if TYPE_CHECKING:
    import numpy as np

Ask = Callable[[str], Mapping[str, Any]]
"""Runs a task that needs a model on the training rows. `losses` gives by row id the mean `losses` over the trained tokens (nats), and how
many `tokens` those are; `embed` puts the rows' vectors into the lake, and gives what `keep_vectors` does."""


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one row. `rank` counts from 1 over chosen rows; `score` is what the strategy ranked by."""

    row_id: str
    chosen: bool
    reason: str
    rank: int | None = None
    score: float | None = None
    duplicate_of: str | None = None
    similarity: float | None = None


class CoresetOptions(Options):
    """How rows are chosen.

    Raises:
        SettingsError: the strategy does not exist, or a number is out of range.
    """

    strategy: str = Field(
        default="hybrid",
        description="hybrid, diversity, loss_topk, random (docs/selection.md says when), a name that an installed package registers, or "
        "package.module:function.",
    )
    target_size: int = Field(
        default=1000, ge=1, description="Rows to choose; with as many or fewer rows all are taken, and no losses computed."
    )
    loss_ratio: float = Field(default=LOSS_RATIO, ge=0, le=1, description="hybrid: the share of picks by loss.")
    near_duplicates: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Rows whose words are at least so alike (Jaccard similarity; 0.8 is a good one) are left out but for the best judged, "
        "then the earliest; 0 leaves out identical rows only, where not all rows are taken.",
    )
    seed: int = Field(default=0, description="Seed of every random choice.")

    @field_validator("strategy")
    @classmethod
    def _exists(cls, name: str) -> str:
        named(name)
        return name


@dataclass(frozen=True)
class Selection:
    """A choice about every row, sorted by row id; what the strategy chose from (`None` where all rows fit); the duplicates."""

    choices: list[Choice]
    pool: Pool | None
    duplicates: Duplicates


def select(
    rows: Sequence[Candidate],
    options: CoresetOptions,
    losses: Mapping[str, float | None] | None = None,
    lengths: Mapping[str, int] | None = None,
    vectors: Embed | None = None,
) -> Selection:
    """Choose rows; the same choice whatever the order of `rows`.

    Of identical rows (what was said and done is the same) one stands for all. Up to `target_size` rows are chosen: fewer only where fewer
    are distinct, or have the loss that the strategy needs. `losses` and `lengths` (tokens of the assistant) are by row id; `vectors` places
    texts in space.

    Raises:
        DataError: the strategy needs losses and there are none, or two rows have one id.
    """
    rows = sorted(rows, key=lambda row: row.row_id)
    if twice := next((a.row_id for a, b in pairwise(rows) if a.row_id == b.row_id), None):
        raise DataError(f"The row id '{twice}' is given to more than one row: make the ids of the data set unique.")
    vectors = vectors or (lambda texts: embed(texts, options.seed))
    all_fit = len(rows) <= options.target_size
    looks = options.near_duplicates or not all_fit
    alike = duplicates(rows, options.near_duplicates or None, options.seed) if looks else Duplicates()
    choices = {
        each.row_id: Choice(
            row_id=each.row_id,
            chosen=False,
            reason=Reason.EXACT_DUPLICATE if each.kind == "exact" else Reason.NEAR_DUPLICATE,
            duplicate_of=each.duplicate_of,
            similarity=each.similarity,
        )
        for each in alike.rows
    }
    distinct = [row for row in rows if row.row_id not in choices]
    pool = None
    if all_fit:
        for rank, row in enumerate(distinct, 1):
            choices[row.row_id] = Choice(row_id=row.row_id, chosen=True, reason=Reason.ALL_FIT, rank=rank)
    else:
        tokens = lengths or {}
        pool = Pool(
            [row.row_id for row in distinct],
            min(options.target_size, len(distinct)),
            embed=lambda: vectors([row.text for row in distinct]),
            losses=[losses.get(row.row_id) for row in distinct] if losses else None,
            scores=[row.score for row in distinct],
            lengths=[tokens.get(row.row_id, row.words) for row in distinct],
            groups=[row.group for row in distinct],
            seed=options.seed,
            loss_ratio=options.loss_ratio,
        )
        ranking = named(options.strategy).choose(pool)
        for rank, (index, score, reason) in enumerate(ranking.picks, 1):
            choices[pool.ids[index]] = Choice(row_id=pool.ids[index], chosen=True, reason=reason, rank=rank, score=score)
        for index, row_id in enumerate(pool.ids):
            choices.setdefault(row_id, Choice(row_id=row_id, chosen=False, reason=ranking.passed.get(index, ranking.otherwise)))
    return Selection([choices[row.row_id] for row in rows], pool, alike)


@dataclass(frozen=True)
class Coreset:
    """The table `sft_coreset`, and what a person would look at.

    `tools` and `tasks`: how many the chosen rows have, and all. `coverage` is `None` where the strategy embedded nothing: rows are not
    embedded for a figure alone. `embedded`: how many rows a model embedded (`computed`), or had (`kept`). `warning` is the strategy's,
    where it had to choose.
    """

    table: pa.Table
    reasons: Counter[str]
    tools: tuple[int, int]
    tasks: tuple[int, int]
    coverage: dict[str, float] | None
    embedded: dict[str, int]
    losses: list[float]
    duplicates: Duplicates
    warning: str

    @property
    def chosen(self) -> int:
        """How many rows were chosen."""
        return pc.sum(self.table["chosen"]).as_py() or 0

    @property
    def had_to_choose(self) -> bool:
        """Whether there were more rows than places."""
        return Reason.ALL_FIT not in self.reasons


def build_coreset(
    rows: Iterable[Mapping[str, Any]], lake: Lake, key: PartitionKey, options: CoresetOptions, embeddings: str, ask: Ask
) -> Coreset:
    """The coreset of training rows, which are read once and not held.

    Losses are asked for only if the strategy needs them and has to choose, vectors only if it looks at them and `embeddings` names a model.

    Raises:
        DataError: as `select`.
        SettingsError: there are no such embeddings.
    """
    check_embeddings(embeddings)
    embedded: dict[str, int] = {}

    def vectors(texts: Sequence[str]) -> "np.ndarray":
        if embeddings == TFIDF:
            return embed(texts, options.seed)
        made = ask("embed")
        embedded.update(computed=made["computed"], kept=made["kept"])
        return kept_vectors(lake, key, made["origin"], texts)

    candidates = [candidate(row) for row in rows]
    by_id = {row.row_id: row for row in candidates}
    losses: Mapping[str, float | None] = {}
    lengths: Mapping[str, int] = {}
    if named(options.strategy).needs_losses and len(candidates) > options.target_size:
        asked = ask("losses")
        losses, lengths = asked["losses"], asked["tokens"]
    found = select(candidates, options, losses, lengths, vectors)
    index = (
        {name: getattr(by_id[choice.row_id], name) for name in ("session_id", "content_sha256", "task_key")}
        | msgspec.structs.asdict(choice)
        for choice in found.choices
    )
    chosen = [by_id[choice.row_id] for choice in found.choices if choice.chosen]
    return Coreset(
        table=to_table(index, CORESET),
        reasons=Counter(choice.reason for choice in found.choices),
        tools=_of_all(chosen, candidates, lambda row: row.called),
        tasks=_of_all(chosen, candidates, lambda row: (row.task_key,)),
        coverage=_coverage(found, options.seed),
        embedded=embedded,
        losses=[loss for loss in losses.values() if loss is not None],
        duplicates=found.duplicates,
        warning=named(options.strategy).warning if found.pool else "",
    )


def _of_all(chosen: Sequence[Candidate], rows: Sequence[Candidate], names: Callable[[Candidate], Sequence[str]]) -> tuple[int, int]:
    """How many different names the chosen rows have, and all rows."""
    some, every = (len({name for row in each for name in names(row)}) for each in (chosen, rows))
    return some, every


def _coverage(found: Selection, seed: int) -> dict[str, float] | None:
    if found.pool is None or not found.pool.is_embedded:
        return None
    chosen = {choice.row_id for choice in found.choices if choice.chosen}
    return coverage(found.pool.embeddings, [index for index, row_id in enumerate(found.pool.ids) if row_id in chosen], seed)
