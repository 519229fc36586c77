"""The worker as a process of this machine."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event
from typing import Any

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError
from dagster._utils import tail_file

from agent_pipeline.compute.launchers.launcher import WORKER, Launcher
from agent_pipeline.errors import LESS_MEMORY

COMMAND = [sys.executable, *WORKER]


@dataclass(frozen=True)
class Subprocess(Launcher):
    """The worker as a process, which ends when its parent does."""

    pipes: dg.PipesSubprocessClient
    where = "on this machine"
    errors = (DagsterPipesExecutionError,)
    advice = (
        f"if the machine ran out of memory, {LESS_MEMORY}; a training that was killed resumes from its last checkpoint "
        "when it is materialized again."
    )

    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, Any]
    ) -> dg.PipesClientCompletedInvocation:
        return self.pipes.run(context=context, command=COMMAND, extras=extras)


class WholeLines(dg.PipesFileMessageReader):
    """Dagster's reader (1.13) parses a line that is half written, as it was seen on a busy machine: its thread ends there, and with it the
    progress and the result of a run."""

    def _reader_thread(self, handler: dg.PipesMessageHandler, is_resource_complete: Event) -> None:
        begun = ""
        for part in tail_file(self._path, is_resource_complete.is_set):
            begun += part
            if begun.endswith("\n"):
                handler.handle_message(json.loads(begun))
                begun = ""


class WholeMessages(dg.PipesTempFileMessageReader):
    """Reads a worker's messages from a temporary file, each once it is whole."""

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, Any]]:
        """Have the messages read while the worker runs; what is yielded names the file."""
        with (
            TemporaryDirectory() as folder,
            WholeLines(str(Path(folder) / "messages")).read_messages(handler) as params,
        ):
            yield params
