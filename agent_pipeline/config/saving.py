"""Writing of settings into `pipeline.toml`, with its comments, order and layout preserved."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import Table

from agent_pipeline.config.resolution import RunValues
from agent_pipeline.config.settings import config_file
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.filesystem import write_atomically


def save(values: RunValues, key: PartitionKey | None) -> Path:
    """Set asset values in the settings file, for one agent or, without a key, for all agents.

    Without a file, `pipeline.toml` is made in the working directory.

    Example:
        `save({"sft_adapter": {"lora_r": 8}}, PartitionKey("shop", "support"))` writes

            [agents."shop/support".assets.sft_adapter]
            lora_r = 8

    Raises:
        SettingsError: the file is not TOML, or a name that must be a table is not a table.
    """
    path = config_file() or Path.cwd() / "pipeline.toml"
    try:
        document = tomlkit.parse(path.read_text(encoding="utf-8") if path.exists() else "")
        for asset, settings in values.items():
            table = find_or_add_table(
                document, ("agents", str(key), "assets", asset) if key else ("assets", asset)
            )
            for name, value in settings.items():
                table[name] = value
    except (TOMLKitError, TypeError, AttributeError) as error:
        raise SettingsError(
            f"{path} cannot be changed ({error}): edit the file by hand."
        ) from error
    write_atomically(path, tomlkit.dumps(document).encode("utf-8"))
    return path


def find_or_add_table(document: Any, names: tuple[str, ...]) -> Any:
    """Return the table at a path of names, and create the table if it is missing.

    The tables above it get no headers.
    """
    table = document
    for name in names[:-1]:
        if name not in table:
            table.append(name, tomlkit.table(is_super_table=True))
        elif _is_dotted(table, name):
            _undot(table, name)
        table = table[name]
    if names[-1] not in table:
        table.append(names[-1], tomlkit.table())
    value = table[names[-1]]
    if not isinstance(value, Table | Mapping):
        raise TypeError(f"{'.'.join(names)} is not a table")
    return value


def _is_dotted(table: object, name: str) -> bool:
    """Return whether a table is written as dotted keys (`"shop/support".world = …`).

    No header can stand next to dotted keys.
    """
    body = getattr(table, "body", None) or getattr(getattr(table, "value", None), "body", [])
    return any(key is not None and key.key == name and key.is_dotted() for key, _ in body)


def _undot(table: Any, name: str) -> None:
    """Give a table of dotted keys its own header. Comments inside the table are preserved."""
    values = tomlkit.table()
    for key, item in list(table[name].items()):
        values.append(key, item)
    table.remove(name)
    table.append(name, values)
