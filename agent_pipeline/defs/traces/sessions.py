"""Assets of the stage `traces`: logged sessions, judged sessions, and curated sessions."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import dagster as dg
import pyarrow.compute as pc

from agent_pipeline.config.assets import CurationConfig, ServingConfig, SessionsConfig
from agent_pipeline.config.resolution import resolve
from agent_pipeline.datasets.requests import RequestChange
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.metadata import counts_table, drift_result, page_link, preview, table
from agent_pipeline.defs.partitions import AGENTS, agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.run_config import in_force
from agent_pipeline.defs.runs import NIGHT_TAG, PENDING, PENDING_TAG
from agent_pipeline.defs.specs import asset_options, check_result, own_check, version, warning
from agent_pipeline.errors import PipelineError
from agent_pipeline.ingestion.ingestion import ingest
from agent_pipeline.ingestion.privacy_scan import scan_new_sessions
from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.curation import CurationBounds, OwnSessions
from agent_pipeline.judging.judge_checks import JudgeCheck
from agent_pipeline.judging.llm_client import LlmClient
from agent_pipeline.judging.options import JudgingOptions
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.judging.tables import curate_sessions, judge_partition
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.own_models import OwnModels
from agent_pipeline.promotion.request_changes import compare_models
from agent_pipeline.readiness.doctor import Doctor
from agent_pipeline.readiness.screen import describe_agent
from agent_pipeline.redaction import Redactor
from agent_pipeline.sessions.damage import make_repair_policy
from agent_pipeline.sources.base import TraceSource


@dg.observable_source_asset(
    partitions_def=AGENTS,
    group_name="traces",
    description=(
        "The store in which the agent logs its sessions. The pipeline observes the store and "
        "never writes to it. Its data version changes whenever a session, a verdict or a label "
        "changes."
    ),
    tags={"stage": "traces"},
)
def session_store(
    context: dg.OpExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.DataVersionsByPartition:
    """Observe the store, and return the data version of each known partition."""
    with user_errors():
        source = workspace.open_store()
        known = context.instance.get_dynamic_partitions(AGENTS.name or "")
        keys = [key for key in source.partitions() if str(key) in known]
        versions = workspace.versions(source)
        return dg.DataVersionsByPartition(
            {str(key): versions.find_version(key).version for key in keys}
        )


SCHEMAS_CHECK, TOOLS_CHECK, FATES_CHECK = (
    "tools_have_schemas",
    "tools_are_as_before",
    "verdicts_and_reasons_are_as_before",
)


@dg.asset(
    **asset_options(
        "traces",
        {"parquet", "bronze"},
        options=SessionsConfig,
        checks=[
            own_check(
                "sessions",
                SCHEMAS_CHECK,
                "Passes if all tool schemas come from the store or from the settings. If the "
                "check fails, some schemas were inferred from calls. Set `tools` to a file with "
                "the schemas.",
            ),
            own_check(
                "sessions",
                TOOLS_CHECK,
                "Passes if new sessions have the same tools, schemas and argument types as the "
                "last version of the table. If the check fails, find out whether the agent's "
                "tools changed.",
            ),
        ],
    ),
    deps=[session_store],
)
def sessions(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per session that the agent logged. All store formats are converted to the same form.

    Tool calls are paired with their results. Damaged parts of the record are repaired or dropped,
    and counted. Missing tool schemas are inferred from the calls. Secrets and personal data are
    replaced by pseudonyms.
    """
    with user_errors():
        config = in_force(context, workspace, SessionsConfig)
        key = agent_key(context)
        source = workspace.open_store()
        policy = make_repair_policy(config.repair)
        options = replace(workspace.settings().reading(key), repair=policy)
        ingested = ingest(
            source,
            key,
            options,
            workspace.open_lake(),
            config.smallest_share,
            config.largest_growth,
        )
        notes = list(dict.fromkeys(source.notes))
        for note in notes:
            context.log.warning(note)
        treated = {
            f"{kind}: {policy.get(kind, 'keep')}": count
            for kind, count in ingested.counts["damage"].items()
        }
        return dg.MaterializeResult(
            value=ingested.table,
            data_version=version(ingested.table.sha256),
            metadata={
                "sessions": ingested.table.rows,
                "copied_from_the_last_table": ingested.copied,
                "forgotten": ingested.forgotten,
                "source": source.name,
                "judgments": counts_table(ingested.counts["judgment"], "judgment"),
                "damage": counts_table(treated, "kind of damage, and what was done"),
                "left_out": counts_table(
                    ingested.counts["skipped"], "item type without a place in a chat"
                ),
                "redacted": counts_table(ingested.redacted, "kind of private data"),
                "tools_from": counts_table(ingested.counts["tools"], "origin of tool schemas"),
                "notes": "\n".join(notes) or "none",
                "readiness": _describe_readiness(workspace, source, key, ingested.table.rows),
                "preview": preview(ingested.first),
            },
            check_results=[
                _schemas_result(key, ingested.counts["tools"]),
                drift_result(TOOLS_CHECK, ingested.drift),
            ],
        )


