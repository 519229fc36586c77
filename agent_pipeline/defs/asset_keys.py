"""Names and keys of the assets, with the prefix of the setting `key_prefix`.

The prefix keeps the asset keys apart from those of another project in the same Dagster instance. It
appears in Dagster only: settings, tables and folders use the asset's name.
"""

import dagster as dg

from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import SettingsError


def key_prefix() -> list[str]:
    """Return the parts of the setting `key_prefix`; none if the settings cannot be read."""
    try:
        return [part for part in load_settings().key_prefix.split("/") if part]
    except SettingsError:  # the code location reports it when it loads, and every run does
        return []


def asset_key(name: str) -> dg.AssetKey:
    """Return the key of one of the pipeline's own assets."""
    return dg.AssetKey([*key_prefix(), name])


def asset_name(key: dg.AssetKey) -> str:
    """Return an asset's name without the prefix.

    The parts of a longer name are joined by two underscores.

    Example:
        With `key_prefix = "agents"`, the key `agents/sft_dataset` has the name `sft_dataset`.
    """
    prefix = key_prefix()
    path = list(key.path)
    if prefix and path[: len(prefix)] == prefix:
        path = path[len(prefix) :]
    return "__".join(path)
