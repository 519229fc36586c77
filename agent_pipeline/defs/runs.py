"""What runs remember: the version of the store that a partition was last trained on."""

import dagster as dg

from agent_pipeline.defs.jobs import RETRAIN

STORE_VERSION_TAG = "agent_pipeline/store_version"


def store_version_tags(version: str) -> dict[str, str]:
    """Tags of a run that takes in this version of the store."""
    return {STORE_VERSION_TAG: version[:32]}


def trained_on(instance: dg.DagsterInstance, partition: str, version: str) -> bool:
    """Whether the partition's last successful run of the whole graph took in exactly this version."""
    wanted = dg.RunsFilter(job_name=RETRAIN, statuses=[dg.DagsterRunStatus.SUCCESS], tags={"dagster/partition": partition})
    last = instance.get_run_records(wanted, limit=1)
    return bool(last) and last[0].dagster_run.tags.get(STORE_VERSION_TAG) == version[:32]
