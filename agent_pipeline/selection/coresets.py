"""A coreset: which training rows were chosen and which were not, in columns that say why, as an index of row ids."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, field_validator

from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.candidates import IDS, READ, Candidates
from agent_pipeline.selection.clusters import coverage
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
from agent_pipeline.selection.pool import LOSS_RATIO, Pool, Ranking, Reason
from agent_pipeline.selection.strategies import strategy as named
from agent_pipeline.selection.tables import CORESET, CORESET_TABLE, dataset_rows, read_sources
from agent_pipeline.selection.vectors import kept_vectors
from agent_pipeline.sessions.tables import ROWS_PER_BATCH, make_column
from agent_pipeline.storage.lake import Lake, StagedTable

Ask = Callable[[str], Mapping[str, Any]]
"""Runs a task that needs a model on the training rows. `losses` gives by row id the mean `losses` over the trained tokens (nats), and how
many `tokens` those are; `embed` puts the rows' vectors into the lake, and gives what `keep_vectors` does."""


class CoresetOptions(CrowdingOptions):
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
        default=1000,
        ge=1,
        description="Rows to choose; with as many or fewer rows all are taken, and no losses computed.",
    )
    loss_ratio: float = Field(
        default=LOSS_RATIO, ge=0, le=1, description="hybrid: the share of picks by loss."
    )
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
    """A choice about every row (`CORESET`), sorted by row id; what the strategy chose from (`None` where all rows fit) and its picks; the
    duplicates."""

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
    """Choose rows; the same choice whatever order they came in.

    Of identical rows (what was said and done is the same) one stands for all. Up to `target_size` rows are chosen: fewer only where fewer
    are distinct, or have the loss that the strategy needs. `losses` and `lengths` (tokens of the assistant) are by row id; `vectors` places
    texts in space; `older` are the ids of rows that an earlier coreset accepted.

    Raises:
        DataError: the strategy needs losses and there are none.
    """
    n, ids = len(rows.table), rows.table["row_id"]
    vectors = vectors or (lambda texts: embed(texts, options.seed))
    all_fit = n <= options.target_size
    looks = options.near_duplicates or not all_fit
    alike = (
        find_duplicates(rows, options.near_duplicates or None, options.seed)
        if looks
        else Duplicates()
    )
    made: dict[str, list[Any]] = {
        name: [None] * n for name in ("rank", "score", "reason", "duplicate_of", "similarity")
    }
    left_out = pc.index_in(
        make_column([each.row_id for each in alike.rows], CORESET.field("row_id")), ids
    ).to_numpy()
    for place, each in zip(left_out.tolist(), alike.rows, strict=True):
        made["reason"][place] = (
            Reason.EXACT_DUPLICATE if each.kind == "exact" else Reason.NEAR_DUPLICATE
        )
        made["duplicate_of"][place], made["similarity"][place] = each.duplicate_of, each.similarity
    distinct = np.setdiff1d(np.arange(n), left_out)
    crowd = find_crowding(rows, distinct.tolist(), options, options.seed, older, sources)
    sessions = rows.table["session_id"]
    for row in crowd.left_out:
        made["reason"][row.index], made["similarity"][row.index] = row.reason, row.similarity
        made["duplicate_of"][row.index] = None if row.like is None else sessions[row.like].as_py()
    distinct = np.setdiff1d(distinct, [row.index for row in crowd.left_out])
    pool = None
    ranking = Ranking(
        picks=[(at, None, Reason.ALL_FIT) for at in range(len(distinct))] if all_fit else []
    )
    if not all_fit:
        of = {
            name: rows.table[name].take(distinct).to_pylist()
            for name in ("row_id", "score", "words", "group")
        }
        tokens = lengths or {}
        pool = Pool(
            of["row_id"],
            min(options.target_size, len(distinct)),
            embed=lambda: vectors(rows.texts(distinct)),
            losses=[losses.get(row_id) for row_id in of["row_id"]] if losses else None,
            scores=of["score"],
            lengths=[
                tokens.get(row_id, words)
                for row_id, words in zip(of["row_id"], of["words"], strict=True)
            ],
            groups=list(map(intern, of["group"])),
            seed=options.seed,
            loss_ratio=options.loss_ratio,
        )
        ranking = named(options.strategy).choose(pool)
    for at, place in enumerate(distinct.tolist()):
        made["reason"][place] = ranking.passed.get(at, ranking.otherwise)
    for rank, (at, score, reason) in enumerate(ranking.picks, 1):
        place = distinct[at]
        made["rank"][place], made["score"][place], made["reason"][place] = rank, score, reason
    columns = {each.name: rows.table[each.name] for each in IDS}
    columns |= {name: make_column(values, CORESET.field(name)) for name, values in made.items()}
    index = pa.table(columns | {"chosen": columns["rank"].is_valid()}, CORESET)
    return Selection(index, pool, sorted(ranking.picked), alike, crowd)


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
    dominance: Dominance

    @property
    def chosen(self) -> int:
        return pc.sum(self.table["chosen"]).as_py() or 0

    @property
    def had_to_choose(self) -> bool:
        """Whether there were more rows than places."""
        return Reason.ALL_FIT not in self.reasons


