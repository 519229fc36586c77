"""Assets of the stage `coresets`: which rows to train on, as an index of row ids, never as copies of rows."""

from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from msgspec.structs import asdict
from pydantic import Field

from agent_pipeline.defs.defaults import BASE_MODEL
from agent_pipeline.defs.metadata import counted, counts_table, histogram
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.failures import user_errors
from agent_pipeline.traces.tables import to_rows, to_table

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

NEEDS_LOSSES = ("loss_topk", "hybrid")


class CoresetConfig(dg.Config):
    """Which rows are chosen, and how many."""

    strategy: Literal["random", "diversity", "loss_topk", "hybrid"] = Field(
        default="hybrid",
        description="random: by a seeded hash. diversity: the row nearest the middle of each cluster. loss_topk: the highest losses "
        "of the base model. hybrid: loss_ratio of the picks by loss within clusters, the others nearest the middle.",
    )
    target_size: int = Field(
        default=1000, ge=1, description="Rows to choose; with as many or fewer rows all are taken, and no losses computed."
    )
    loss_ratio: float = Field(default=0.6, ge=0, le=1, description="hybrid: the share of picks by loss.")
    seed: int = Field(default=0, description="Seed of every random choice.")
    base_model: str = Field(default=BASE_MODEL, description="Model whose losses are computed (loss_topk, hybrid).")


@dg.asset(**asset_options("coresets", {"parquet"}))
def sft_coreset(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    config: CoresetConfig,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """The training rows that were chosen, and those that were not, each with its score and reason."""
    from agent_pipeline.selection.coresets import select
    from agent_pipeline.selection.coverage import coverage

    with user_errors():
        rows = [row for row in to_rows(sft_dataset) if row["split"] == "train"]
        losses = None
        if config.strategy in NEEDS_LOSSES and len(rows) > config.target_size:
            losses = run_worker(context, pipes, workspace, "losses", rows, {"base_model": config.base_model})["losses"]
        choices = select(rows, config.strategy, config.target_size, seed=config.seed, losses=losses, loss_ratio=config.loss_ratio)
        by_id = {row["row_id"]: row for row in rows}
        index = [asdict(choice) | _origin(by_id[choice.row_id]) for choice in choices]
        staged = workspace.open_lake().stage("sft_coreset", agent_key(context), to_table(index, CORESET).to_batches(), CORESET)
        chosen = sum(choice.chosen for choice in choices)
        metadata: dict[str, Any] = {
            "training_rows": len(rows),
            "chosen": chosen,
            "strategy": config.strategy,
            "reasons": counts_table(counted(choice.reason for choice in choices)),
        }
        if 0 < chosen < len(rows):
            metadata["coverage"] = dg.MetadataValue.json(coverage(rows, choices, config.seed))
        if losses:
            known = [loss for loss in losses.values() if loss is not None]
            metadata["losses"] = histogram(known, "base model's loss on the training rows", "mean loss of a row's assistant tokens")
        return dg.MaterializeResult(value=staged, data_version=version(staged.sha256), metadata=metadata)


def _origin(row: dict[str, Any]) -> dict[str, str]:
    return {name: row[name] for name in ("session_id", "content_sha256", "task_key")}
