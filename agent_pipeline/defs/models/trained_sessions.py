"""The asset `trained_sessions`, which decides whether a night trains the agent or waits."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime

import dagster as dg

from agent_pipeline.config.settings import Settings
from agent_pipeline.defs.failures import user_errors
from agent_pipeline.defs.partitions import agent_key
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import (
    CODE_VERSION_TAG,
    LATE,
    NIGHT_ENDS_TAG,
    NIGHT_TAG,
    SETTINGS_VERSION_TAG,
    TRAINED_AT_TAG,
    WAITING_TAG,
)
from agent_pipeline.defs.specs import asset_options, version
from agent_pipeline.promotion.request_changes import compare_latest_adapter
from agent_pipeline.selection.training_rule import TrainingRule, Waiting, stage_trained_sessions
from agent_pipeline.training.chain import find_session_uses


@dg.asset(
    **asset_options("coresets", {"parquet"}),
    deps=["curated_sessions"],
    output_required=False,
    dagster_type=dg.Any,
)
def trained_sessions(
    context: dg.AssetExecutionContext, workspace: dg.ResourceParam[Workspace]
) -> Iterator[dg.MaterializeResult]:
    """One row per session that the last training run used.

    The next run compares its sessions with this table to find new sessions. A nightly run stops at
    `trained_sessions` if fewer sessions are new than `night.new_sessions`, and no verdict, setting
    or code changed. If the agent's system prompt or tools changed, one new session is enough. A
    nightly run also stops at `trained_sessions` if `night.minutes` have passed. If a person starts
    a run, it never stops at `trained_sessions`.
    """
    with user_errors():
        key, last, lake = agent_key(context), _last_training(context), workspace.open_lake()
        rule = _rule(context, workspace.settings(), last is not None)
        if rule and rule.needed > 1:
            comparison = compare_latest_adapter(lake, key)
            if comparison:
                changes = tuple(map(str, comparison.major_changes))
                rule = replace(rule, changed_requests=changes)
                if not comparison.is_recorded:
                    context.log.warning(
                        f"Whether the system prompt or tools of {key} changed is {comparison}."
                    )
        staged = stage_trained_sessions(lake, key, rule)
        if isinstance(staged, Waiting):
            tags = {WAITING_TAG: LATE if staged.sessions is None else str(staged.sessions)}
            trained = {TRAINED_AT_TAG: str(last.timestamp)} if last else {}
            context.instance.add_run_tags(context.run.run_id, tags | trained)
            context.log.warning(f"{staged.why}, so {key} is not trained this night.")
            return
    changed_requests = "; ".join(rule.changed_requests) if rule else ""
    if changed_requests:
        context.log.warning(
            f"{key} is trained again, because its system prompt or tools changed: "
            f"{changed_requests}."
        )
    yield dg.MaterializeResult(
        value=staged,
        data_version=version(staged.sha256),
        metadata={"sessions": staged.rows, "changed_requests": changed_requests or "none"},
    )


def _rule(
    context: dg.AssetExecutionContext, settings: Settings, trained: bool
) -> TrainingRule | None:
    """Return the rule for when a night trains, or `None` for a run that a person started."""
    if NIGHT_TAG not in context.run.tags:
        return None
    key, ends = agent_key(context), context.run.tags.get(NIGHT_ENDS_TAG)
    needed = settings.new_sessions(key) if trained else 0
    return TrainingRule(
        find_session_uses(settings.chain(key)),
        needed,
        datetime.fromisoformat(ends) if ends else None,
    )


def _last_training(context: dg.AssetExecutionContext) -> dg.EventLogRecord | None:
    """Return the event of the last training run's `trained_sessions`, or None.

    None means that the last run failed, made only a part of the graph, or had other settings or
    other code.
    """
    wanted = dg.AssetRecordsFilter(
        asset_key=context.asset_key, asset_partitions=[context.partition_key]
    )
    records = context.instance.fetch_materializations(wanted, limit=1).records
    run = context.instance.get_run_by_id(records[0].run_id) if records else None
    same = run and all(
        run.tags.get(tag) and run.tags.get(tag) == context.run.tags.get(tag)
        for tag in (SETTINGS_VERSION_TAG, CODE_VERSION_TAG)
    )
    return records[0] if run and same and run.status == dg.DagsterRunStatus.SUCCESS else None
