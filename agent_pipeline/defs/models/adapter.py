"""The asset `adapter`, which runs an agent's chain of training steps.

The steps themselves run in worker processes, and their code is in the package `training`. Each step
is a separate artifact in the lake, so a step whose rows, base model and settings did not change is
reused.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, cast

import dagster as dg
from msgspec import UNSET

from agent_pipeline.compute.registry import StepResult
from agent_pipeline.config.assets import ADAPTER, ASSETS, STEP_GROUPS, AdapterConfig
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.defs.charts import step_chart
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.io_managers.artifacts import ArtifactChain
from agent_pipeline.defs.metadata import numbers, table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import resolve_for_run, show_settings, step_fields
from agent_pipeline.defs.specs import ARTIFACTS, GPU, asset_options, own_check, version, warning
from agent_pipeline.defs.worker_client import find_built, run_worker
from agent_pipeline.storage.lake import Artifact
from agent_pipeline.training.chain import name_adapter_asset
from agent_pipeline.training.config import FURTHER, PREFERENCES, Step
from agent_pipeline.training.report import (
    DecisionLooks,
    Look,
    SkippedReport,
    StepReport,
    TrainingReport,
    read_step_report,
)

MAX_DROPPED_SHARE = 0.1
"""Maximum share of rows that training may leave out, and of turns that a token limit may cut off,
without a warning.
"""

TRAINED = "rows_are_trained"
IMITATION_TABLES = ("sft_dataset", "sft_coreset", "replay_buffer")


@dataclass(frozen=True)
class FinishedStep:
    """A training step of the chain that has finished or was reused.

    Attributes:
        step: The step's name, such as `sft` or `dpo`.
        artifact: The artifact in the lake. It holds no weights if the step was skipped.
        result: What the worker returned: `identity`, `reused` and `report`, and for `sft` counts
            of rows.
        report: The report of the step.
    """

    step: Step
    artifact: Artifact
    result: StepResult
    report: StepReport

    @property
    def skipped(self) -> str:
        """Return the reason why the step did not train an adapter, or an empty string."""
        return self.report.skipped if isinstance(self.report, SkippedReport) else ""

    @property
    def trained(self) -> TrainingReport:
        """Return the report of a step that trained an adapter."""
        assert isinstance(self.report, TrainingReport)
        return self.report


@dg.asset(
    **asset_options(
        "models",
        {"pytorch", "huggingface"},
        ARTIFACTS,
        checks=[
            own_check(
                ADAPTER,
                TRAINED,
                "Passes if every training step trained an adapter and left out at most a tenth "
                "of its rows. If the check fails, the result of the check names the step and the "
                "setting to change.",
            )
        ],
        pool=GPU,
    )
    | {"config_schema": step_fields({group: ASSETS[group] for group in STEP_GROUPS})},
    # The coreset changes whenever `sft_dataset` does, so that edge is not drawn a second time.
    deps=["sft_coreset", "replay_buffer", *PREFERENCES.values()],
)
def adapter(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """The LoRA adapter that the last training step of the setting `train` made.

    The training steps start with supervised fine-tuning (SFT) on the selected rows. DPO, KTO, GRPO,
    self-distillation and distillation can follow. Each step continues from the adapter of the
    previous step. If nothing changed for a step, its adapter is used again. The later assets
    evaluate, export and serve the last adapter.
    """
    with user_errors():
        chain = workspace.settings().chain(agent_key(context))
        setting_rows: list[dict[str, object]] = []
        steps: list[FinishedStep] = []
        for step in chain:
            sft_adapter = steps[0].artifact if steps else None
            options, rows = resolve_for_run(
                context, workspace, ASSETS[name_adapter_asset(step)], sft_adapter
            )
            setting_rows += [
                row | {"setting": f"{name_adapter_asset(step)}.{row['setting']}"} for row in rows
            ]
            if step == "sft":
                finished = _train_first_step(context, workspace, pipes, options)
            else:
                finished = _train_further_step(
                    context, workspace, pipes, step, options, trained_last(steps)
                )
            steps.append(finished)
            _log_step(context, finished, trained_last(steps))
        return _materialization(context, steps, setting_rows)


def trained_last(steps: Sequence[FinishedStep]) -> FinishedStep:
    """Return the last step that trained an adapter. The first step always trains an adapter."""
    return next(step for step in reversed(steps) if not step.skipped)


def _train_first_step(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    pipes: dg.PipesSubprocessClient,
    options: object,
) -> FinishedStep:
    """Run supervised fine-tuning in a worker process."""
    assert isinstance(options, AdapterConfig)
    config = options.model_dump()
    params = {
        name: config.pop(name)
        for name in ("base_model", "base_revision", "replay_ratio", "rehearsal")
    }
    group = name_adapter_asset("sft")
    params |= {"config": config, "mix": False, "coreset": None}
    result = run_worker(context, pipes, workspace, "train", params, group, IMITATION_TABLES)
    return _finish(context, workspace, "sft", cast(StepResult, result))


def _train_further_step(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    pipes: dg.PipesSubprocessClient,
    step: Step,
    options: object,
    previous: FinishedStep,
) -> FinishedStep:
    """Continue training the adapter of the previous step in a worker process."""
    assert isinstance(options, FURTHER[step])
    dataset = PREFERENCES.get(step, "sft_dataset")
    params = {
        "method": step,
        "mix": False,
        "dataset": dataset,
        "world": workspace.settings().world(agent_key(context)),
        "reference": previous.artifact.reference,
        "config": options.model_dump(),
    }
    task = "prefer" if step in PREFERENCES else "on_policy"
    group = name_adapter_asset(step)
    tables = tuple(dict.fromkeys([dataset, "sft_dataset"]))
    result = run_worker(context, pipes, workspace, task, params, group, tables)
    return _finish(context, workspace, step, cast(StepResult, result))


def _finish(
    context: dg.AssetExecutionContext, workspace: Workspace, step: Step, result: StepResult
) -> FinishedStep:
    """Return a finished step with its artifact and its report, made from the worker's result."""
    artifact = find_built(context, workspace, name_adapter_asset(step), result["identity"])
    return FinishedStep(step, artifact, result, read_step_report(artifact))


