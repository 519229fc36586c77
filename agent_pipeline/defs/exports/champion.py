"""The asset `champion`, and the jobs with which a user promotes, holds, or rolls back a model."""

from typing import cast

import dagster as dg

from agent_pipeline.config.assets import ChampionConfig
from agent_pipeline.datasets.verdicts import describe_verdicts
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import numbers, page_link, table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, asset_options, own_check, version, warning
from agent_pipeline.defs.worker_client import run_worker
from agent_pipeline.governance.champion_moves import follow
from agent_pipeline.governance.played_world import find_deciding_world
from agent_pipeline.keys import parse_key
from agent_pipeline.promotion import champions
from agent_pipeline.promotion.approval import hold_back
from agent_pipeline.promotion.comparison import CompareResult
from agent_pipeline.promotion.decision_wording import (
    describe_outcome,
    describe_reasons,
    make_figure_rows,
    summarize,
)
from agent_pipeline.promotion.next_steps import outlook
from agent_pipeline.promotion.nightly_decision import (
    EvaluatedCandidate,
    PromotionSettings,
    decide_night,
)
from agent_pipeline.redaction import Redactor
from agent_pipeline.reports.page import PAGE
from agent_pipeline.storage.pointers import Entry

CHECK = "candidate_is_not_rejected"


@dg.asset(
    **asset_options(
        "exports",
        {"report"},
        ARTIFACTS,
        ChampionConfig,
        checks=[
            own_check(
                "champion",
                CHECK,
                "Passes if the candidate was compared, and no regression check rejects it. If "
                "the check fails, look at the page of the decision. The page names the figure "
                "that got worse, or says what is missing for a decision.",
            )
        ],
    ),
    # The episodes change with the export and with the held-out rows. The evaluation changes with
    # the adapter and with the held-out rows, so neither edge is drawn a second time.
    deps=["episodes"],
)
def champion(
    context: dg.AssetExecutionContext,
    workspace: dg.ResourceParam[Workspace],
    pipes: dg.ResourceParam[dg.PipesSubprocessClient],
) -> dg.MaterializeResult:
    """The decision whether the candidate replaces the champion, which is the model that is
    served.

    The outcome of the decision is promote, hold, reject or cannot decide. The candidate and the
    champion answer the same turns of the split `select`, and play the same episodes. If there is no
    champion, the candidate is compared with its base model. If the outcome is promote and `approve`
    is `"auto"`, the candidate becomes the champion. For some nights, it is then still compared with
    the previous champion. If `approve` is `"person"`, a person must promote the candidate.
    """
    with user_errors():
        config = in_force(context, workspace, ChampionConfig)
        lake, key = workspace.open_lake(), agent_key(context)
        deciding_world = find_deciding_world(workspace.settings(), lake, key)
        evaluation, gguf_export = lake.latest("evaluation", key), lake.latest("gguf_export", key)

        def compare(params: dict[str, object]) -> CompareResult:
            result = run_worker(
                context,
                pipes,
                workspace,
                "compare",
                params | config.compare_params(),
                tables=["sft_dataset", "heldout_dataset"],
            )
            return cast(CompareResult, result)

        promotion_settings = PromotionSettings(
            config, config.approve, config.probation_nights, deciding_world
        )
        night = decide_night(
            lake,
            key,
            EvaluatedCandidate(gguf_export, evaluation),
            compare,
            promotion_settings,
            Redactor(workspace.settings().redaction_options),
            f"run {context.run_id}",
        )
        seen, decided = night.probation, night.decided
        failed, written = night.candidate_was_rolled_back, night.mlflow
        probation = (
            {"probation": f"{seen.candidate[:16]}: {summarize(seen.decision)}"} if seen else {}
        )
        in_mlflow = {"mlflow": written.text} if written else {}
        if written and not written.ok:
            context.log.warning(written.text)
        if seen:
            context.log.info(
                f"the check of the new champion {seen.candidate[:16]}: {summarize(seen.decision)}"
            )
        if decided is None:
            context.log.info(
                "no decision is made: the candidate "
                + ("was rolled back" if failed else "is already the champion")
            )
            metadata = probation if failed else {"decision": "it is already the champion"}
            stands = str(seen.champion) if seen and failed else gguf_export.identity
            return dg.MaterializeResult(
                value=None,
                metadata={"champion": stands, **in_mlflow, **probation},
                check_results=[warning(CHECK, not failed, probation.get("probation"), metadata)],
            )
        record, decision = decided.entry, decided.entry.decision
        context.log.info(f"the decision on {gguf_export.identity[:16]}: {summarize(decision)}")
        reasons = describe_reasons(decision)
        if decided.hold:
            context.log.info(decided.hold)
            # The first reason is in the digest: why a winner is not promoted, or why it lost.
            reasons.insert(0 if decision.outcome == "promote" else len(reasons), decided.hold)
        if record.verdicts:
            context.log.info(describe_verdicts(record.verdicts))
        if decided.waits_for_a_person:
            context.log.info(
                f"{gguf_export.identity[:16]} can be promoted, and waits for a person: run "
                f"`agent-pipeline promote {key}`"
            )
        tasks = outlook(lake, key, decision, workspace.settings().split_sizes, config.select_turns)
        parts = {"figures": decision.figures, "figures_on_test": record.test}
        figures = {
            name: make_figure_rows(part, "champion" if record.champion else "base")
            for name, part in parts.items()
        }
        return dg.MaterializeResult(
            value=decided.page,
            data_version=version(decided.page.identity),
            metadata={
                "decision": describe_outcome(decision),
                "why": "\n".join(reasons),
                "verdicts": describe_verdicts(record.verdicts) if record.verdicts else "not known",
                "held_out_tasks": tasks,
                "held_by_a_person": bool(decided.hold),
                "wins_and_waits_for_a_person": decided.waits_for_a_person,
                "champion": decided.champion or "none",
                "page": dg.MetadataValue.path(str(decided.page.path / PAGE)),
                **page_link(workspace.settings().pages_url, key, "decision"),
                **{name: table(head, rows) for name, (head, *rows) in figures.items()},
                "decision_number": record.number,
                **in_mlflow,
                **probation,
                **numbers(
                    {
                        "gain": next(
                            (
                                figure.difference
                                for figure in decision.figures
                                if figure.name == "gain"
                            ),
                            None,
                        ),
                        "p_value": decision.p_value,
                    }
                ),
            },
            check_results=[
                warning(
                    CHECK,
                    decision.outcome not in ("reject", "cannot decide"),
                    "; ".join(reasons),
                    {"decision": describe_outcome(decision)},
                )
            ],
        )


