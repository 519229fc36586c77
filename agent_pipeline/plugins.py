"""Code of the user's, loaded by name: an entry point of an installed package, or `package.module:attribute`."""

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from agent_pipeline.errors import SettingsError


def load_plugin(name: str, kind: str, group: str, known: Iterable[str] = ()) -> Any:
    """What a name stands for: the entry point of that name in `group`, else the attribute at a dotted path.

    `kind` says in errors what is looked for (`coreset strategy`), and `known` which names need no loading.

    Raises:
        SettingsError: there is no such name, or what it names cannot be loaded.
    """
    points = {point.name: point.value for point in entry_points(group=group)}
    module, colon, attribute = points.get(name, name).partition(":")
    if not colon:
        names = [*known, *sorted(points)]
        close = get_close_matches(name, names, n=1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise SettingsError(f"There is no {kind} {name!r}{hint}: choose one of {', '.join(names)}, or give package.module:attribute.")
    try:
        return getattr(import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise SettingsError(f"The {kind} {name!r} cannot be loaded ({reason}): correct its path.") from error
