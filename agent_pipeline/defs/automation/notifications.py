"""The sensor `notices`, which sends messages about finished runs to the URLs in `notify.urls`."""

import json
from collections.abc import Iterator
from typing import Any

import dagster as dg

from agent_pipeline._compat.dagster import RunStatusChangeEventType
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import PARTITION_TAG, PENDING
from agent_pipeline.errors import PipelineError
from agent_pipeline.notifications import Notification, send_notifications

FINISHED: dict[RunStatusChangeEventType, dg.DagsterRunStatus] = {
    dg.DagsterEventType.RUN_SUCCESS: dg.DagsterRunStatus.SUCCESS,
    dg.DagsterEventType.RUN_FAILURE: dg.DagsterRunStatus.FAILURE,
}
_WORTH_READING = {
    dg.DagsterEventType.STEP_FAILURE,
    dg.DagsterEventType.ASSET_CHECK_EVALUATION,
    dg.DagsterEventType.ASSET_MATERIALIZATION,
}
UNDECIDED = "cannot decide"
"""The beginning of a decision if something is missing for a decision, and the notification's cause.
"""
_RUNS = 100
"""Maximum number of runs per status that a tick reads. The next tick reads further runs."""


@dg.sensor(
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description=(
        "Sends a message to the addresses in notify.urls if a run or a check fails, if a "
        "decision is made, or if sessions wait for a judge."
    ),
)
def notices(
    context: dg.SensorEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> dg.SensorResult | dg.SkipReason:
    """Send messages about failed runs, failed checks, unjudged sessions and decisions.

    The cursor is the number of the last event of each kind that was reported. A time would lose
    events after a clock went back. The first tick reports nothing.
    """
    try:
        settings = workspace.settings()
        if not settings.notify.urls:
            return dg.SkipReason("The setting notify.urls has no address.")
        after = json.loads(context.cursor or "[]")
        changes = context.instance.fetch_run_status_changes
        if not after or not isinstance(after[0], str):  # older versions kept a time
            return dg.SensorResult(
                skip_reason="From now on",
                cursor=json.dumps([changes(kind, limit=1).cursor for kind in FINISHED]),
            )
        ended = [
            changes(kind, limit=_RUNS, cursor=last, ascending=True)
            for kind, last in zip(FINISHED, after, strict=True)
        ]
        if not any(ended_runs.records for ended_runs in ended):
            return dg.SkipReason("No run has finished.")
        runs = [
            run.with_status(status)  # the run itself is marked after the event is written
            for status, ended_runs in zip(FINISHED.values(), ended, strict=True)
            for record in ended_runs.records
            if (run := context.instance.get_run_by_id(record.run_id))
        ]
    except PipelineError as error:
        return dg.SkipReason(str(error))
    if problem := send_notifications(
        settings.notify.urls,
        [notice for run in runs for notice in of_run(context.instance, run)],
        settings.redaction_options,
    ):
        return dg.SkipReason(problem)  # and the next tick tells of the same runs
    return dg.SensorResult(
        skip_reason=f"{len(runs)} runs were looked at",
        cursor=json.dumps([ended_runs.cursor for ended_runs in ended]),
    )


def of_run(instance: dg.DagsterInstance, run: dg.DagsterRun) -> Iterator[Notification]:
    """Yield the notifications about one finished run.

    The notifications contain no text of a session. An error without a sentence for users appears by
    name only.
    """
    partition = run.tags.get(PARTITION_TAG, "")
    failed = run.status == dg.DagsterRunStatus.FAILURE
    for record in instance.get_records_for_run(run.run_id, of_type=_WORTH_READING).records:
        event: Any = record.event_log_entry.dagster_event
        if event.is_step_failure and failed:
            failed = False  # what failed after it, failed because of it
            yield Notification("run failed", partition, _sentence(event.step_failure_data))
        elif event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            check = event.asset_check_evaluation_data
            # The decision itself is reported with the materialization.
            decision = check.metadata.get("decision")
            is_undecided = decision is not None and str(decision.value).startswith(UNDECIDED)
            if not check.passed and not is_undecided:
                name = f"{check.asset_key.path[-1]}, {check.check_name.replace('_', ' ')}"
                yield Notification(
                    "check failed",
                    partition,
                    f"{name}: {check.description or 'see the check in the UI'}",
                )
        elif event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
            yield from _of_materialization(event.materialization, partition)
    if failed:
        yield Notification(
            "run failed",
            partition,
            f"The run {run.run_id} ended, but none of its steps failed: its process may have been "
            "killed.",
        )


def _of_materialization(
    materialization: dg.AssetMaterialization, partition: str
) -> Iterator[Notification]:
    asset, metadata = materialization.asset_key.path[-1], materialization.metadata
    if asset == "judged_sessions" and PENDING in metadata and (pending := metadata[PENDING].value):
        yield Notification(
            "judge",
            partition,
            f"{pending} sessions still need a verdict from the language model, because a limit "
            "was reached or the model did not answer.",
        )
    if (
        asset in ("champion", "production")
        and "probation" in metadata
        and "roll back" in (sentence := str(metadata["probation"].value))
    ):
        yield Notification("champion rolled back", partition, sentence)
    if asset == "champion" and "decision" in metadata:
        decision, why = (
            str(metadata[name].value).replace("\n", "; ") for name in ("decision", "why")
        )
        held = "held_by_a_person" in metadata and metadata["held_by_a_person"].value
        if decision == "promote" and not held:
            waits = metadata["wins_and_waits_for_a_person"].value
            yield Notification(
                "a candidate waits for a person's approval" if waits else "promoted", partition, why
            )
        elif decision.startswith(UNDECIDED):
            yield Notification(UNDECIDED, partition, f"{decision}; {why}")


def _sentence(failure: Any) -> str:
    if failure.user_failure_data and failure.user_failure_data.description:
        return str(failure.user_failure_data.description)
    error = failure.error
    while error and error.cause:  # the outermost is Dagster's own
        error = error.cause
    return f"{error.cls_name if error else 'An error'}: see the run in the UI."