EXPORT_NAMED = {
    "identity": dg.Field(
        str,
        default_value="",
        description=(
            "First digits of the identity of an export or its adapter. If this setting is empty, "
            "the latest export is used."
        ),
    ),
    "why": dg.Field(
        str, default_value="", description="The reason, which is stored in the history."
    ),
}


@dg.op(config_schema=EXPORT_NAMED)
def promote_export(context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]) -> None:
    """Make an export the champion."""
    with user_errors():
        run_values = context.op_config
        entry = champions.promote(
            workspace.open_lake(),
            parse_key(context.partition_key),
            run_values["identity"],
            run_values["why"],
            Redactor(workspace.settings().redaction_options),
        )
        _serve(context, workspace, entry)


@dg.op(config_schema=EXPORT_NAMED)
def hold_export(context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]) -> None:
    """Hold back an export, so that it is not promoted automatically."""
    with user_errors():
        record = hold_back(
            workspace.open_lake(), parse_key(context.partition_key), **context.op_config
        )
        context.log.info(f"{record.candidate} of {context.partition_key} is held back")


@dg.op(
    config_schema={
        "to": dg.Field(
            int,
            default_value=0,
            description="Number of the champion in the history. 0 means the previous champion.",
        ),
        "why": dg.Field(
            str, default_value="", description="The reason, which is stored in the history."
        ),
    }
)
def roll_back(context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]) -> None:
    """Make an earlier champion the champion again."""
    with user_errors():
        run_values = context.op_config
        entry = champions.rollback(
            workspace.open_lake(),
            parse_key(context.partition_key),
            run_values["to"] or None,
            run_values["why"],
        )
        _serve(context, workspace, entry)


def _serve(context: dg.OpExecutionContext, workspace: Workspace, entry: Entry) -> None:
    key = parse_key(context.partition_key)
    context.log.info(f"{entry.champion} is the champion of {key}")
    warnings, lines = follow(workspace.settings(), key, entry)
    for line in lines:
        context.log.info(line)
    for line in warnings:
        context.log.error(line)
    champions.complete_move(workspace.open_lake(), key)


@dg.job(
    partitions_def=AGENTS,
    description="Makes an export of one agent the champion, which is the model that is served.",
)
def promote() -> None:
    """Run the step that promotes an export."""
    promote_export()


@dg.job(
    partitions_def=AGENTS,
    description="Holds back an export of one agent, so that no decision promotes the export.",
)
def hold() -> None:
    """Run the step that holds back an export."""
    hold_export()


@dg.job(
    partitions_def=AGENTS, description="Makes an earlier champion of one agent the champion again."
)
def rollback() -> None:
    """Run the step that restores an earlier champion."""
    roll_back()
