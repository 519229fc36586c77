"""Assets of the stage `models`: the adapter that was trained, and whether it is better than its base."""

from typing import Any

import dagster as dg
import pyarrow as pa

from agent_pipeline.config.assets import AdapterConfig, EvaluationConfig
from agent_pipeline.datasets.splits import SplitSizes
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import curve
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, CANDIDATE, asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.errors import DataError
from agent_pipeline.selection.replay import night_rows
from agent_pipeline.sessions.tables import to_rows
from agent_pipeline.storage.lake import Artifact

MOST_DROPPED = 0.1
"""Share of the rows that may fall out of training (too long, not rendered by the template) without a warning."""


@dg.asset(
    **asset_options("models", {"pytorch", "huggingface"}, ARTIFACTS, options=AdapterConfig),
    deps=["sft_dataset", "sft_coreset", "replay_buffer"],
    dagster_type=dg.Any,  # else Dagster takes an asset with a check for one that gives nothing
    check_specs=[
        dg.AssetCheckSpec(
            "rows_are_trained", asset="sft_adapter", partitions_def=AGENTS, description="At most a tenth of the rows fall out of training."
        )
    ],
)
def sft_adapter(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """A LoRA adapter, trained by TRL on the chosen rows and some of earlier nights, with loss on the assistant's tokens only. The same
    rows, base and configuration are not trained twice."""
    with user_errors():
        config = in_force(context, workspace, AdapterConfig)
        split = workspace.settings().split
        night = night_rows(workspace.open_lake(), agent_key(context), config.replay_ratio, SplitSizes(split.test, split.select))
        rows, replay = night.rows, night.replay
        context.log.info(replay.sentence())
        config_values = {
            name: value for name, value in config.model_dump().items() if name not in ("base_model", "base_revision", "replay_ratio")
        }
        params = {
            "base_model": config.base_model,
            "base_revision": config.base_revision,
            "config": config_values,
            "replayed": len(replay.rows),
            "replay_ratio": config.replay_ratio,
        }
        made = run_worker(context, pipes, workspace, "train", rows + replay.rows, params)
        report = made["report"]
        return dg.MaterializeResult(
            value=artifact_made(context, workspace, "sft_adapter", made),
            data_version=version(made["identity"]),
            metadata={
                "reused": made["reused"],
                "rows": len(rows),
                "replay": dg.MetadataValue.json(replay.report()),
                "replayed": replay.sentence(),
                "report": dg.MetadataValue.json({name: value for name, value in report.items() if name not in ("log_history", "row_ids")}),
                "loss": curve([(each["step"], each["loss"]) for each in report["log_history"]], "training loss", "step", "loss"),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name="rows_are_trained",
                    passed=report["rows"].get("dropped_share", 0.0) <= MOST_DROPPED,
                    severity=dg.AssetCheckSeverity.WARN,
                    metadata={name: count for name, count in report["rows"].items() if name.startswith("dropped")},
                )
            ],
        )


@dg.asset(
    **asset_options("models", {"pytorch", "report"}, ARTIFACTS, options=EvaluationConfig),
    ins={"adapter": dg.AssetIn(CANDIDATE)},
    dagster_type=dg.Any,  # else Dagster takes an asset with a check for one that gives nothing
    check_specs=[
        dg.AssetCheckSpec(
            "adapter_beats_its_base", asset="evaluation", partitions_def=AGENTS, description="Exact calls: the whole interval is above 0."
        )
    ],
)
def evaluation(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    adapter: Artifact,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """Base against adapter on every assistant turn of the held-out tasks: loss; call or answer; the right tool; the right arguments."""
    with user_errors():
        config = in_force(context, workspace, EvaluationConfig)
        rows = heldout(sft_dataset, context.partition_key)
        made = run_worker(context, pipes, workspace, "evaluate", rows, {"adapter": adapter.reference, "config": config.model_dump()})
        report = made["report"]
        better = report["differences"]["exact_call_accuracy"]
        return dg.MaterializeResult(
            value=artifact_made(context, workspace, "evaluation", made),
            data_version=version(made["identity"]),
            metadata={
                "reused": made["reused"],
                "heldout_tasks": len({row["task_key"] for row in rows}),
                "comparison": comparison_table(report),
                "report": dg.MetadataValue.json({name: value for name, value in report.items() if name not in ("samples", "examples")}),
            },
            check_results=[
                dg.AssetCheckResult(
                    check_name="adapter_beats_its_base",
                    passed=bool(better and better["low"] is not None and better["low"] > 0),
                    severity=dg.AssetCheckSeverity.WARN,
                    metadata={"difference": dg.MetadataValue.json(better)},
                )
            ],
        )


def heldout(dataset: pa.Table, partition: str) -> list[dict[str, Any]]:
    """The rows of the `test` side.

    Raises:
        DataError: there are none.
    """
    rows = [row for row in to_rows(dataset) if row["split"] == "test"]
    if not rows:
        tasks = len({row["task_key"] for row in to_rows(dataset)})
        raise DataError(
            f"{partition} has no held-out rows: its {tasks} tasks all fell on the training side; about 10 are needed for 2 to be held out "
            "(no training row is ever used instead)."
        )
    return rows


def comparison_table(report: dict[str, Any]) -> dg.MetadataValue:
    """Base, adapter and their difference with its interval, a line a measure."""
    lines = ["| measure | base | adapter | adapter − base (95 %) | turns |", "|---|---:|---:|---|---:|"]
    for name, difference in report["differences"].items():
        if difference is not None:
            base, adapter = report["base"][name], report["adapter"][name]
            interval = f"{difference['difference']:+.3f}"
            if difference["low"] is not None:
                interval += f" [{difference['low']:+.3f}, {difference['high']:+.3f}]"
            lines.append(f"| {name.replace('_', ' ')} | {base:.3f} | {adapter:.3f} | {interval} | {difference['samples']} |")
    return dg.MetadataValue.md("\n".join(lines))


def artifact_made(context: dg.AssetExecutionContext, workspace: Workspace, asset: str, made: dict[str, Any]) -> Artifact:
    """The directory that the worker process built."""
    found = workspace.open_lake().find(asset, agent_key(context), made["identity"])
    if found is None:
        raise DataError(f"The {asset} of {context.partition_key} vanished after it was made: materialize it again.")
    return found
