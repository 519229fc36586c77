"""The registry of heavy tasks: the name, version, parameters and libraries of each task.

The tasks themselves stand in `compute.tasks`, `compute.coresets` and `method_comparison.task`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Generic, TypeAlias, TypedDict, TypeVar

import msgspec

from agent_pipeline.compute.params import TaskParams
from agent_pipeline.errors import SettingsError
from agent_pipeline.progress import Progress, silent
from agent_pipeline.structs import convert_value

Result: TypeAlias = Mapping[str, Any]
"""The return value of a task, which is JSON so that it can cross a process boundary."""


class BuiltResult(TypedDict):
    """The result of a task that builds an artifact.

    Attributes:
        identity: The identity of the artifact.
        reused: Whether it existed already.
        report: The report in its manifest, as JSON. The package that makes the artifact defines its
            type.
    """

    identity: str
    reused: bool
    report: dict[str, Any]


class StepResult(BuiltResult, total=False):
    """The result of a training step. Only supervised fine-tuning sets the additional keys.

    Attributes:
        rows: The number of new rows.
        rows_with_surrogates: The number of new rows in which models saw made-up values.
        by_size: Which defaults follow from the size of the base model; empty if none do.
        replay: The counts of the replay buffer.
        replayed: A sentence about the replayed rows; empty if there are none.
    """

    rows: int
    rows_with_surrogates: int
    by_size: str
    replay: dict[str, Any]
    replayed: str


Params = TypeVar("Params", bound=TaskParams)


@dataclass(frozen=True)
class Task(Generic[Params]):
    """A heavy task that runs in the worker process.

    Raise `version` if the same input now gives another result. Artifacts of an older version are
    then made again.

    Attributes:
        name: The name by which assets ask for the task.
        version: The version of what the task computes.
        libraries: The packages whose versions decide the result.
        params_type: The type of the parameters.
        function: The code, called with the parameters and a progress callback.
    """

    name: str
    version: int
    libraries: tuple[str, ...]
    params_type: type[Params]
    function: Callable[..., Result]

    def run(
        self,
        params: Params | Mapping[str, Any],
        progress: Progress = silent,
        **shared: Any,
    ) -> Result:
        """Run the task in the current process.

        Args:
            params: The parameters, or their values by name as they come from another process.
            progress: Called as the work goes on.
            **shared: Objects that several calls in one process share, such as a cache.

        Raises:
            SettingsError: a parameter is missing, unknown or of a wrong type.
        """
        if isinstance(params, Mapping):
            params = self.decode(params)
        return self.function(params, progress, **shared)

    def decode(self, values: Mapping[str, Any]) -> Params:
        """Create the task's parameters from their values by name.

        Raises:
            SettingsError: a value is missing, unknown or of a wrong type.
        """
        try:
            return convert_value(dict(values), self.params_type)
        except msgspec.ValidationError as error:
            raise SettingsError(
                f"The task {self.name} cannot use its parameters ({error}): install the same "
                "version of agent-pipeline for the run and for its worker."
            ) from error

    def origin(self) -> dict[str, Any]:
        """Return the part of an artifact's identity that identifies the code.

        This part consists of the task, its version and the versions of its libraries.
        """
        return {
            "task": self.name,
            "version": self.version,
            "libraries": {name: _installed_version(name) for name in self.libraries},
        }


TASKS: dict[str, Task[Any]] = {}
"""Tasks that this process has imported, by name."""


def task(
    version: int, params_type: type[Params], libraries: tuple[str, ...] = (), name: str = ""
) -> Callable[[Callable[..., Result]], Task[Params]]:
    """Register a function as a task.

    Args:
        version: The version of the task's meaning.
        params_type: The type of its parameters.
        libraries: The packages that decide its result.
        name: The name in identities; by default the function's name. A function that was renamed
            keeps its first name here.
    """

    def register(function: Callable[..., Result]) -> Task[Params]:
        registered = Task(name or function.__name__, version, libraries, params_type, function)
        TASKS[registered.name] = registered
        return registered

    return register


def _installed_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