@dg.asset_check(asset=sessions, partitions_def=AGENTS, blocking=True)
def nothing_private_was_written(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if the table contains no private value. The check also searches for other spellings of
    the private values in the store. If the check fails, no later asset is made from the table. If
    the value is not private, add it to `redaction.allow`. If it is private, report a bug with the
    kinds of values in the check's metadata. The metadata never contains the values themselves.
    """
    with user_errors():
        settings, key = workspace.settings(), agent_key(context)
        options = settings.redaction_options
        scan = scan_new_sessions(
            workspace.open_lake(), key, options, workspace.open_store(), settings.reading(key)
        )
    why = None if options.enabled else "Redaction is switched off: nothing was searched."
    if scan.kinds:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(scan.kinds.items()))
        why = (
            f"private data was written ({kinds}) in sessions such as "
            f"{', '.join(scan.session_ids[:3])}, so no later asset is made from this table"
        )
    return check_result(
        not scan.kinds,
        why,
        {
            "sessions": scan.sessions,
            "searched": scan.searched,
            "found": counts_table(scan.kinds, "kind of private data"),
            "in_sessions": json.dumps(scan.session_ids[:20]),
        },
    )


MAX_EXAMINED_SESSIONS = 5_000
"""Number of sessions up to which each run examines them again for the readiness report."""


def _describe_readiness(
    workspace: Workspace, source: TraceSource, key: PartitionKey, session_count: int
) -> dg.MetadataValue:
    """Return the report of `agent-pipeline doctor` on an agent, without lengths in tokens."""
    command = f"`agent-pipeline doctor` also checks the lengths in tokens of {key}."
    if session_count > MAX_EXAMINED_SESSIONS:
        return dg.MetadataValue.md(
            f"The agent has more than {MAX_EXAMINED_SESSIONS:,} sessions, so runs do not examine "
            "them: use `agent-pipeline doctor`."
        )
    settings = workspace.settings()
    examiner = Doctor(settings, workspace.labels, workspace.open_judge, uses_model=False)
    try:
        report = examiner.examine_agent(source, settings.open_lake(), key)
    except PipelineError as error:
        return dg.MetadataValue.md(f"The sessions cannot be examined: {error}")
    lines = "\n".join(describe_agent(report))
    return dg.MetadataValue.md(f"```text\n{lines}\n```\n\n{command}")


def _schemas_result(key: PartitionKey, origins: Mapping[str, int]) -> dg.AssetCheckResult:
    """Return a warning if tool schemas were inferred, because such schemas lack descriptions."""
    inferred = origins.get("inferred", 0)
    advice = f'write the schemas into a file, and set tools in [agents."{key}"] to the file'
    why = (
        f"The tools of {inferred} sessions are inferred from calls, without descriptions: {advice}."
        if inferred
        else None
    )
    return warning(
        SCHEMAS_CHECK, not inferred, why, {"inferred": inferred, "sessions": sum(origins.values())}
    )


# The labels are observed with the store: what changes in them is judged again.
@dg.asset(
    **asset_options("traces", {"parquet", "silver"}, options=JudgingOptions),
    deps=[session_store, sessions],
)
def judged_sessions(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per session, with its verdict and the judge that gave the verdict.

    The table also has the result of every measure (an automatic test of the session) and the
    opinion of every judge. If the verdict is null, nobody judged the session.
    """
    with user_errors():
        config = in_force(context, workspace, JudgingOptions)
        night = context.run.tags.get(NIGHT_TAG, "")
        key, redactor = agent_key(context), Redactor(workspace.settings().redaction_options)
        table, panel = judge_partition(
            workspace.open_lake(),
            key,
            config,
            workspace.labels(key),
            redactor,
            partial(workspace.open_judge, night=night),
            workspace.settings().judge.least_precision,
        )
        for note in panel.describe(key):
            context.log.warning(note)
        if panel.pending:  # the next night runs again for them
            context.instance.add_run_tags(context.run.run_id, {PENDING_TAG: str(panel.pending)})
        return dg.MaterializeResult(
            value=table,
            data_version=version(table.sha256),
            metadata={
                "verdicts": counts_table(panel.verdicts, "verdict"),
                **page_link(workspace.settings().pages_url, key, "sessions"),
                PENDING: panel.pending,
                "measures_failed": counts_table(panel.failed, "measure"),
                "measures_not_taken": counts_table(panel.not_taken, "measure and why"),
                "turns": counts_table(panel.turns, "fact about a turn"),
                "metrics_without_a_direction": counts_table(panel.undeclared, "metric"),
                "addressing_judge": panel.addressing_judge,
                "judge_checks": _checks_table(panel.checks or ()),
                "agreement": _agreement_table(panel.agreement),
                "labels": "\n".join(panel.labels.notes) or f"{len(panel.labels.by_id)} read",
                **(_llm_spend(panel.llm.client) if panel.llm else {}),
            },
        )


def _checks_table(checks: Sequence[JudgeCheck]) -> dg.MetadataValue:
    """Return one line per group of machine judges with its precision, or the text `none`."""
    if not checks:
        return dg.MetadataValue.text("none")
    head = ["judge", "trusted", "labels", "good", "precision", "labels needed"]
    lines = [
        [
            check.judge,
            "yes" if check.passed else "no",
            check.labels,
            check.correct,
            f"{check.low:.2f} to {check.high:.2f}",
            "–" if check.missing is None else check.missing,
        ]
        for check in checks
    ]
    return table(head, lines)


def _agreement_table(agreement: Agreement) -> dg.MetadataValue:
    """Return one line per judge with its agreement with labels or the store, and Cohen's kappa."""
    head = [
        "compared with labels, otherwise with the store",
        "sessions",
        "agree",
        "both good",
        "both bad",
        "too kind",
        "too strict",
        "kappa",
    ]
    lines = []
    for row in agreement.list_rows():
        counts = (row.both_acceptable, row.both_unacceptable, row.too_kind, row.too_strict)
        lines.append(
            [
                row.name,
                row.sessions,
                f"{row.share:.0%}",
                *counts,
                "–" if row.kappa is None else f"{row.kappa:.2f}",
            ]
        )
    return table(head, lines)


def _llm_spend(client: LlmClient) -> dict[str, Any]:
    spend = client.spend
    return {
        "llm": counts_table(client.counts, "questions"),
        "llm_requests": spend.requests,
        "llm_tokens": spend.input_tokens + spend.output_tokens,
        "llm_usd": spend.usd,
    }


@dg.asset(
    **asset_options(
        "traces",
        {"parquet", "silver"},
        options=CurationConfig,
        checks=[
            own_check(
                "curated_sessions",
                FATES_CHECK,
                "Passes if the new sessions have nearly the same shares of verdicts and drop "
                "reasons as the last version of the table. If the check fails, find out whether "
                "the agent, its labels or its judge changed.",
            )
        ],
    ),
    deps=[judged_sessions],
)
def curated_sessions(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.MaterializeResult:
    """One row per judged session, with its use for training: positive, negative or neither.

    Positive sessions become training examples. Negative sessions become the rejected answers of
    preference pairs, and bad examples for KTO. If a session is not positive, the table has the
    reason.
    """
    with user_errors():
        config = in_force(context, workspace, CurationConfig)
        key = agent_key(context)
        bounds = CurationBounds(config.max_sessions, config.max_characters)
        lake, settings = workspace.open_lake(), workspace.settings()
        served = resolve(settings, ServingConfig, key).options
        own_models = OwnModels(lake, {key: (served.name, served.hub)})
        curated = curate_sessions(
            lake,
            key,
            config.required_measures,
            bounds,
            config.verdict_leaks,
            OwnSessions(own_models.made, config.served_model_sessions),
            Preconditions.parse(settings.preconditions(key)),
        )
        table, curation = curated.table, curated.curation
        counts = Counter(curation.reasons)
        if curation.by_served_model:
            context.log.warning(
                f"{len(curation.by_served_model)} of {counts.total()} sessions have answers of a "
                f"model that this pipeline trained. {curation.kept_by_served_model} of them are "
                f'used for training (served_model_sessions = "{config.served_model_sessions}")'
            )
        return dg.MaterializeResult(
            value=table,
            data_version=version(table.sha256),
            metadata={
                "sessions": counts.total(),
                "kept": counts["kept"],
                "dropped": counts.total() - counts["kept"],
                "uses": counts_table(
                    Counter(decision.use.value for decision in curation.decisions), "use"
                ),
                "reasons": counts_table(curation.counts_with_detail),
                "sessions_with_a_verdict_cut_from_their_text": len(curation.stripped),
                "sessions_made_by_a_served_model": len(curation.by_served_model),
                "kept_sessions_made_by_a_served_model": curation.kept_by_served_model,
            },
            check_results=[drift_result(FATES_CHECK, curated.drift)],
        )


@dg.asset_check(asset=curated_sessions, partitions_def=AGENTS, blocking=True)
def every_session_is_kept_or_dropped_with_a_reason(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if every session is either kept, or dropped with a reason. If the check fails, the
    pipeline has an error: please report it."""
    with user_errors():
        lake, key = workspace.open_lake(), agent_key(context)
        read = lake.open("sessions", key).read(["session_id"])["session_id"]
        rows = lake.open("curated_sessions", key).read(["session_id", "kept", "drop_reason"])
    ids = rows["session_id"]
    both = () if read.equals(ids) else ((read, ids), (ids, read))
    lost = sorted(
        {
            session_id
            for one, other in both
            for session_id in one.filter(pc.invert(pc.is_in(one, other))).to_pylist()
        }
    )
    unexplained = ids.filter(pc.equal(rows["kept"], pc.is_valid(rows["drop_reason"]))).to_pylist()
    kept = pc.sum(rows["kept"], min_count=0).as_py()
    passed = not lost and not unexplained and len(read) == len(rows)
    problems = [
        f"{len(read)} sessions were read, but {len(rows)} were curated"
        if len(read) != len(rows)
        else "",
        f"{len(lost)} are in one of the tables only, such as {', '.join(lost[:3])}" if lost else "",
        f"{len(unexplained)} were dropped without a reason, or kept although they have a drop "
        f"reason, such as {', '.join(unexplained[:3])}"
        if unexplained
        else "",
    ]
    return check_result(
        passed,
        None
        if passed
        else "; ".join(filter(None, problems))
        + ": materialize sessions, judged_sessions and curated_sessions again",
        {
            "read": len(read),
            "kept": kept,
            "dropped": len(rows) - kept,
            "lost": json.dumps(lost[:20]),
            "without_a_reason": json.dumps(unexplained[:20]),
        },
    )


@dg.asset_check(asset=curated_sessions, partitions_def=AGENTS)
def champion_sees_what_it_was_trained_for(
    context: dg.AssetCheckExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> dg.AssetCheckResult:
    """Passes if the newest sessions have the same system prompt and tools as the sessions that the
    champion was trained on. If there is no champion, the latest model is checked. Parts of the
    prompt that varied in training, such as dates and names, may differ. If the check fails, the
    next nightly run trains again. Do not let the champion act unattended until a new model is
    promoted. The check also fails if the model has no record of its system prompts and tools. Then
    train the agent again.
    """
    with user_errors():
        comparisons = compare_models(workspace.open_lake(), agent_key(context))
    if not comparisons:
        return check_result(True, "There is no model yet.", {"sessions": 0}, blocks=False)
    first = comparisons[0]
    changes = [
        [comparison.model, str(change), *_show_difference(change)]
        for comparison in comparisons
        for change in comparison.changes
    ]
    return check_result(
        first.is_recorded and not first.major_changes,
        "; ".join(f"{comparison.model}: {comparison}" for comparison in comparisons),
        {
            "sessions": first.sessions,
            "changes": table(["model", "change", "in training", "now"], changes),
        },
        blocks=False,
    )


def _show_difference(change: RequestChange) -> list[str]:
    """Return the texts of a change before and now."""
    return [change.difference.before, change.difference.now] if change.difference else ["", ""]