def _log_step(
    context: dg.AssetExecutionContext, finished: FinishedStep, candidate: FinishedStep
) -> None:
    """Log where a step was trained, and report anything unusual about the step."""
    result = finished.result
    device = "nothing" if finished.skipped else finished.trained.device
    context.log.info(
        f"{finished.step}: trained on {device}"
        + (f"; {result['replayed']}" if result.get("replayed") else "")
    )
    if result.get("by_size"):
        context.log.info(result["by_size"])
    if finished.skipped:
        context.log.warning(
            f"The step {finished.step} of {context.partition_key} trained nothing: "
            f"{finished.skipped} The adapter of the step {candidate.step} is used."
        )
        return
    verdicts = finished.trained.verdicts
    if verdicts and verdicts["verified"] < verdicts["verdicts"]:
        context.log.warning(
            f"{context.partition_key} is trained on unverified sessions: "
            f"{describe_verdicts(verdicts)}."
        )


def _materialization(
    context: dg.AssetExecutionContext,
    steps: Sequence[FinishedStep],
    setting_rows: Sequence[Mapping[str, Any]],
) -> dg.MaterializeResult:
    """Return the materialization of the chain, with its last adapter and one row per step.

    The UI shows metadata in this order, so the loss comes first and the settings last.
    """
    first, last = steps[0], trained_last(steps)
    metadata: dict[str, Any] = {
        "loss": step_chart(
            "training loss (nats per token)",
            [(entry["step"], entry["loss"]) for entry in last.trained.log_history],
        ),
        **_validation(last.trained),
        **numbers({"loss_last": last.trained.loss_last, "loss_first": last.trained.loss_first}),
        "steps": step_table(steps),
        "step": last.step,
        "rows": first.result["rows"],
        "rows_with_surrogates": first.result["rows_with_surrogates"],
        "replayed": first.result["replayed"],
        "template": first.trained.template_reason,
        "variation": first.trained.variation.describe() if first.trained.variation else "none",
        "reused": all(step.result["reused"] for step in steps),
    }
    if last.trained.verdicts:
        metadata["verdicts"] = describe_verdicts(last.trained.verdicts)
    for step in steps:
        metadata[f"{step.step}_report"] = report_metadata(step.result["report"])
    if setting_rows:
        metadata["settings"] = show_settings(setting_rows)
    return dg.MaterializeResult(
        value=ArtifactChain(tuple(step.artifact for step in steps), last.artifact),
        data_version=version(last.artifact.identity),
        metadata=metadata,
        check_results=[trained_check(steps)],
    )


