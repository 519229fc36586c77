"""Assets of the stage `models`: the adapter that was trained, and whether it is better than its base."""

from typing import Any, Literal

import dagster as dg
import pyarrow as pa
from pydantic import Field

from agent_pipeline.defs.coresets import another_stands_for_it
from agent_pipeline.defs.defaults import BASE_MODEL
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import curve
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.replay import chosen_rows, held_out_rows
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.specs import ARTIFACTS, asset_options, version
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.errors import DataError
from agent_pipeline.selection.buffer import draw
from agent_pipeline.sessions.tables import to_rows
from agent_pipeline.storage.lake import Artifact


class AdapterConfig(dg.Config):
    """How the adapter is trained; TRL's and peft's names."""

    base_model: str = Field(default=BASE_MODEL, description="Hugging Face id or local path of the model to train.")
    epochs: float = Field(default=1.0, gt=0, description="Passes over the chosen rows.")
    max_steps: int = Field(default=0, ge=0, description="Stop after so many optimizer steps; 0 trains all epochs.")
    learning_rate: float = Field(default=1e-3, gt=0, description="Peak learning rate (LoRA wants about ten times a full fine-tune's).")
    lr_scheduler: str = Field(
        default="linear", description="How the learning rate falls after the warm-up; a name that transformers knows."
    )
    warmup_ratio: float = Field(default=0.1, ge=0, lt=1, description="Share of the steps over which the learning rate rises.")
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm.")
    batch_size: int = Field(default=1, ge=1, description="Rows a forward pass.")
    gradient_accumulation: int = Field(default=2, ge=1, description="Forward passes an optimizer step.")
    lora_r: int = Field(default=16, ge=1, description="Rank of the adapter's matrices.")
    lora_alpha: int = Field(default=32, ge=1, description="Scale of the adapter (alpha / r multiplies its output).")
    lora_dropout: float = Field(default=0.0, ge=0, lt=1, description="Dropout before the adapter's first matrix.")
    target_modules: str = Field(default="all-linear", description="Modules that get an adapter: all-linear, or names with commas between.")
    use_dora: bool = Field(default=False, description="The adapter learns direction and magnitude apart (DoRA, Liu et al. 2024).")
    use_lora_plus: bool = Field(
        default=False, description="The adapter's second matrices learn faster than the first ones (LoRA+, Hayou et al. 2024)."
    )
    lora_plus_lr_ratio: float = Field(default=16.0, ge=1, description="LoRA+: how many times as fast.")
    gradient_checkpointing: Literal["auto", "on", "off"] = Field(
        default="auto", description="Recompute activations to save memory; auto: for long rows. Does not change what is learnt."
    )
    max_length: int = Field(
        default=2048, ge=16, description="Tokens of a row; longer ones lose their oldest exchanges, never half an answer."
    )
    seed: int = Field(default=42, ge=0, description="Seed of the order of rows and of the adapter's first values.")
    replay_ratio: float = Field(
        default=0.1, ge=0, lt=1, description="Share of rows of earlier nights, from replay_buffer, in every batch; none of tonight's again."
    )


@dg.asset(**asset_options("models", {"pytorch", "huggingface"}, ARTIFACTS))
def sft_adapter(
    context: dg.AssetExecutionContext,
    sft_dataset: pa.Table,
    sft_coreset: pa.Table,
    replay_buffer: pa.Table,
    config: AdapterConfig,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """A LoRA adapter, trained by TRL on the chosen rows and some of earlier nights, with loss on the assistant's tokens only. The same
    rows, base and configuration are not trained twice."""
    with user_errors():
        rows = list(to_rows(chosen_rows(sft_dataset, sft_coreset)))
        if not rows:
            raise DataError(
                f"{context.partition_key} has no training rows: see the drop reasons of curated_sessions (sessions without a judgment are "
                "excluded unless judged_sessions is run with when_unjudged=measures)."
            )
        passed_over = {row["session_id"] for row in sft_coreset.to_pylist() if another_stands_for_it(row["reason"])}
        held_out = held_out_rows(workspace, agent_key(context), sft_dataset)
        replay = draw(to_rows(replay_buffer), rows, config.replay_ratio, held_out, passed_over)
        context.log.info(replay.sentence())
        config_values = {name: value for name, value in config.model_dump().items() if name not in ("base_model", "replay_ratio")}
        params = {
            "base_model": config.base_model,
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
        )


class EvaluationConfig(dg.Config):
    """On what, and how far, the models answer."""

    max_samples: int = Field(default=80, ge=1, description="Held-out assistant turns to answer; chosen by hash if there are more.")
    max_new_tokens: int = Field(default=96, ge=1, description="Longest answer, in tokens.")
    max_length: int = Field(default=2048, ge=16, description="Turns with a longer prompt, in tokens, lose their oldest exchanges.")
    seed: int = Field(default=0, description="Seed of the bootstrap.")


@dg.asset(
    **asset_options("models", {"pytorch", "report"}, ARTIFACTS),
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
    sft_adapter: Artifact,
    config: EvaluationConfig,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """Base against adapter on every assistant turn of the held-out tasks: loss; call or answer; the right tool; the right arguments."""
    with user_errors():
        rows = heldout(sft_dataset, context.partition_key)
        made = run_worker(context, pipes, workspace, "evaluate", rows, {"adapter": sft_adapter.identity, "config": config.model_dump()})
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
