"""Starting the worker in a place, and what came of it: a result, or one sentence.

A worker is one command, `python -m agent_pipeline.worker`. It is told the task and its parameters by Dagster Pipes, reads and
writes the lake, and says its result by Dagster Pipes. A result that is there already is found by its identity.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic
from typing import Any, ClassVar
from uuid import uuid4

import dagster as dg
from dagster_pipes import PipesParams

from agent_pipeline.compute.tasks import VERSIONS
from agent_pipeline.compute.worker_messages import ALIVE, BEAT, Letterbox
from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PassingError, PipelineError, WorkerError, first_line
from agent_pipeline.keys import PartitionKey

WORKER = ("-m", "agent_pipeline.worker")


class Launcher(ABC):
    """Runs the worker in one place."""

    where: ClassVar[str]
    """The place, as a sentence has it."""
    errors: ClassVar[tuple[type[Exception], ...]] = (Exception,)
    """What `start` raises of a worker that died: the clients of clusters each have their own families of errors."""
    advice: ClassVar[str]
    """What to do when it died."""

    @abstractmethod
    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        """Run the worker to its end; a run that is cancelled ends it."""

    def is_retryable(self, error: Exception) -> bool:
        """Return whether a worker that died of `error` may succeed when it is started again.

        Clusters move and evict workers, so there every death may pass.
        """
        return True

    def remedy(self, error: Exception) -> str:
        """Return what a person can do about a worker that died of `error`."""
        return self.advice


def launch(
    context: dg.AssetExecutionContext, launcher: Launcher, task: str, params: dict[str, Any]
) -> dict[str, Any]:
    """The result of a task of `agent_pipeline.compute.tasks`, which reads its rows from the lake that `params` name.

    Raises:
        WorkerError: the task ended with a sentence for the user, or its process crashed.
        PassingError: the task or its process failed for a reason that may be gone next time.
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
            f"The {task} process ended without a result: materialize again, what is complete is not made twice."
        )
    result: dict[str, Any] = messages[-1]
    if "error" in result:
        raise (PassingError if result.get("passing") else WorkerError)(result["error"])
    return result


class LakeMessages(dg.PipesBlobStoreMessageReader):
    """Reads a worker's messages from the lake, and leaves signs of the run's life there."""

    def __init__(self, settings: Settings, asset: str, key: PartitionKey) -> None:
        super().__init__(interval=5)
        self._where = {
            "lake": settings.lake_url,
            "lake_options": settings.lake_options,
            "asset": asset,
            "partition": str(key),
        }
        self._box = Letterbox(settings.open_lake(), asset, str(key), uuid4().hex[:8])
        self._beat = -BEAT

    @contextmanager
    def get_params(self) -> Iterator[PipesParams]:
        """What a worker must know to write its messages; they are removed when it has ended."""
        try:
            yield {**self._where, "launch": self._box.launch}
        finally:
            with suppress(Exception):  # a lake that cannot be reached now: the result is here
                self._box.clear()

    def messages_are_readable(self, params: PipesParams) -> bool:
        return True

    def download_messages_chunk(self, index: int, params: PipesParams) -> str | None:
        """A file of messages; `None` where there is none yet."""
        if monotonic() - self._beat >= BEAT:
            self._beat = monotonic()
            with suppress(Exception):  # a lake that cannot be reached now
                self._box.put(ALIVE, str(self._beat))
        return self._box.read(str(index))

    def no_messages_debug_text(self) -> str:
        return f"Attempted to read messages from {self._box.folder}."
