"""A coreset: the chosen training rows, and the reasons why other rows were not chosen.

A coreset is an index of row ids; rows are never copied. Ranking rows belongs to `strategies`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from sys import intern
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.candidates import IDS, READ, Candidates
from agent_pipeline.selection.clusters import measure_coverage
from agent_pipeline.selection.crowding import (
    Crowding,
    CrowdingOptions,
    check_planted_share,
    find_crowding,
)
from agent_pipeline.selection.dominance import (
    Dominance,
    describe_new_rows,
    read_accepted_rows,
)
from agent_pipeline.selection.duplicates import Duplicates, find_duplicates
from agent_pipeline.selection.embeddings import TFIDF, Embed, Texts, check_embeddings, embed
from agent_pipeline.selection.pool import LOSS_RATIO, Pick, Pool, Ranking, Reason
from agent_pipeline.selection.strategies import load_strategy
from agent_pipeline.selection.tables import (
    CORESET,
    CORESET_TABLE,
    read_dataset_rows,
    read_sources,
)
from agent_pipeline.selection.vectors import read_vectors
from agent_pipeline.sessions.tables import ROWS_PER_BATCH, make_column
from agent_pipeline.storage.lake import Lake, StagedTable

RunTask = Callable[[str], Mapping[str, Any]]
"""Function that runs a task with a model on the training rows. The task `losses` returns the mean
`losses` per trained token (nats) and the number of trained `tokens`, both by row id. The task
`embed` stores the vectors of the rows in the lake, and returns the result of `store_vectors`.
"""


class CoresetOptions(CrowdingOptions):
    """Options for choosing the rows of a coreset.

    Raises:
        SettingsError: the strategy does not exist, or a number is out of range.
    """

    strategy: str = Field(
        default="hybrid",
        description=(
            "Strategy that selects the rows: hybrid, diversity, loss_topk, random, the name of "
            "an installed strategy, or package.module:function. docs/explanation/selection.md "
            "compares the built-in strategies."
        ),
    )
    target_size: int = Field(
        default=1000,
        ge=1,
        description=(
            "Number of rows to select. If the dataset has no more rows than this number, all "
            "rows are selected, and no losses are computed."
        ),
    )
    loss_ratio: float = Field(
        default=LOSS_RATIO,
        ge=0,
        le=1,
        description=(
            "Share of the rows that the strategy hybrid selects because of a high loss. It "
            "selects the other rows for diversity."
        ),
    )
    near_duplicates: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Jaccard similarity of words at or above which two rows count as duplicates, such as "
            "0.8. Of such rows, the row with the best score is kept. If the scores are equal, "
            "the earliest row is kept. 0 means that only identical rows are duplicates. They are "
            "left out only if not all rows are selected."
        ),
    )
    seed: int = Field(default=0, description="Seed for all random choices.")

    @field_validator("strategy")
    @classmethod
    def _check_strategy(cls, name: str) -> str:
        load_strategy(name)
        return name


@dataclass(frozen=True)
class Selection:
    """The chosen rows of a dataset, and the reasons why the other rows were not chosen.

    Attributes:
        index: The table `CORESET`, ordered by row id.
        pool: The rows that the strategy chose from, or None if all rows fit.
        picked: The indices of the picked rows in the pool, sorted.
        duplicates: The duplicates.
        crowding: The groups of rows, and the rows that were left out of groups that are too large.
    """

    index: pa.Table
    pool: Pool | None
    picked: list[int]
    duplicates: Duplicates
    crowding: Crowding


def select(
    rows: Candidates,
    options: CoresetOptions,
    losses: Mapping[str, float | None] | None = None,
    lengths: Mapping[str, int] | None = None,
    vectors: Embed | None = None,
    older: pa.ChunkedArray | None = None,
    sources: Mapping[str, str] | None = None,
) -> Selection:
    """Choose the rows of a coreset.

    The choice does not depend on the order of the rows. If several rows have the same conversation,
    one of them represents all. Up to `target_size` rows are chosen. Fewer are chosen only if there
    are too few distinct rows, or too few rows with the loss that the strategy needs.

    Args:
        rows: The rows.
        options: The options of choosing rows.
        losses: The loss of each row, by row id.
        lengths: The number of the assistant's tokens, by row id.
        vectors: Function that embeds texts. None embeds without a model.
        older: The ids of the rows that an earlier coreset accepted, or None if there was no earlier
            coreset.
        sources: The reader of each session, by session id.

    Raises:
        NoLossError: the strategy needs losses, but there are none.
    """
    count, ids = len(rows.table), rows.table["row_id"]
    all_fit = count <= options.target_size
    duplicates = Duplicates()
    if options.near_duplicates or not all_fit:
        duplicates = find_duplicates(rows, options.near_duplicates or None, options.seed)
    columns = _IndexColumns(count)
    duplicate_ids = make_column([row.row_id for row in duplicates.rows], CORESET.field("row_id"))
    duplicate_indices = pc.index_in(duplicate_ids, ids).to_numpy()
    for index, row in zip(duplicate_indices.tolist(), duplicates.rows, strict=True):
        is_exact = row.kind == "exact"
        columns.reason[index] = Reason.EXACT_DUPLICATE if is_exact else Reason.NEAR_DUPLICATE
        columns.duplicate_of[index] = row.duplicate_of
        columns.similarity[index] = row.similarity
    distinct = np.setdiff1d(np.arange(count), duplicate_indices)
    crowding = find_crowding(rows, distinct.tolist(), options, options.seed, older, sources)
    sessions = rows.table["session_id"]
    for left_out in crowding.left_out:
        columns.reason[left_out.index] = left_out.reason
        columns.similarity[left_out.index] = left_out.similarity
        if left_out.like is not None:
            columns.duplicate_of[left_out.index] = sessions[left_out.like].as_py()
    distinct = np.setdiff1d(distinct, [left_out.index for left_out in crowding.left_out])
    pool = None
    if all_fit:
        picks = [Pick(position, None, Reason.ALL_FIT) for position in range(len(distinct))]
        ranking = Ranking(picks=picks)
    else:
        pool = _make_pool(rows, distinct, options, losses, lengths, vectors)
        ranking = load_strategy(options.strategy).choose(pool)
    for position, index in enumerate(distinct.tolist()):
        columns.reason[index] = ranking.passed.get(position, ranking.otherwise)
    for rank, pick in enumerate(ranking.picks, 1):
        index = distinct[pick.index]
        columns.rank[index], columns.score[index] = rank, pick.score
        columns.reason[index] = pick.reason
    return Selection(
        index=columns.make_table(rows),
        pool=pool,
        picked=sorted(ranking.picked),
        duplicates=duplicates,
        crowding=crowding,
    )


class _IndexColumns:
    """The columns of the coreset's index while rows are being chosen.

    Each list has one value per row.

    Attributes:
        rank: The position among the chosen rows, from 1.
        score: The number by which the strategy ranked the row.
        reason: The reason why the row was chosen or left out.
        duplicate_of: The row or session that represents the row.
        similarity: The similarity to that row.
    """

    def __init__(self, count: int) -> None:
        self.rank: list[int | None] = [None] * count
        self.score: list[float | None] = [None] * count
        self.reason: list[str | None] = [None] * count
        self.duplicate_of: list[str | None] = [None] * count
        self.similarity: list[float | None] = [None] * count

    def make_table(self, rows: Candidates) -> pa.Table:
        """Return the rows and their columns as a table with the schema `CORESET`."""
        columns = {id_field.name: rows.table[id_field.name] for id_field in IDS}
        for name, values in vars(self).items():
            columns[name] = make_column(values, CORESET.field(name))
        return pa.table(columns | {"chosen": columns["rank"].is_valid()}, CORESET)


def _make_pool(
    rows: Candidates,
    indices: np.ndarray,
    options: CoresetOptions,
    losses: Mapping[str, float | None] | None,
    lengths: Mapping[str, int] | None,
    vectors: Embed | None,
) -> Pool:
    """Return the pool of distinct rows that a strategy chooses from.

    Args:
        rows: All rows.
        indices: The indices of the distinct rows.
        options: The options of choosing rows.
        losses: The loss of each row, by row id.
        lengths: The number of the assistant's tokens, by row id. If it is None, words are counted
            instead.
        vectors: Function that embeds texts. None embeds without a model.
    """

    def take(name: str) -> list[Any]:
        values: list[Any] = rows.table[name].take(indices).to_pylist()
        return values

    def embed_rows() -> np.ndarray:
        texts = rows.texts(indices)
        return vectors(texts) if vectors else embed(texts, options.seed)

    ids, tokens = take("row_id"), lengths or {}
    return Pool(
        ids,
        min(options.target_size, len(indices)),
        embed=embed_rows,
        losses=[losses.get(row_id) for row_id in ids] if losses else None,
        scores=take("score"),
        lengths=[
            tokens.get(row_id, words) for row_id, words in zip(ids, take("words"), strict=True)
        ],
        groups=list(map(intern, take("group"))),
        seed=options.seed,
        loss_ratio=options.loss_ratio,
    )


@dataclass(frozen=True)
class Coreset:
    """The table `sft_coreset`, with facts about it for users.

    Attributes:
        table: The table.
        reasons: The number of rows by reason.
        tools: The number of tools of the chosen rows, and of all rows.
        tasks: The number of tasks of the chosen rows, and of all rows.
        coverage: The distances of all rows to the chosen rows. It is None if the strategy did not
            need embeddings, because rows are not embedded only for this figure.
        embedded: The number of rows that a model embedded now (`computed`) or earlier (`kept`).
        losses: The known losses.
        duplicates: The duplicates.
        warning: The warning of the strategy, if there were more rows than `target_size`.
        dominance: The groups that dominate the new rows.
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
    dominance: Dominance

    @property
    def chosen(self) -> int:
        """Return the number of chosen rows."""
        return int(pc.sum(self.table["chosen"]).as_py() or 0)

    @property
    def had_to_choose(self) -> bool:
        """True if there were more rows than `target_size`, so that rows had to be chosen."""
        return Reason.ALL_FIT not in self.reasons


