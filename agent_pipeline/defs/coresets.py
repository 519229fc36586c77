"""Assets of the stage `coresets`: which rows to train on, as an index of row ids, never as copies of rows."""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import dagster as dg
import pyarrow as pa
from msgspec.structs import asdict

from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counted, counts_table, histogram, scatter
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.embeddings import TFIDF, check_embeddings
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.sessions.tables import to_rows, to_table
from agent_pipeline.storage.lake import Lake

CORESET = pa.schema(
    [
        pa.field("row_id", pa.string(), nullable=False),
        pa.field("session_id", pa.string(), nullable=False),
        pa.field("content_sha256", pa.string(), nullable=False),
        pa.field("task_key", pa.string(), nullable=False),
        pa.field("chosen", pa.bool_(), nullable=False),
        pa.field("rank", pa.int64()),
        pa.field("score", pa.float64()),
        pa.field("reason", pa.string(), nullable=False),
    ]
)

_ALIKE = ("identical to row", "near-duplicate of row")


@dg.asset(**asset_options("coresets", {"parquet"}, options=CoresetConfig))
def sft_coreset(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """The training rows that were chosen, and those that were not, each with its score and reason."""
    from agent_pipeline.selection.coresets import Options, check_settings, select
    from agent_pipeline.selection.vectors import KeptEmbeddings

    with user_errors():
        config = in_force(context, workspace, CoresetConfig)
        strategy = check_settings(config.strategy, config.target_size)
        check_embeddings(config.embeddings)
        everything = list(to_rows(sft_dataset))
        rows = [row for row in everything if row["split"] == "train"]
        lake, key = workspace.open_lake(), agent_key(context)
        wanted = [row for row in everything if row["split"] == "select"] if strategy.needs_wanted else []

        def embed() -> dict[str, Any]:
            params = {"embeddings": config.embeddings, "base_model": config.base_model}
            return run_worker(context, pipes, workspace, "embed", rows + wanted, params)

        embeddings = KeptEmbeddings(lake, key, config.seed) if config.embeddings == TFIDF else _ModelEmbeddings(lake, key, embed)
        losses = lengths = None
        if strategy.needs_losses and len(rows) > config.target_size:
            made = run_worker(context, pipes, workspace, "losses", rows, {"base_model": config.base_model})
            losses, lengths = made["losses"], made["tokens"]
        if strategy.warning and len(rows) > config.target_size:
            context.log.warning(f"The coreset strategy '{config.strategy}': {strategy.warning}.")
        options = Options(
            losses=losses,
            lengths=lengths,
            loss_ratio=config.loss_ratio,
            loss_band=(config.loss_band_low, config.loss_band_high),
            min_score=config.min_score,
            near=config.near_duplicates or None,
            wanted=wanted,
            embed=embeddings,
        )
        choices = select(rows, config.strategy, config.target_size, config.seed, options=options)
        by_id = {row["row_id"]: row for row in rows}
        index = [asdict(choice) | _origin(by_id[choice.row_id]) for choice in choices]
        staged = lake.stage("sft_coreset", key, to_table(index, CORESET).to_batches(), CORESET)
        metadata: dict[str, Any] = {
            "training_rows": len(rows),
            "chosen": sum(choice.chosen for choice in choices),
            "strategy": config.strategy,
            "embedded_by": config.embeddings,
            "reasons": counts_table(counted(_kind(choice.reason) for choice in choices)),
        }
        if strategy.warning:
            metadata["warning"] = strategy.warning
        if 0 < metadata["chosen"] < len(rows):
            metadata |= _described(rows, choices, config, embeddings, losses, lengths)
        if config.near_duplicates or config.semantic_duplicates:
            metadata |= _duplicates(rows, config, embeddings)
        return dg.MaterializeResult(value=staged, data_version=version(staged.sha256), metadata=metadata)


class _ModelEmbeddings:
    """Embeddings by a model (it is an `Embed`): made for all rows at once, in a process of its own, when the first are asked for."""

    def __init__(self, lake: Lake, key: PartitionKey, make: Callable[[], dict[str, Any]]) -> None:
        self._lake, self._key, self._make = lake, key, make
        self._vectors: dict[str, Any] = {}
        self.counts: Counter[str] = Counter()

    def __call__(self, texts: Sequence[str]) -> Any:
        """(n, d) float32 of length one."""
        from agent_pipeline.selection.vectors import found_among, kept_vectors

        if not self._vectors:
            made = self._make()
            self.counts.update(computed=made["computed"], kept=made["kept"])
            self._vectors = kept_vectors(self._lake, self._key, made["origin"])
        return found_among(self._vectors, [sha256_of(text) for text in texts])


def _described(
    rows: Sequence[dict[str, Any]],
    choices: Sequence[Any],
    config: CoresetConfig,
    embeddings: Any,
    losses: Mapping[str, float | None] | None,
    lengths: Mapping[str, int] | None,
) -> dict[str, Any]:
    """What a person would look at: how well the chosen rows stand for all, what they hold, and where they lie."""
    from agent_pipeline.selection.coresets import assistant_words
    from agent_pipeline.selection.coverage import coverage_of, covered, flat, quantiles
    from agent_pipeline.selection.embeddings import conversation_text

    rows = sorted(rows, key=lambda row: row["row_id"])  # as choices are
    chosen = [place for place, choice in enumerate(choices) if choice.chosen]
    vectors = embeddings([conversation_text(row["messages"]) for row in rows])
    found = covered(rows, choices)
    values: dict[str, list[Any]] = {
        "tokens of the assistant": [lengths[row["row_id"]] if lengths else assistant_words(row["messages"]) for row in rows],
        "loss": [losses.get(row["row_id"]) for row in rows] if losses else [],
    }
    lines = ["| | rows | p10 | p50 | p90 | p99 |", "|---|---|---:|---:|---:|---:|"]
    for name, all_values in values.items():
        for who, part in (("chosen", [all_values[place] for place in chosen]), ("all", all_values)) if all_values else ():
            shown = ("–" if value is None else f"{value:.3g}" if name == "loss" else f"{value:,.0f}" for value in quantiles(part).values())
            lines.append(f"| {name} | {who} | {' | '.join(shown)} |")
    made: dict[str, Any] = {
        "coverage": dg.MetadataValue.json(coverage_of(vectors, chosen, config.seed)),
        "tools_covered": f"{found['tools'][0]} of {found['tools'][1]}",
        "tasks_covered": f"{found['tasks'][0]} of {found['tasks'][1]}",
        "distributions": dg.MetadataValue.md("\n".join(lines)),
        "map": scatter(flat(vectors, config.seed), chosen, f"{config.strategy}: {len(chosen):,} chosen of {len(rows):,} rows"),
        "embeddings": dg.MetadataValue.json({name: embeddings.counts[name] for name in ("computed", "kept", "fitted")}),
    }
    if losses:
        known = [loss for loss in losses.values() if loss is not None]
        made["losses"] = histogram(known, "base model's loss on the training rows", "mean loss of a row's assistant tokens")
    return made


def _duplicates(rows: Sequence[dict[str, Any]], config: CoresetConfig, embeddings: Any) -> dict[str, Any]:
    """Duplicates by kind, and how alike rows are: what a threshold is chosen by."""
    from agent_pipeline.selection.dedup import duplicates

    found = duplicates(rows, config.near_duplicates or None, config.semantic_duplicates or None, embeddings, config.seed)
    made: dict[str, Any] = {"duplicates": counts_table(counted(each.kind for each in (*found.found, *found.semantic)), "kind")}
    kind = "semantic" if config.semantic_duplicates else "near"
    label = {"semantic": "cosine to the nearest other row", "near": "Jaccard similarity to the nearest row before"}[kind]
    made["similarities"] = histogram(found.similarities[kind], f"{kind} similarity of rows", label)
    return made


def another_stands_for_it(reason: str) -> bool:
    """Whether a row was passed over because it is like another."""
    return reason.startswith(_ALIKE)


def _kind(reason: str) -> str:
    """A reason without what differs from row to row (the other row's id, numbers but shares), so that reasons can be counted."""
    for start in _ALIKE:
        if reason.startswith(start):
            return f"{start.removesuffix(' row')} another row"
    return re.sub(r"-?\b\d[\d.]*\b(?! %)", "…", reason)


def _origin(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] for name in ("session_id", "content_sha256", "task_key")}