def build_coreset(
    read: Callable[[], Iterable[Mapping[str, Any]]],
    lake: Lake,
    key: PartitionKey,
    options: CoresetOptions,
    embeddings: str,
    ask: Ask,
) -> Coreset:
    """The coreset of training rows, which `read` opens anew each time: memory holds columns of them, and of what the strategy embeds the
    vectors.

    Losses are asked for only if the strategy needs them and has to choose, vectors only if it looks at them and `embeddings` names a model.

    Raises:
        DataError: as `select`, or two rows have one id.
        SettingsError: there are no such embeddings.
    """
    check_embeddings(embeddings)
    embedded: dict[str, int] = {}

    def vectors(texts: Texts) -> np.ndarray:
        if embeddings == TFIDF:
            return embed(texts, options.seed)
        made = ask("embed")
        embedded.update(computed=made["computed"], kept=made["kept"])
        return kept_vectors(lake, key, made["origin"], texts)

    rows = Candidates.of(read)
    losses: Mapping[str, float | None] = {}
    lengths: Mapping[str, int] = {}
    if named(options.strategy).needs_losses and len(rows.table) > options.target_size:
        asked = ask("losses")
        losses, lengths = asked["losses"], asked["tokens"]
    older = read_accepted_rows(lake, key)
    found = select(rows, options, losses, lengths, vectors, older, read_sources(lake, key))
    check_planted_share(found.crowding)
    some, every = (
        [
            pc.count_distinct(each).as_py()
            for each in (pc.list_flatten(table["called"]), table["task_key"])
        ]
        for table in (rows.table.filter(found.index["chosen"]), rows.table)
    )
    return Coreset(
        table=found.index,
        reasons=Counter(found.index["reason"].to_pylist()),
        tools=(some[0], every[0]),
        tasks=(some[1], every[1]),
        coverage=coverage(found.pool.embeddings, found.picked, options.seed)
        if found.pool and found.pool.is_embedded
        else None,
        embedded=embedded,
        losses=[loss for loss in losses.values() if loss is not None],
        duplicates=found.duplicates,
        warning=named(options.strategy).warning if found.pool else "",
        dominance=describe_new_rows(rows, found.crowding, older),
    )


def stage_coreset(
    lake: Lake, key: PartitionKey, options: CoresetOptions, embeddings: str, ask: Ask
) -> tuple[Coreset, StagedTable]:
    """The coreset of the training rows of `sft_dataset`, and its table, staged.

    Raises:
        DataError, SettingsError: as `build_coreset`.
    """
    coreset = build_coreset(
        lambda: dataset_rows(lake, key, columns=READ), lake, key, options, embeddings, ask
    )
    return coreset, lake.stage(
        CORESET_TABLE, key, coreset.table.to_batches(ROWS_PER_BATCH), CORESET
    )