@dataclass
class _TaskEmbeddings:
    """A function that embeds texts, either by a task that runs a model or without a model.

    Attributes:
        lake: The lake.
        key: The agent.
        setting: The setting `embeddings`.
        seed: The seed of embeddings without a model.
        run_task: Runs the task.
        counts: The number of rows that the task embedded now (`computed`) or earlier (`kept`).
    """

    lake: Lake
    key: PartitionKey
    setting: str
    seed: int
    run_task: RunTask
    counts: dict[str, int] = field(default_factory=dict)

    def __call__(self, texts: Texts) -> np.ndarray:
        """Return the vectors of texts, from the stored embeddings or without a model."""
        if self.setting == TFIDF:
            return embed(texts, self.seed)
        stored = self.run_task("embed")
        self.counts.update(computed=stored["computed"], kept=stored["kept"])
        return read_vectors(self.lake, self.key, stored["origin"], texts)


def build_coreset(
    read: Callable[[], Iterable[Mapping[str, object]]],
    lake: Lake,
    key: PartitionKey,
    options: CoresetOptions,
    embeddings: str,
    run_task: RunTask,
) -> Coreset:
    """Build the coreset of training rows.

    Memory holds columns of the rows, and the vectors of the rows that the strategy embeds. Losses
    are computed only if the strategy needs them and there are more rows than `target_size`. A model
    computes vectors only if the strategy uses them and `embeddings` names a model.

    Args:
        read: Returns the rows. It is called several times.
        lake: The lake.
        key: The agent.
        options: The options of choosing rows.
        embeddings: The setting of embeddings.
        run_task: Function that runs a task with a model.

    Raises:
        PlantedRowsError: too many rows look planted, so no coreset is built.
        DataError: the strategy needs losses but there are none, or two rows have the same id.
        SettingsError: there are no such embeddings.
    """
    check_embeddings(embeddings)
    rows = Candidates.of(read)
    strategy = load_strategy(options.strategy)
    losses: Mapping[str, float | None] = {}
    lengths: Mapping[str, int] = {}
    if strategy.needs_losses and len(rows.table) > options.target_size:
        computed = run_task("losses")
        losses, lengths = computed["losses"], computed["tokens"]
    older, sources = read_accepted_rows(lake, key), read_sources(lake, key)
    vectors = _TaskEmbeddings(lake, key, embeddings, options.seed, run_task)
    selection = select(rows, options, losses, lengths, vectors, older, sources)
    check_planted_share(selection.crowding)
    pool, coverage = selection.pool, None
    if pool and pool.is_embedded:
        coverage = asdict(measure_coverage(pool.embeddings, selection.picked, options.seed))
    chosen = rows.table.filter(selection.index["chosen"])
    return Coreset(
        table=selection.index,
        reasons=Counter(selection.index["reason"].to_pylist()),
        tools=(_count_tools(chosen), _count_tools(rows.table)),
        tasks=(_count_tasks(chosen), _count_tasks(rows.table)),
        coverage=coverage,
        embedded=vectors.counts,
        losses=[loss for loss in losses.values() if loss is not None],
        duplicates=selection.duplicates,
        warning=strategy.warning if pool else "",
        dominance=describe_new_rows(rows, selection.crowding, older),
    )


def _count_tools(table: pa.Table) -> int:
    return int(pc.count_distinct(pc.list_flatten(table["called"])).as_py())


def _count_tasks(table: pa.Table) -> int:
    return int(pc.count_distinct(table["task_key"]).as_py())


def stage_coreset(
    lake: Lake, key: PartitionKey, options: CoresetOptions, embeddings: str, run_task: RunTask
) -> tuple[Coreset, StagedTable]:
    """Build the coreset of the training rows of `sft_dataset`, and stage its table.

    Args:
        lake: The lake.
        key: The agent.
        options: The options of choosing rows.
        embeddings: The setting of embeddings.
        run_task: Function that runs a task with a model.

    Raises:
        DataError, SettingsError: as `build_coreset`.
    """
    coreset = build_coreset(
        lambda: read_dataset_rows(lake, key, columns=READ), lake, key, options, embeddings, run_task
    )
    batches = coreset.table.to_batches(ROWS_PER_BATCH)
    return coreset, lake.stage(CORESET_TABLE, key, batches, CORESET)
