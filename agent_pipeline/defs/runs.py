"""The last runs of each partition, and the versions of store, settings and code in these runs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import dagster as dg

from agent_pipeline.compute.tasks import VERSIONS
from agent_pipeline.defs.asset_keys import add_prefix
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.specs import CODE_VERSION
from agent_pipeline.sessions.session import hash_json

STORE_VERSION_TAG = "agent_pipeline/store_version"
SETTINGS_VERSION_TAG = "agent_pipeline/settings_version"
CODE_VERSION_TAG = "agent_pipeline/code_version"
PENDING = "not_judged_yet"
"""Metadata key of `judged_sessions` for the number of sessions that the language model should have
judged but did not, because of a limit or an outage.
"""
PENDING_TAG = f"agent_pipeline/{PENDING}"

AGENT_TAG = "agent_pipeline/agent"
"""Tag of a scheduled run with its partition. `dagster.yaml` uses it to run only one scheduled run
per partition at a time. With Dagster's own partition tag, a rollback would have to wait too.
"""
NIGHT_TAG = "agent_pipeline/night"
"""Tag of a scheduled run with the time at which its night began (ISO 8601, UTC)."""
NIGHT_ENDS_TAG = "agent_pipeline/night_ends"
WAITING_TAG = "agent_pipeline/waiting"
"""Tag of a run that did not train. Its value is the number of new sessions, which is smaller than
the agent waits for, or LATE.
"""
LATE = "late"
TRAINED_AT_TAG = "agent_pipeline/trained_at"

PARTITION_TAG = "dagster/partition"
_PAGE, _PAGES = 500, 6
"""Number of runs per page, and number of pages that are read before each partition is queried
separately.
"""

LOCATION = "agent_pipeline"
"""Name of the code location, which `workspace.yaml` and `pyproject.toml` also contain."""
REPOSITORY = "__repository__"
"""Name that Dagster gives to the repository of a code location with a single `Definitions` object.
"""
LOCATION_TAGS = {
    "dagster/code_location": LOCATION,
    ".dagster/repository": f"{REPOSITORY}@{LOCATION}",
}
"""Tags that assign a run to the code location in the filters of the run list. Dagster sets these
tags on runs that the UI and the daemon launch. The home page also needs the origin of the run
(`agent_pipeline.cli.runs`).
"""


def version_tags(store: str, settings: str, readers: Mapping[str, int]) -> dict[str, str]:
    """Return a run's tags with the versions of its store, settings, readers, assets and tasks.

    Versions of libraries are not included. A new release of a library does not train every agent
    again.
    """
    code = hash_json({"assets": CODE_VERSION, "tasks": VERSIONS, "readers": dict(readers)})
    return {
        STORE_VERSION_TAG: store[:32],
        SETTINGS_VERSION_TAG: settings[:32],
        CODE_VERSION_TAG: code[:32],
    }


def goes_on(record: dg.RunRecord) -> bool:
    """Return whether a run is queued, running or about to be restarted, for less than a day.

    An older run may be dead, and so may a run of another year, from when the clock was wrong.
    """
    run = record.dagster_run
    ended = run.is_finished and not run.is_complete_and_waiting_to_retry
    is_young = abs(datetime.now(UTC) - record.create_timestamp.replace(tzinfo=UTC)) < timedelta(
        days=1
    )
    return run.status == dg.DagsterRunStatus.QUEUED or (is_young and not ended)


@dataclass(frozen=True, order=True)
class Waiting:
    """Sort key that tells how long a partition has waited for a run.

    The smallest key has waited longest.

    Attributes:
        night: The night of the last run; empty if there was no run.
        finished: When the last run that left nothing undone ended, in seconds since 1970.
        partition: The partition.
    """

    night: str
    finished: float
    partition: str


class LastRuns:
    """The runs of the whole graph by partition, read from the instance in pages."""

    def __init__(
        self, instance: dg.DagsterInstance, partitions: Sequence[str], now: datetime | None = None
    ) -> None:
        self._instance, self._latest = (
            instance,
            ((now or datetime.now(UTC)) + timedelta(days=1)).isoformat(),
        )
        self._succeeded: dict[str, dg.RunRecord | None] = {}
        self._finished: dict[str, float] = {}
        self._minutes: dict[str, float] = {}
        self._nights: dict[str, str] = {}
        self.unfinished: set[str] = set()
        """Partitions with a run that is not finished."""
        missing, cursor = set(partitions), None
        for _ in range(_PAGES):
            records = instance.get_run_records(
                dg.RunsFilter(job_name=add_prefix(RETRAIN)), limit=_PAGE, cursor=cursor
            )
            for record in records:
                self._note(record)
            missing -= self._succeeded.keys()
            if len(records) < _PAGE or not missing:
                self._complete = len(records) < _PAGE
                return
            cursor = records[-1].dagster_run.run_id
        self._complete = False

    def tags(self, partition: str) -> Mapping[str, str]:
        """Return the tags of the partition's last successful run, or none without such a run."""
        if partition not in self._succeeded and not self._complete:
            wanted = dg.RunsFilter(
                job_name=add_prefix(RETRAIN),
                statuses=[dg.DagsterRunStatus.SUCCESS],
                tags={PARTITION_TAG: partition},
            )
            self._succeeded[partition] = next(
                iter(self._instance.get_run_records(wanted, limit=1)), None
            )
        last = self._succeeded.get(partition)
        return last.dagster_run.tags if last else {}

    def has(self, partition: str, tags: Mapping[str, str], needed: int = 1) -> bool:
        """Return whether nothing has changed since the partition's last successful run.

        That run used exactly these versions of store, settings and code, and left no session for
        the language model to judge. The run trained, or found fewer new sessions than are needed.
        """
        last = self.tags(partition)
        waiting = last.get(WAITING_TAG)
        trained = waiting is None or (waiting.isdecimal() and int(waiting) < needed)
        return tags.items() <= last.items() and PENDING_TAG not in last and trained

    def days(self, partition: str, now: datetime) -> int:
        """Return the number of whole days since the last training, or 0 without a training."""
        last = self._succeeded.get(partition)
        end = last and (last.dagster_run.tags.get(TRAINED_AT_TAG) or last.end_time)
        return max(0, int((now.timestamp() - float(end)) // 86_400)) if end else 0

    def waiting(self, partition: str) -> Waiting:
        """Return a sort key for partitions. The partition that has waited longest comes first.

        The night of the last run comes first, whether it failed or not. Within a night, the order
        is that of the last run that left nothing undone. So an agent that fails every night does
        not take another agent's turn.
        """
        night, finished = self._nights.get(partition, ""), self._finished.get(partition, 0.0)
        return Waiting(night, finished, partition)

    def minutes(self, partition: str) -> float | None:
        """Return the minutes that the last successful training run took, or None if unknown."""
        return self._minutes.get(partition)

    def _note(self, record: dg.RunRecord) -> None:
        run = record.dagster_run
        partition = run.tags.get(PARTITION_TAG, "")
        night = run.tags.get(NIGHT_TAG) or record.create_timestamp.replace(tzinfo=UTC).isoformat()
        self._nights.setdefault(
            partition, night if night <= self._latest else ""
        )  # a clock that was far ahead
        if goes_on(record):
            self.unfinished.add(partition)
        if run.status == dg.DagsterRunStatus.SUCCESS:
            self._succeeded.setdefault(partition, record)
            if WAITING_TAG not in run.tags and record.start_time and record.end_time:
                self._minutes.setdefault(partition, (record.end_time - record.start_time) / 60)
            if PENDING_TAG not in run.tags and run.tags.get(WAITING_TAG) != LATE:
                self._finished.setdefault(partition, record.end_time or 0.0)
