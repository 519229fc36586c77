"""The list of the settings of all agents and of each agent, with the place where each is set."""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.resolution import resolve, shared
from agent_pipeline.config.settings import Settings
from agent_pipeline.keys import PartitionKey

ALL_AGENTS = "all agents"
DEFAULT = "default"


class SettingRow(msgspec.Struct, frozen=True):
    """A setting and its value.

    Attributes:
        agent: The partition of the agent, or `all agents`.
        setting: The name of the setting, such as `sft_adapter.lora_r`.
        value: The value.
        set_by: The place where the setting is set, such as a table of pipeline.toml, a variable, or
            `default`.
    """

    agent: str
    setting: str
    value: Any
    set_by: str


class SettingList(msgspec.Struct, frozen=True):
    """The settings.

    Attributes:
        settings: The settings of all agents first, and then the settings in which an agent differs.
    """

    settings: list[SettingRow]

    def lines(self) -> list[str]:
        """Return one line per setting."""
        return [
            f"{row.agent}: {row.setting} = {row.value}, set by {row.set_by}"
            for row in self.settings
        ]


def list_settings(
    settings: Settings, keys: Sequence[PartitionKey], every: bool = False
) -> SettingList:
    """List the settings of the assets.

    Args:
        settings: The settings file and the environment.
        keys: The agents that may differ.
        every: Whether to list settings that have their default, too.
    """
    rows: list[SettingRow] = []
    for asset, options in ASSETS.items():
        general = resolve(settings, options)
        general_rows, general_shared = general.table(), shared(settings, asset)
        rows += [_make_row(ALL_AGENTS, row, asset) for row in general_rows]
        rows += [_make_row(ALL_AGENTS, row) for row in general_shared]
        if every:
            rows += [
                SettingRow(ALL_AGENTS, f"{asset}.{name}", getattr(general.options, name), DEFAULT)
                for name in type(general.options).model_fields
                if name not in general.origins
            ]
        for key in keys:
            agent_rows = resolve(settings, options, key).table()
            agent_shared = shared(settings, asset, key)
            rows += [
                _make_row(str(key), row, asset) for row in agent_rows if row not in general_rows
            ]
            rows += [_make_row(str(key), row) for row in agent_shared if row not in general_shared]
    unique = {(row.agent, row.setting): row for row in rows}
    return SettingList(list(unique.values()))


def _make_row(agent: str, row: dict[str, Any], asset: str = "") -> SettingRow:
    """Return a row of `Resolved.table` or of `shared` as a setting."""
    name = f"{asset}.{row['setting']}" if asset else row["setting"]
    return SettingRow(agent, name, row["value"], row["set_by"])
