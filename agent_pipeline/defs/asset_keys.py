"""Names and keys in Dagster, with the prefix of the setting `key_prefix`.

The prefix keeps assets, jobs, schedules, sensors and resources apart from those of another project
in the same Dagster instance. The prefix appears in Dagster only: settings, tables and folders use
the asset's name.
"""

import dagster as dg

from agent_pipeline.config.settings import cached_settings
from agent_pipeline.errors import SettingsError

OWN_TAG = "agent_pipeline"
"""Tag of every asset that the pipeline defines, including assets that were added to it."""

OWN_ASSETS = dg.AssetSelection.tag(OWN_TAG, "")
"""The pipeline's own assets. A code location may also contain assets of other projects."""


def key_prefix() -> list[str]:
    """Return the parts of the setting `key_prefix`, or none if the settings cannot be read."""
    try:
        return [part for part in cached_settings().key_prefix.split("/") if part]
    except SettingsError:  # the code location reports it when it loads, and every run does
        return []


def asset_key(name: str) -> dg.AssetKey:
    """Return the key of one of the pipeline's own assets."""
    return dg.AssetKey([*key_prefix(), name])


def add_prefix(name: str) -> str:
    """Return the name of an op, job, schedule, sensor or resource of the pipeline.

    The name of an op is its key in a run config.

    Example:
        With `key_prefix = "team/agents"`, the job `retrain` is called `team__agents__retrain`.
    """
    return "__".join([*key_prefix(), name])


def remove_prefix(name: str) -> str:
    """Return the name of an op or a job without the prefix."""
    return name.removeprefix(add_prefix(""))


def asset_name(key: dg.AssetKey) -> str:
    """Return the name of an asset without the prefix.

    The parts of a longer name are joined by two underscores.

    Example:
        With `key_prefix = "agents"`, the key `agents/sft_dataset` has the name `sft_dataset`.
    """
    prefix = key_prefix()
    path = list(key.path)
    if prefix and path[: len(prefix)] == prefix:
        path = path[len(prefix) :]
    return "__".join(path)