def _validation(report: TrainingReport) -> dict[str, dg.MetadataValue]:
    """Return a chart of the measurements on the split `select` during the training.

    Only the steps after supervised fine-tuning measure the model while they train.
    """
    if not isinstance(report.decisions, DecisionLooks) or not report.decisions.looks:
        return {}
    looks = [Look(0, report.decisions.before), *report.decisions.looks]
    points = [(float(look.step), fmean(look.select.values())) for look in looks if look.select]
    return {"validation": step_chart("right decisions on the split select", points, top=1.0)}


def step_table(steps: Sequence[FinishedStep]) -> dg.MetadataValue:
    """Return a table with one row per step: rows, losses, minutes, identity, and folder."""
    rows = []
    for step in steps:
        counts = step.report.rows
        first_loss, last_loss, minutes = "", "", ""
        if isinstance(step.report, TrainingReport):
            first_loss = f"{step.report.loss_first:.3f}"
            last_loss = f"{step.report.loss_last:.3f}"
            if step.report.seconds is not UNSET:
                minutes = f"{step.report.seconds / 60:.1f}"
        rows.append(
            [
                step.step,
                counts.get("kept", counts.get("trained", "")),
                first_loss,
                last_loss,
                minutes,
                "reused" if step.result["reused"] else step.skipped or "trained",
                step.artifact.identity[:16],
                str(step.artifact.path),
            ]
        )
    head = [
        "step",
        "rows",
        "first loss",
        "last loss",
        "minutes",
        "state",
        "identity",
        "folder",
    ]
    return table(head, rows)


def report_metadata(report: dict[str, object]) -> dg.MetadataValue:
    """Return a training report for the UI, without its long lists."""
    return dg.MetadataValue.json(
        {name: value for name, value in report.items() if name not in ("log_history", "row_ids")}
    )


def trained_check(steps: Sequence[FinishedStep]) -> dg.AssetCheckResult:
    """Return the check that every step trained an adapter and left out only few rows."""
    reasons: list[str] = []
    counts: dict[str, object] = {}
    for step in steps:
        counts |= {f"{step.step}_{name}": count for name, count in left_out(step.report).items()}
        if reason := step.skipped or why_rows_are_left_out(step.step, step.report):
            reasons.append(f"{step.step}: {reason}")
    return warning(TRAINED, not reasons, "; ".join(reasons) or None, counts)


def left_out(report: StepReport) -> dict[str, Any]:
    """Return the counts of rows that a training report lists as left out or unusual."""
    return {
        name: count
        for name, count in report.rows.items()
        if name.startswith(("dropped", "special", "reasoning"))
    }


def why_rows_are_left_out(step: Step, report: StepReport) -> str:
    """Return the reason why too many rows, or the recorded thoughts, were not trained.

    The text is empty if nothing important was left out.
    """
    counts = left_out(report)
    if thoughts := counts.get("reasoning_not_rendered", 0):
        return (
            f"{thoughts} recorded thoughts are not used for training, because the chat template "
            "does not render thoughts (see template): set sft_dataset.reasoning = false, or "
            "choose a reasoning model."
        )
    dropped_share = counts.pop("dropped_share", 0.0)
    if dropped_share <= MAX_DROPPED_SHARE:
        return ""
    causes = ", ".join(
        f"{count} {name.replace('_', ' ')}" for name, count in counts.items() if count
    )
    remedy = f"raise {name_adapter_asset(step)}.max_length"
    dropped = {name: count for name, count in counts.items() if name.startswith("dropped")}
    if max(dropped, key=lambda name: dropped[name], default="") == "dropped_not_shown":
        remedy = "choose a base model whose chat template shows every system and user message"
    return (
        f"{dropped_share:.0%} of the rows were not used for training ({causes}), which is more "
        f"than {MAX_DROPPED_SHARE:.0%}: {remedy}"
    )
