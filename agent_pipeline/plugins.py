"""Loading a user's code by name: an entry point of an installed package, or a dotted path."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean


def load_plugin(name: str, kind: str, group: str, known: Iterable[str] = ()) -> Any:
    """Return the object that a name stands for.

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
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SettingsError(
            f"The {kind} {name!r} cannot be loaded ({reason}): correct it, or take it out."
        ) from error
