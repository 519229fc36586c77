"""The sensor `night_digest`, which sends one page and one message after the last run of a night."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import dagster as dg

from agent_pipeline.defs.asset_keys import add_prefix, asset_key
from agent_pipeline.defs.automation.notifications import of_run
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.metadata import table
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.defs.runs import LATE, NIGHT_TAG, PARTITION_TAG, WAITING_TAG, goes_on
from agent_pipeline.errors import PipelineError
from agent_pipeline.notifications import Notification, send_notifications
from agent_pipeline.reports.page import Page, render
from agent_pipeline.storage.filesystem import put_file

DIGEST = "night_digest"
HEAD = ["agent", "outcome", "minutes", "what a person should know"]
DECIDED = {"promote": "promoted", "hold": "held", "reject": "rejected"}
_RUNS = 500
"""Number of the newest runs in which the sensor looks for nights."""


@dg.sensor(
    name=DIGEST,
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description="Writes one page and sends one message per night, after the last run of the night "
    "has ended.",
)
def night_digest(
    context: dg.SensorEvaluationContext, workspace: dg.ResourceParam[Workspace]
) -> dg.SensorResult | dg.SkipReason:
    """Write a page about a night after its last run has ended, and send one message about it.

    The page is in the folder `nights` of the lake. The cursor is the night of the last page. The
    first tick writes no page. A night of a clock that was far ahead is ignored.
    """
    now, latest = datetime.now(UTC).isoformat(), (datetime.now(UTC) + timedelta(days=1)).isoformat()
    if not "" < (context.cursor or "") <= latest:
        return dg.SensorResult(skip_reason="From now on", cursor=now)
    records = context.instance.get_run_records(
        dg.RunsFilter(job_name=add_prefix(RETRAIN)), limit=_RUNS
    )
    tags = (record.dagster_run.tags.get(NIGHT_TAG, "") for record in records)
    night = min((tag for tag in tags if (context.cursor or "") < tag <= latest), default="")
    if not night:
        return dg.SkipReason("No night has begun since the last page.")
    last: dict[
        str, dg.RunRecord
    ] = {}  # of an agent whose run was started once more, the second one
    for record in context.instance.get_run_records(dg.RunsFilter(tags={NIGHT_TAG: night})):
        last.setdefault(record.dagster_run.tags.get(PARTITION_TAG, ""), record)
    if going := sum(map(goes_on, last.values())):
        return dg.SkipReason(f"{going} of the {len(last)} runs of {night} have not ended.")
    rows = [_row(context.instance, name, record) for name, record in sorted(last.items())]
    counts = Counter(row[1].partition(":")[0] for row in rows)
    headline = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))
    known = len(context.instance.get_dynamic_partitions(AGENTS.name or ""))
    facts = {"agents known": str(known), "with a run": str(len(rows))}
    title = f"Night of {night[:16].replace('T', ' ')} UTC"
    try:
        lake = workspace.open_lake()
        path = lake.root / "nights" / f"{night[:16].replace(':', '')}.html"
        with lake.fs.staging(path) as file:
            file.write_text(
                render(
                    Page(
                        title=title,
                        headline=headline,
                        tables=[("Agents", [HEAD, *rows])],
                        facts=facts,
                    )
                ),
                encoding="utf-8",
            )
            put_file(file, path)
        notices = [
            Notification(title, "", f"{headline}. Page: {path}"),
            *(Notification(title, row[0], row[1]) for row in rows),
        ]
        settings = workspace.settings()
        problem = send_notifications(settings.notify.urls, notices, settings.redaction_options)
    except PipelineError as error:
        return dg.SkipReason(str(error))
    if problem:
        return dg.SkipReason(problem)  # and the next tick tells again
    metadata = {"page": dg.MetadataValue.path(str(path)), "agents": table(HEAD, rows)}
    return dg.SensorResult(
        skip_reason=f"{title}: {headline}. Page: {path}",
        asset_events=[
            dg.AssetMaterialization(asset_key(DIGEST), description=headline, metadata=metadata)
        ],
        cursor=night,
    )


def _row(instance: dg.DagsterInstance, name: str, record: dg.RunRecord) -> list[str]:
    run, outcome = record.dagster_run, record.dagster_run.status.value.lower()
    waiting = run.tags.get(WAITING_TAG)
    if waiting is not None:
        outcome = (
            "not trained, because the night was over"
            if waiting == LATE
            else f"not trained: {waiting} new sessions, and it waits for more"
        )
    elif run.is_success:
        outcome = _of_candidate(instance, run) or "no decision"
    elif run.status == dg.DagsterRunStatus.FAILURE:
        outcome = ": ".join(["failed", *filter(None, [_of_candidate(instance, run)])])
    minutes = (
        f"{(record.end_time - record.start_time) / 60:.0f}"
        if record.start_time and record.end_time
        else "–"
    )
    return [
        name,
        outcome,
        minutes,
        "\n".join(f"{reason.cause}: {reason.text}" for reason in of_run(instance, run)),
    ]


def _of_candidate(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Return the decision on the run's candidate, and the first reason for the decision.

    The text is empty if the run decided nothing.
    """
    events = instance.get_records_for_run(
        run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION
    ).records
    for materialization in filter(None, (record.asset_materialization for record in events)):
        if materialization.asset_key.path[-1] == "champion":
            metadata_values = {
                name: value.value for name, value in materialization.metadata.items()
            }
            if "decision" not in metadata_values:
                rolled_back = "roll back" in str(metadata_values.get("probation"))
                return (
                    f"rolled back: {metadata_values['probation']}"
                    if rolled_back
                    else "nothing new, because the candidate is already the champion"
                )
            decision, why = (
                str(metadata_values["decision"]),
                str(metadata_values["why"]).partition("\n")[0],
            )
            outcome = DECIDED.get(decision, decision)
            if metadata_values["wins_and_waits_for_a_person"]:
                outcome = "waits for a person"
            elif decision == "promote" and metadata_values.get("held_by_a_person"):
                outcome = "held"
            return f"{outcome}: {why}"
    return ""
