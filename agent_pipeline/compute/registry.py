"""The registry of heavy tasks: what each is called, which version its meaning has, which libraries decide its result."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

Params = dict[str, Any]
Result = dict[str, Any]


@dataclass(frozen=True)
class Task:
    """A step that runs in the worker process, by `run(params, progress)`. Raise `version` when the same input shall give another
    result: what was made by an older version is then made again."""

    name: str
    version: int
    libraries: tuple[str, ...]
    run: Callable[..., Result]

    def origin(self) -> dict[str, Any]:
        """What an identity holds of the code that made an artifact: the task, its version, and the versions of its libraries."""
        return {
            "task": self.name,
            "version": self.version,
            "libraries": {name: _version(name) for name in self.libraries},
        }


TASKS: dict[str, Task] = {}


def task(version: int, libraries: tuple[str, ...] = ()) -> Callable[[Callable[..., Result]], Task]:
    """Register a function as the task of its name."""

    def register(function: Callable[..., Result]) -> Task:
        registered = Task(function.__name__, version, libraries, function)
        TASKS[registered.name] = registered
        return registered

    return register


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
