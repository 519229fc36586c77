"""Names of a package that are imported when they are first used, so that its import is fast."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import NamedTuple


class LazyNames(NamedTuple):
    """The two functions by which a package loads its names when they are first used.

    Attributes:
        getattr: The package's `__getattr__`.
        dir: The package's `__dir__`.
    """

    getattr: Callable[[str], object]
    dir: Callable[[], list[str]]


def load_when_used(package: str, modules: Mapping[str, str]) -> LazyNames:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Args:
        package: The name of the package.
        modules: The module of each name, relative to the package.

    Example:
        >>> names = load_when_used("agent_pipeline", {"PartitionKey": "keys"})
        >>> names.getattr("PartitionKey").__module__
        'agent_pipeline.keys'
    """

    def load(name: str) -> object:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{package}.{modules[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *modules})

    return LazyNames(load, list_names)
