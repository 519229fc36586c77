"""Loading of a user's code by name: an entry point of an installed package, or a dotted path.

A module may lie in the folder of `pipeline.toml`, as a test may import from the folder of its
pytest configuration. The folder is searched last, so that no file in it hides an installed package,
and only after the settings or the shell named some code.
"""

import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean

_module_folders: list[str] = []
"""The folder of the settings file that was read last, or an empty list if there is no such file."""


def set_module_folder(folder: Path | None) -> None:
    """Let `load_plugin` also search for modules in a folder, after all other places.

    If the folder is None, `load_plugin` searches only those other places.
    """
    _module_folders[:] = [str(folder)] if folder else []


def load_plugin(name: str, kind: str, group: str, known: Iterable[str] = ()) -> Any:
    """Load the object that a name refers to.

    Args:
        name: An entry point of the group, or a dotted path (`package.module:attribute`).
        kind: What is loaded, as an error names it (`coreset strategy`).
        group: The group of entry points.
        known: Names that need no loading, for the hint of an error.

    Raises:
        SettingsError: the name does not exist, or its code cannot be loaded.
    """
    points = {point.name: point.value for point in entry_points(group=group)}
    path = points.get(name, name)
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module:
        raise SettingsError(f"There is no {kind} {name!r}{did_you_mean(name, {*known, *points})}")
    sys.path += [folder for folder in _module_folders if folder not in sys.path]
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        advice = "correct it, or remove it"
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            places = ["put it into a folder of PYTHONPATH", "install it as a package"]
            if _module_folders:
                places.insert(0, f"put it into {_module_folders[0]}")
            advice = f"if the module is yours, {' or '.join(places)}"
        raise SettingsError(
            f"The {kind} {name!r} cannot be loaded ({reason}): {advice}."
        ) from error
