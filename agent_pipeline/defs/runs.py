"""What runs remember: the version of the store, and of the settings, that a partition was last trained on."""

from collections.abc import Mapping

import dagster as dg

from agent_pipeline.defs.jobs import RETRAIN

STORE_VERSION_TAG = "agent_pipeline/store_version"
SETTINGS_VERSION_TAG = "agent_pipeline/settings_version"
PENDING = "not_judged_yet"
"""Metadata of `judged_sessions`: how many sessions the language model should have judged and did not (a limit, an outage)."""

LOCATION = "agent_pipeline"
"""The name of the code location, also in `workspace.yaml` and `pyproject.toml`."""
LOCATION_TAGS = {"dagster/code_location": LOCATION, ".dagster/repository": f"__repository__@{LOCATION}"}
"""Tags by which the UI assigns a run to the code location. Dagster sets them on the runs that the UI and the daemon launch."""


def version_tags(store: str, settings: str) -> dict[str, str]:
    """Tags of a run that takes in this version of the store (with its labels) under these settings."""
    return {STORE_VERSION_TAG: store[:32], SETTINGS_VERSION_TAG: settings[:32]}


def trained_on(instance: dg.DagsterInstance, partition: str, tags: Mapping[str, str]) -> bool:
    """Whether the partition's last successful run of the whole graph took in exactly these versions of store and settings, and left no
    session to be judged."""
    wanted = dg.RunsFilter(job_name=RETRAIN, statuses=[dg.DagsterRunStatus.SUCCESS], tags={"dagster/partition": partition})
    last = instance.get_run_records(wanted, limit=1)
    return bool(last) and tags.items() <= last[0].dagster_run.tags.items() and not _pending(instance, partition)


def _pending(instance: dg.DagsterInstance, partition: str) -> bool:
    """Whether the last judging of the partition left sessions that the next run must ask about."""
    wanted = dg.AssetRecordsFilter(asset_key=dg.AssetKey("judged_sessions"), asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    materialization = records[0].asset_materialization if records else None
    entry = materialization.metadata.get(PENDING) if materialization else None
    return bool(entry and entry.value)
