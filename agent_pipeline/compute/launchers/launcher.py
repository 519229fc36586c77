"""Base class of launchers: start a worker, wait for its end, and return a result or one sentence.

A worker is the command `python -m agent_pipeline.worker`. Dagster Pipes hands it the task and the
parameters, and returns its result. Each module next to this one starts that command in one place.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import ClassVar
from uuid import uuid4

import dagster as dg
import msgspec
from dagster_pipes import PipesParams

from agent_pipeline.compute.tasks import VERSIONS
from agent_pipeline.compute.worker_messages import ALIVE, BEAT, Letterbox, LetterboxAddress
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PassingError, PipelineError, WorkerError, first_line
from agent_pipeline.keys import PartitionKey

WORKER = ("-m", "agent_pipeline.worker")


class Launcher(ABC):
    """A base class for the places where the worker can run."""

    where: ClassVar[str]
    """The launcher's place as part of a sentence, such as `on Slurm`."""
    errors: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """Classes of errors that `start` raises if the worker died."""
    advice: ClassVar[str]
    """Advice for users in case the worker died."""

    @abstractmethod
    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, object]
    ) -> dg.PipesClientCompletedInvocation:
        """Run the worker until it ends. If the run is cancelled, end the worker."""

    def is_retryable(self, error: Exception) -> bool:
        """Return whether a worker that died of `error` may succeed if it is started again.

        Clusters move and evict workers, so there every death may pass.
        """
        return True

    def remedy(self, error: Exception) -> str:
        """Return advice for users whose worker died of `error`."""
        return self.advice


def launch(
    context: dg.AssetExecutionContext, launcher: Launcher, task: str, params: dict[str, object]
) -> dict[str, object]:
    """Run a task in a worker and return its result.

    Args:
        context: The run of the asset.
        launcher: The place where the worker runs.
        task: The name of the task.
        params: The parameters of the task.

    Raises:
        WorkerError: the task ended with a sentence for the user, or its process crashed.
        PassingError: the task failed for a reason that may be gone next time.
    """
    context.log.info(f"starting a process {launcher.where} to {task}")
    try:
        invocation = launcher.start(
            context, {"task": task, "version": VERSIONS.get(task), "params": params}
        )
    except PipelineError:
        raise
    except launcher.errors as error:
        context.log.error(str(error))
        sentence = f"The {task} process died ({first_line(error)}): {launcher.remedy(error)}"
        error_class = PassingError if launcher.is_retryable(error) else WorkerError
        raise error_class(sentence) from error
    messages = list(invocation.get_custom_messages())
    if not messages:
        raise PassingError(
            f"The {task} process ended without a result: materialize again (completed artifacts "
            "are reused)."
        )
    result: dict[str, object] = messages[-1]
    if "error" in result:
        raise (PassingError if result.get("passing") else WorkerError)(result["error"])
    return result


class LakeMessages(dg.PipesBlobStoreMessageReader):
    """The reader of a remote worker's messages, which also signals that the run is alive."""

    def __init__(self, settings: Settings, asset: str, key: PartitionKey) -> None:
        super().__init__(interval=5)
        self._address = LetterboxAddress(
            lake=settings.lake_url,
            lake_options=settings.lake_options,
            asset=asset,
            partition=str(key),
            launch=uuid4().hex[:8],
        )
        self._box = Letterbox(settings.open_lake(), asset, str(key), self._address.launch)
        self._beat = -BEAT

    @contextmanager
    def get_params(self) -> Iterator[PipesParams]:
        """Yield the parameters for writing messages, and remove the message files afterwards."""
        try:
            yield msgspec.structs.asdict(self._address)
        finally:
            with suppress(Exception):  # a lake that cannot be reached now: the result is here
                self._box.clear()

    def messages_are_readable(self, params: PipesParams) -> bool:
        return True

    def download_messages_chunk(self, index: int, params: PipesParams) -> str | None:
        """Return the messages in one file, or None if the file does not exist yet."""
        if monotonic() - self._beat >= BEAT:
            self._beat = monotonic()
            with suppress(Exception):  # a lake that cannot be reached now
                self._box.put(ALIVE, str(self._beat))
        return self._box.read(str(index))

    def no_messages_debug_text(self) -> str:
        return f"Attempted to read messages from {self._box.folder}."
