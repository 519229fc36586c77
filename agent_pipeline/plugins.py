"""Loading of a user's code by name: an entry point of an installed package, or a dotted path.

A module may be in the folder of `pipeline.toml`, just as a test may import from the folder of its
pytest configuration. The folder is searched last, so that no file in it hides an installed package,
and only after the settings or the shell named some code.
"""

import pkgutil
import sys
from collections.abc import Iterable
from importlib import import_module
from importlib.metadata import entry_points, packages_distributions
from pathlib import Path
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.options import did_you_mean

_default_folders: list[Path] = []
"""The folder of this process's settings file, or an empty list if there is no such file."""
_given_folders: set[Path] = set()
"""All folders whose modules this process was asked to load."""
_added_folders: set[Path] = set()
"""Those of the given folders that Python did not search before."""


def set_module_folder(folder: Path | None) -> None:
    """Set the folder that `load_plugin` searches by default, after all other places.

    Only the code that reads this process's settings file calls this function. If the folder is
    None, `load_plugin` searches only those other places.
    """
    _default_folders[:] = [folder] if folder else []


def load_plugin(
    name: str, kind: str, group: str, known: Iterable[str] = (), folder: Path | None = None
) -> Any:
    """Load the object that a name refers to.

    Args:
        name: An entry point of the group, or a dotted path (`package.module:attribute`).
        kind: The name of the loaded object in error messages, such as `coreset strategy`.
        group: The group of entry points.
        known: Names that need no loading, for the hint of an error.
        folder: The folder of the user's modules, which is searched last. None means the folder of
            this process's settings file.

    Raises:
        SettingsError: the name does not exist, or its code cannot be loaded, or a module of another
            folder hides a module of this folder.
    """
    points = {point.name: point.value for point in entry_points(group=group)}
    path = points.get(name, name)
    module, _, attribute = path.partition(":") if ":" in path else path.rpartition(".")
    if not module:
        raise SettingsError(f"There is no {kind} {name!r}{did_you_mean(name, {*known, *points})}")
    folder = folder or next(iter(_default_folders), None)
    if folder:
        _given_folders.add(folder.resolve())
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
            _added_folders.add(folder.resolve())
    try:
        loaded = getattr(import_module(module), attribute)
    except Exception as error:  # a module of the user's may raise anything when it is imported
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        advice = "correct it, or remove it"
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            places = ["put it into a folder of PYTHONPATH", "install it as a package"]
            if folder:
                places.insert(0, f"put it into {folder}")
            advice = f"if the module is yours, {' or '.join(places)}"
        raise SettingsError(
            f"The {kind} {name!r} cannot be loaded ({reason}): {advice}."
        ) from error
    if folder:
        _refuse_hidden_modules(folder, module.partition(".")[0], f"The {kind} {name!r}")
    return loaded


def _refuse_hidden_modules(folder: Path, module: str, what: str) -> None:
    """Refuse code that may use a module of another folder instead of its own module.

    Python imports only one module per name, so the second folder with a module `rules` would get
    the rules of the first folder.

    Args:
        folder: The folder of the code.
        module: The first part of the name of the module that was loaded.
        what: The code, as an error names it.

    Raises:
        SettingsError: A module of the folder was loaded from another folder.
    """
    own_names = {info.name for info in pkgutil.iter_modules([str(folder)])}
    for name in {module, *own_names}:
        origin = _find_origin(name)
        # A module that this folder lacks may come from any place that Python searches by itself.
        others = _given_folders if name in own_names else _added_folders
        if origin in others and origin != folder.resolve():
            # A package that is installed from its clone is meant.
            if name not in own_names and name in {__package__, *packages_distributions()}:
                continue
            raise SettingsError(
                f"{what} cannot be loaded, because the module {name} of {origin} is loaded: "
                f"give the module in {folder} another name."
            )


def _find_origin(module: str) -> Path | None:
    """Return the folder in which a loaded module lies, or None if it is not loaded from a file."""
    loaded = sys.modules.get(module)
    file = getattr(loaded, "__file__", None)
    if not file:
        return None
    path = Path(file).resolve()
    return path.parent.parent if hasattr(loaded, "__path__") else path.parent
