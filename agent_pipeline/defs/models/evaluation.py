"""The asset `evaluation`, which compares the adapter with its base model on held-out turns.

The comparison itself is in the package `evaluation`.
"""

import dagster as dg

from agent_pipeline.config.assets import ADAPTER, EvaluationConfig
from agent_pipeline.defs.charts import run_chart
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import numbers, table
from agent_pipeline.defs.models.adapter import MAX_DROPPED_SHARE
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, GPU, asset_options, own_check, warning
from agent_pipeline.defs.worker_client import built, run_builder
from agent_pipeline.evaluation.evaluation_report import (
    EvaluationReport,
    parse_evaluation_report,
)
from agent_pipeline.evaluation.model_comparison import METRICS
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.reports.page import PAGE, Split, figure_rows

BETTER = "adapter_beats_its_base"
FIGURES = tuple(
    dict.fromkeys(
        ["exact_call_accuracy", *METRICS, "heldout_loss", "decision_auc", "verified_calls"]
    )
)
"""The model's figures in the metadata, the most important figure first. Dagster plots them."""


@dg.asset(
    **asset_options(
        "models",
        {"pytorch", "report"},
        ARTIFACTS,
        EvaluationConfig,
        checks=[
            own_check(
                "evaluation",
                BETTER,
                "Passes if the model makes significantly more exact tool calls than its base "
                "model, and does not simply call a tool at every turn. If the check fails, look "
                "at the page of the evaluation.",
            )
        ],
        pool=GPU,
    ),
    deps=["heldout_dataset", ADAPTER],
)
def evaluation(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """Scores of the adapter and of its base model on the assistant turns of held-out tasks.

    The scores are the loss, whether the model calls a tool when it should, and whether the calls
    and answers are right. `gguf_export` and `champion` use
    the scores.
    """
    with user_errors():
        config, adapter = (
            in_force(context, workspace, EvaluationConfig),
            workspace.settings().candidate(agent_key(context)),
        )
        result = run_builder(
            context,
            pipes,
            workspace,
            "evaluate",
            {"adapter": adapter.reference, "config": config.model_dump()},
        )
        report = parse_evaluation_report(result["report"])
        head, *rows = figure_rows(Split("test", report))
        shown = (FIGURES[0], "right_decision")
        metadata = {
            **run_chart(context, {name: report.adapter.figure(name) for name in shown}),
            **numbers({name: report.adapter.figure(name) for name in FIGURES}),
            "comparison": table(head, rows),
            "heldout_tasks": report.tasks,
            "candidate": adapter.asset,
            "report": dg.MetadataValue.json(
                {name: value for name, value in result["report"].items() if name != "examples"}
            ),
        }
        why = next(
            (
                f"exact calls, candidate − base: {row[3]}, of {row[-1]} tasks"
                for row in rows
                if row[0].startswith("exact")
            ),
            None,
        )
        return built(
            context, workspace, result, metadata, [better_check(report, why)], {"page": PAGE}
        )


def better_check(report: EvaluationReport, why: str | None = None) -> dg.AssetCheckResult:
    """Return the check that the adapter makes significantly more exact calls than its base."""
    better, model, reasons = (
        report.differences["exact_call_accuracy"],
        report.adapter,
        [why] if why else [],
    )
    recall, over = model.call_recall, model.over_call
    everywhere = False
    if recall is not None and over is not None:
        everywhere = recall - over < PromotionPolicy().least_separation
    if everywhere:
        reasons.append(
            f"it calls a tool at {recall:.0%} of the turns that need a call, and at {over:.0%} of "
            "the turns that need no call"
        )
    if model.truncated > MAX_DROPPED_SHARE * report.n:
        reasons.append(
            f"evaluation.max_new_tokens cut off {model.truncated} of {report.n} turns, which "
            "count as wrong: raise this setting"
        )
    unended = model.unended_calls
    endless = unended > MAX_DROPPED_SHARE * report.n
    if endless:
        reasons.append(f"it does not end its turn after {unended} complete tool calls")
    passed = bool(
        better and better.beyond_noise and better.difference > 0 and not everywhere and not endless
    )
    figures = numbers({"difference": better.difference, "p": better.p} if better else {})
    if not passed and not reasons:
        reasons.append(
            "it does not make significantly more exact calls than its base model"
            if better
            else "no held-out turn needs a call"
        )
    return warning(BETTER, passed, "; ".join(reasons) or None, figures)
