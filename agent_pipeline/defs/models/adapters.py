"""Assets of the stage `models`: the adapter that was trained, and whether it is better than its base."""

from typing import Any

import dagster as dg

from agent_pipeline.config.assets import AdapterConfig, EvaluationConfig
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import curve, numbers, table
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import (
    ADAPTERS,
    ARTIFACTS,
    GPU,
    asset_options,
    check_result,
    own_check,
    warning,
)
from agent_pipeline.defs.worker_client import built, run_worker
from agent_pipeline.evaluation.model_comparison import METRICS
from agent_pipeline.evaluation.scores import Policy
from agent_pipeline.reports.page import PAGE, Split, figure_rows
from agent_pipeline.training.chain import SKIPPED, STEPS, adapter_of, candidate
from agent_pipeline.training.config import FURTHER, PREFERENCES, Step

MOST_DROPPED = 0.1
"""Share of the rows that may fall out of training (too long, not rendered by the template), and of the turns that a limit may end,
without a warning."""

LOSSES = ("loss_first", "loss_last")
TRAINED, BETTER = "rows_are_trained", "adapter_beats_its_base"


@dg.asset(
    **asset_options(
        "models",
        {"pytorch", "huggingface"},
        ARTIFACTS,
        AdapterConfig,
        checks=[
            own_check("sft_adapter", TRAINED, "At most a tenth of the rows fall out of training.")
        ],
        pool=GPU,
    ),
    deps=["sft_dataset", "sft_coreset", "replay_buffer"],
)
def sft_adapter(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """A LoRA adapter, trained by TRL on the chosen rows, some of earlier nights and the base's own answers to plain questions, with loss on
    the assistant's tokens only. The same rows, base and configuration are not trained twice."""
    with user_errors():
        config = in_force(context, workspace, AdapterConfig).model_dump()
        params = {
            name: config.pop(name)
            for name in ("base_model", "base_revision", "replay_ratio", "rehearsal")
        }
        result = run_worker(context, pipes, workspace, "train", params | {"config": config})
        report = result["report"]
        context.log.info(f"trained on: {report['device']}; {result['replayed']}")
        if result.get("by_size"):
            context.log.info(result["by_size"])
        metadata = {
            "rows": result["rows"],
            "rows_with_surrogates": result["rows_with_surrogates"],
            "replayed": result["replayed"],
            **told_verdicts(context, report),
            "template": report["template"]["why"],
            "report": report_metadata(report),
            "loss": loss_curve(report),
            **numbers({name: report[name] for name in LOSSES}),
        }
        return built(context, workspace, result, metadata, [trained_check(report)])


def further_asset(step: Step, how: str) -> dg.AssetsDefinition:
    """The asset of a step after imitation."""
    name, options, dataset = adapter_of(step), FURTHER[step], PREFERENCES.get(step, "sft_dataset")
    before = STEPS[: STEPS.index(step)]

    @dg.asset(
        **asset_options(
            "models",
            {"pytorch", "huggingface"},
            ARTIFACTS,
            options,
            checks=[
                own_check(
                    name,
                    TRAINED,
                    "An adapter was trained, and at most a tenth of the rows fell out of training.",
                )
            ],
            pool=GPU,
        ),
        name=name,
        deps=[*dict.fromkeys([dataset, "sft_dataset"]), *map(adapter_of, before)],
        description=f"The adapter before it in the agent's chain, trained on by {step.upper()} from {dataset}: {how}. Only the assistant's "
        f"tokens count. Nothing is trained for an agent whose setting `train` does not name {step}.",
    )
    def adapter(
        context: dg.AssetExecutionContext,
        workspace: dg.ResourceParam[Workspace],
        pipes: dg.ResourceParam[dg.PipesSubprocessClient],
    ) -> dg.MaterializeResult:
        with user_errors():
            settings = workspace.settings()
            chain = settings.chain(agent_key(context))
            if step not in chain:
                passed = check_result(True, None, {"train": ", ".join(chain)}, TRAINED)
                return dg.MaterializeResult(
                    value=None, metadata={"train": ", ".join(chain)}, check_results=[passed]
                )
            config = in_force(context, workspace, options)
            reference = candidate(
                workspace.open_lake(),
                agent_key(context),
                [each for each in chain if each in before],
            )
            params = {
                "method": step,
                "dataset": dataset,
                "world": settings.world(agent_key(context)),
                "reference": reference.reference,
                "config": config.model_dump(),
            }
            result = run_worker(
                context, pipes, workspace, "prefer" if step in PREFERENCES else "on_policy", params
            )
            report = result["report"]
            skipped = report.get(SKIPPED, "")
            context.log.info(f"trained on: {report.get('device', 'nothing')}")
            if skipped:
                context.log.warning(
                    f"{context.partition_key} has no {name}: {skipped} The candidate stays {reference.asset}."
                )
            metadata = {
                "reference": reference.asset,
                "report": report_metadata(report),
                **told_verdicts(context, report),
            }
            metadata |= (
                {SKIPPED: skipped}
                if skipped
                else {"loss": loss_curve(report)} | numbers({name: report[name] for name in LOSSES})
            )
            check = trained_check(report, skipped)
            return built(context, workspace, result, metadata, [check])

    return adapter


sdft_adapter = further_asset("sdft", "it writes, and, shown the logged turn, says how")
distill_adapter = further_asset("distill", "it writes, and a larger model says how")
dpo_adapter = further_asset("dpo", "pairs, with that adapter as the reference")
kto_adapter = further_asset("kto", "judged sessions, with that adapter as the reference")
grpo_adapter = further_asset("grpo", "rewards of the agent's world, or of the logged turns")


def report_metadata(report: dict[str, Any]) -> dg.MetadataValue:
    """A training's report without what fills pages."""
    return dg.MetadataValue.json(
        {name: value for name, value in report.items() if name not in ("log_history", "row_ids")}
    )


def told_verdicts(context: dg.AssetExecutionContext, report: dict[str, Any]) -> dict[str, Any]:
    """Return how many verdicts of the trained rows are verified, for the metadata; warn if some are not."""
    verdicts = report.get("verdicts")
    if not verdicts:
        return {}
    sentence = describe_verdicts(verdicts)
    if verdicts["verified"] < verdicts["verdicts"]:
        context.log.warning(
            f"{context.partition_key} is trained on unverified sessions: {sentence}."
        )
    return {"verdicts": sentence}


def loss_curve(report: dict[str, Any]) -> dg.MetadataValue:
    return curve(
        [(each["step"], each["loss"]) for each in report["log_history"]],
        "training loss",
        "step",
        "loss",
    )


def trained_check(report: dict[str, Any], skipped: str = "") -> dg.AssetCheckResult:
    """Whether an adapter was trained, few rows fell out of it, and the thoughts that should be trained were."""
    if thoughts := report["rows"].get("reasoning_not_rendered", 0):
        skipped = skipped or (
            f"{thoughts} recorded thoughts are not trained, since the chat template shows none (see template): set sft_dataset.reasoning = "
            "false, or choose a base model that thinks."
        )
    counts = {
        name: count
        for name, count in report["rows"].items()
        if name.startswith(("dropped", "special", "reasoning"))
    }
    dropped = counts.get("dropped_share", 0.0)
    if dropped > MOST_DROPPED:
        why = ", ".join(
            f"{count} {name.replace('_', ' ')}"
            for name, count in counts.items()
            if count and name != "dropped_share"
        )
        skipped = (
            skipped
            or f"{dropped:.0%} of the rows were not trained ({why}), more than {MOST_DROPPED:.0%}: raise sft_adapter.max_length"
        )
    return warning(TRAINED, not skipped and dropped <= MOST_DROPPED, skipped or None, counts)


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
                "More exact calls than the base, beyond noise, and not by calling everywhere.",
            )
        ],
        pool=GPU,
    ),
    deps=["sft_dataset", *ADAPTERS],
)
def evaluation(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """Base against adapter on the assistant's turns of the held-out tasks: loss; whether it calls, asks, refuses or answers when it should;
    exact calls and right answers."""
    with user_errors():
        config, adapter = (
            in_force(context, workspace, EvaluationConfig),
            workspace.settings().candidate(agent_key(context)),
        )
        result = run_worker(
            context,
            pipes,
            workspace,
            "evaluate",
            {"adapter": adapter.reference, "config": config.model_dump()},
        )
        report = result["report"]
        head, *rows = figure_rows(Split("test", report))
        metadata = {
            "candidate": adapter.asset,
            "heldout_tasks": report["tasks"],
            "comparison": table(head, rows),
            **numbers(
                {
                    name: report["adapter"][name]
                    for name in ("heldout_loss", "decision_auc", "verified_calls", *METRICS)
                }
            ),
            "report": dg.MetadataValue.json(
                {
                    name: value
                    for name, value in report.items()
                    if name not in ("samples", "examples")
                }
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


def better_check(report: dict[str, Any], why: str | None = None) -> dg.AssetCheckResult:
    """Whether the candidate makes more exact calls than its base, beyond noise, and not by calling everywhere."""
    better, model, reasons = (
        report["differences"]["exact_call_accuracy"],
        report["adapter"],
        [why] if why else [],
    )
    recall, over = model["call_recall"], model["over_call"]
    everywhere = None not in (recall, over) and recall - over < Policy().least_separation
    if everywhere:
        reasons.append(
            f"it calls at {recall:.0%} of the turns that need a call, and at {over:.0%} of the others"
        )
    if model["truncated"] > MOST_DROPPED * report["n"]:
        reasons.append(
            f"{model['truncated']} of {report['n']} turns were ended by evaluation.max_new_tokens, and are wrong: raise it"
        )
    unended = model.get("unended_calls", 0)  # 0 in reports of older versions
    endless = unended > MOST_DROPPED * report["n"]
    if endless:
        reasons.append(f"after {unended} whole calls it does not end its turn")
    passed = bool(
        better
        and better["beyond_noise"]
        and better["difference"] > 0
        and not everywhere
        and not endless
    )
    figures = numbers({name: better[name] for name in ("difference", "p")} if better else {})
    if not passed and not reasons:
        reasons.append(
            "no gain of exact calls over the base is beyond noise"
            if better
            else "no held-out turn needs a call"
        )
    return warning(BETTER, passed, "; ".join(reasons) or None, figures)
