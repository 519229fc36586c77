"""What runs remember: the version of the store, of the settings and of the code that a partition was last trained with."""

from collections.abc import Mapping, Sequence
from datetime import datetime

import dagster as dg

from agent_pipeline.compute.tasks import TASKS
from agent_pipeline.defs.jobs import RETRAIN
from agent_pipeline.defs.specs import CODE_VERSION
from agent_pipeline.sessions.session import sha256_of

STORE_VERSION_TAG = "agent_pipeline/store_version"
SETTINGS_VERSION_TAG = "agent_pipeline/settings_version"
CODE_VERSION_TAG = "agent_pipeline/code_version"
PENDING = "not_judged_yet"
"""Metadata of `judged_sessions`: how many sessions the language model should have judged and did not (a limit, an outage)."""
PENDING_TAG = f"agent_pipeline/{PENDING}"

PARTITION_TAG = "dagster/partition"
_PAGE, _PAGES = 500, 6
"""Runs read at once, and how many pages of them before partitions are asked for one by one."""

LOCATION = "agent_pipeline"
"""The name of the code location, also in `workspace.yaml` and `pyproject.toml`."""
LOCATION_TAGS = {"dagster/code_location": LOCATION, ".dagster/repository": f"__repository__@{LOCATION}"}
"""Tags by which the UI assigns a run to the code location. Dagster sets them on the runs that the UI and the daemon launch."""


def version_tags(store: str, settings: str, readers: Mapping[str, int]) -> dict[str, str]:
    """Tags of a run that takes in this version of the store (with its labels) under these settings, read by these versions of its readers,
    with the assets and tasks of now.

    Libraries are not in them: a new release of one does not train every agent again, but the agent's next run.
    """
    code = sha256_of({"assets": CODE_VERSION, "tasks": {name: task.version for name, task in TASKS.items()}, "readers": dict(readers)})
    return {STORE_VERSION_TAG: store[:32], SETTINGS_VERSION_TAG: settings[:32], CODE_VERSION_TAG: code[:32]}


class LastRuns:
    """The last successful run of the whole graph of each partition, asked of the instance a page at a time for all of them together."""

    def __init__(self, instance: dg.DagsterInstance, partitions: Sequence[str]) -> None:
        self._instance = instance
        self._tags: dict[str, Mapping[str, str]] = {}
        self._ends: dict[str, float] = {}
        missing, cursor = set(partitions), None
        for _ in range(_PAGES):
            wanted = dg.RunsFilter(job_name=RETRAIN, statuses=[dg.DagsterRunStatus.SUCCESS])
            records = instance.get_run_records(wanted, limit=_PAGE, cursor=cursor)
            for record in records:
                self._note(record.dagster_run.tags.get(PARTITION_TAG, ""), record)
            missing -= self._tags.keys()
            if len(records) < _PAGE or not missing:
                self._complete = len(records) < _PAGE
                return
            cursor = records[-1].dagster_run.run_id
        self._complete = False

    def has(self, partition: str, tags: Mapping[str, str]) -> bool:
        """Whether the partition's last successful run took in exactly these versions of store, settings and code, and left no session to be
        judged by the language model."""
        if partition not in self._tags and not self._complete:
            wanted = dg.RunsFilter(job_name=RETRAIN, statuses=[dg.DagsterRunStatus.SUCCESS], tags={PARTITION_TAG: partition})
            records = self._instance.get_run_records(wanted, limit=1)
            self._note(partition, *records)
        last = self._tags.get(partition, {})
        return tags.items() <= last.items() and PENDING_TAG not in last

    def days(self, partition: str, now: datetime) -> int:
        """Whole days since the end of the last successful run that `has` looked at; 0 where there is none."""
        end = self._ends.get(partition)
        return 0 if end is None else max(0, int((now.timestamp() - end) // 86_400))

    def _note(self, partition: str, record: dg.RunRecord | None = None) -> None:
        self._tags.setdefault(partition, record.dagster_run.tags if record else {})
        if record and record.end_time:
            self._ends.setdefault(partition, record.end_time)
