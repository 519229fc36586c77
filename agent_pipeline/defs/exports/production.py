"""The asset `production`, which compares the champion with the agent that it replaces."""

import dagster as dg

from agent_pipeline.config.assets import ChampionConfig, ServingConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import numbers, page_link, table, weekly_shares
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.specs import ARTIFACTS, asset_options, own_check, version, warning
from agent_pipeline.gateway.traffic import stop_traffic
from agent_pipeline.governance.played_world import find_world_in_force
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import serve_champion
from agent_pipeline.promotion.decision_wording import summarize
from agent_pipeline.promotion.ledger import LedgerEntry
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.promotion.probation import (
    find_self_promotion,
    is_first_self_promotion,
    roll_back_worse_champion,
)
from agent_pipeline.promotion.production import (
    ProductionOptions,
    ProductionReport,
    measure_production,
    read_production_report,
)
from agent_pipeline.promotion.production_page import (
    describe_comparison,
    describe_limits,
    describe_report,
    list_shares,
    make_figures_table,
)
from agent_pipeline.redaction import Redactor
from agent_pipeline.storage.lake import Lake

CHECK = "champion_is_no_worse_in_production"


@dg.asset(
    **asset_options(
        "exports",
        {"report"},
        ARTIFACTS,
        ProductionOptions,
        checks=[
            own_check(
                "production",
                CHECK,
                "Passes if the logged sessions do not show that the champion is worse than the "
                "agent that it replaces, or worse than the previous champion. If the check "
                "fails, run `agent-pipeline rollback`.",
            )
        ],
    ),
    deps=["judged_sessions"],
)
def production(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """A comparison of the champion with the agent that it replaces, based on logged sessions.

    The report has one line per model and week, with sessions, verdicts, errors, turns, tokens and
    cost. A sequential test compares the verdicts every night. If the test shows that an
    automatically promoted champion is worse, the previous champion is restored. If the worse
    champion is the agent's first champion, its share of the traffic through LiteLLM is set to 0.
    """
    with user_errors():
        options = in_force(context, workspace, ProductionOptions)
        lake, key, settings = workspace.open_lake(), agent_key(context), workspace.settings()
        serving = resolve(settings, ServingConfig, key).options
        own_models = OwnModels(lake, {key: (serving.name, serving.hub)})
        artifact = measure_production(lake, key, own_models, options)
        report = read_production_report(artifact)
        rolled_back = _roll_back(context, workspace, lake, key, report)
        stopped = _stop_first_champion(workspace, lake, key, report)
        sentences = [describe_report(report), *map(describe_comparison, report.comparisons)]
        remedies = [_describe_remedy(lake, key, report, rolled_back), stopped]
        for sentence in sentences:
            context.log.info(sentence)
        head, *rows = make_figures_table(report)
        shares = list_shares(report)
        plot = (
            {"shares": weekly_shares(shares, "share of good sessions per week")} if shares else {}
        )
        return dg.MaterializeResult(
            value=artifact,
            data_version=version(artifact.identity),
            metadata={
                "comparison": "\n".join(sentences),
                **page_link(settings.pages_url, key, "production"),
                "models": table(head, rows),
                "left_out": "; ".join(describe_limits(report)) or "nothing",
                **plot,
                **({"probation": summarize(rolled_back.decision)} if rolled_back else {}),
                **numbers(
                    {
                        f"{name}_against_{comparison.rival.replace(' ', '_')}": value
                        for comparison in report.comparisons
                        if comparison.pairs
                        for name, value in (
                            ("p_value", comparison.p_value),
                            ("drop", comparison.drop.value),
                        )
                    }
                ),
            },
            check_results=[
                warning(
                    CHECK,
                    not report.worse_than,
                    " ".join([*sentences, *filter(None, remedies)]),
                )
            ],
        )


def _roll_back(
    context: dg.AssetExecutionContext,
    workspace: Workspace,
    lake: Lake,
    key: PartitionKey,
    report: ProductionReport,
) -> LedgerEntry | None:
    """Restore and serve the previous champion if the settings allow that and production demands it.

    Args:
        context: The run.
        workspace: The settings.
        lake: The lake.
        key: The partition.
        report: The comparison.
    """
    settings = workspace.settings()
    champion_options = resolve(settings, ChampionConfig, key).options
    if champion_options.approve != "auto" or not champion_options.probation_nights:
        return None
    entry = roll_back_worse_champion(lake, key, report, f"run {context.run_id}")
    if entry is None:
        return None
    context.log.warning(f"the champion {entry.candidate[:16]}: {summarize(entry.decision)}")
    serving = resolve(settings, ServingConfig, key).options.model_dump()
    redactor = Redactor(settings.redaction_options)
    world = find_world_in_force(settings, lake, key)
    for line in serve_champion(lake, key, redactor, world, **serving):
        context.log.info(line)
    return entry


def _stop_first_champion(
    workspace: Workspace, lake: Lake, key: PartitionKey, report: ProductionReport
) -> str:
    """End the traffic of a worse first champion that a decision promoted.

    Returns:
        A sentence, or an empty text if nothing was done.
    """
    options = resolve(workspace.settings(), ChampionConfig, key).options
    if options.approve != "auto" or not options.probation_nights or not report.worse_than:
        return ""
    return stop_traffic(lake, key) if is_first_self_promotion(lake, key) else ""


def _describe_remedy(
    lake: Lake, key: PartitionKey, report: ProductionReport, rolled_back: LedgerEntry | None
) -> str:
    """Return what was done about a worse champion, or what a person can do about it."""
    if rolled_back:
        return f"{(rolled_back.champion or '')[:16]} is the champion again."
    if not report.worse_than:
        return ""
    if not report.previous:
        return "There is no previous champion, so let the agent answer again."
    by_whom = "a decision" if find_self_promotion(lake, key) else "a person"
    return (
        f"It was promoted by {by_whom}, so nothing was rolled back automatically: run "
        f"`agent-pipeline rollback {key}`, or let the agent answer again."
    )
