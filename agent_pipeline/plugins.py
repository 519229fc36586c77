"""Code of the user's, loaded by name: an entry point of an installed package, or `package.module:attribute`."""

from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean


def load_plugin(name: str, kind: str, group: str, known: Iterable[str] = ()) -> Any:
    """What a name stands for: the entry point of that name in `group`, else the attribute at a dotted path (`a.b:c` or `a.b.c`).

    `kind` says in errors what is looked for (`coreset strategy`); `known` are the names that need no loading.

    Raises:
        SettingsError: there is no such name, or what it names cannot be loaded.
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
