"""The asset `sft_coreset`, which records by row id which rows are selected for training."""

from typing import Any

import dagster as dg

from agent_pipeline.config.assets import CoresetConfig
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table, histogram, table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import asset_options, own_check, version, warning
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.selection.coresets import Coreset, stage_coreset
from agent_pipeline.selection.pool import DESCRIPTIONS

VARIED_CHECK = "new_rows_are_varied"


@dg.asset(
    **asset_options(
        "coresets",
        {"parquet"},
        options=CoresetConfig,
        checks=[
            own_check(
                "sft_coreset",
                VARIED_CHECK,
                "Passes if the rows that are new since the last coreset are varied: no group of "
                "near-duplicates, no task and no phrase dominates. If the check fails, look at "
                "the sessions in the result of the check, because somebody may have planted them.",
            )
        ],
    ),
    deps=["sft_dataset", "trained_sessions"],
)
def sft_coreset(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """One row per row of `sft_dataset`: whether the row was selected for training, and why.

    The table contains row ids, scores and reasons, but no texts. The asset `adapter` trains on the
    selected rows.
    """
    with user_errors():
        config = in_force(context, workspace, CoresetConfig)

        params = config.of_model() | {"mix": False}

        def ask(task: str) -> dict[str, Any]:
            return run_worker(context, pipes, workspace, task, params)

        coreset, staged = stage_coreset(
            workspace.open_lake(), agent_key(context), config, config.embeddings, ask
        )
        metadata = shown(coreset) | {"strategy": config.strategy, "embedded_by": config.embeddings}
        if coreset.embedded:
            metadata["embeddings"] = dg.MetadataValue.json(coreset.embedded)
        if coreset.warning:
            context.log.warning(f"The coreset strategy '{config.strategy}': {coreset.warning}.")
            metadata["warning"] = coreset.warning
        if coreset.dominance.warning:
            context.log.warning(coreset.dominance.warning)
        varied = warning(
            VARIED_CHECK,
            not coreset.dominance.suspicious,
            coreset.dominance.warning,
            {"new_rows": coreset.dominance.new},
        )
        return dg.MaterializeResult(
            value=staged,
            data_version=version(staged.sha256),
            metadata=metadata,
            check_results=[varied],
        )


def shown(coreset: Coreset) -> dict[str, Any]:
    """Return the metadata of a coreset: reasons, coverage, losses, and similarities."""
    metadata: dict[str, object] = {
        "training_rows": len(coreset.table),
        "chosen": coreset.chosen,
        "new_rows": coreset.dominance.new,
        "largest_groups_of_new_rows": table(
            ["group", "name", "rows", "share", ""],
            [
                [
                    group.kind,
                    group.name,
                    group.rows,
                    f"{group.share:.1%}",
                    "suspicious" if group.is_suspicious else "",
                ]
                for group in coreset.dominance.groups
            ],
        ),
        "reasons": counts_table(
            {DESCRIPTIONS.get(reason, reason): count for reason, count in coreset.reasons.items()}
        ),
    }
    if coreset.had_to_choose:
        metadata["tools_covered"], metadata["tasks_covered"] = (
            f"{some} of {every}" for some, every in (coreset.tools, coreset.tasks)
        )
    if coreset.coverage:
        metadata["coverage"] = dg.MetadataValue.json(coreset.coverage)
    if coreset.losses:
        metadata["losses"] = histogram(
            coreset.losses,
            "base model's loss on the training rows",
            "mean loss of a row's assistant tokens",
        )
    if coreset.duplicates.similarities:
        label = "Jaccard similarity to the nearest row before"
        metadata["similarities"] = histogram(
            coreset.duplicates.similarities, "similarity of rows", label
        )
    return metadata
