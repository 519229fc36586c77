"""Launcher that runs the worker as a process on this machine, with its signals and messages."""

import os
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen, TimeoutExpired
from tempfile import TemporaryDirectory

import dagster as dg

from agent_pipeline._compat.dagster import DagsterPipesExecutionError, WholeLineReader
from agent_pipeline.compute.launchers.launcher import WORKER, Launcher
from agent_pipeline.errors import LESS_MEMORY

COMMAND = [sys.executable, *WORKER]
SECONDS_TO_END = 20.0
"""Seconds that a worker may take to end after SIGTERM, before SIGKILL ends it."""
SIGNALS_FROM_OUTSIDE = frozenset(
    getattr(signal, name).value
    for name in ("SIGHUP", "SIGINT", "SIGKILL", "SIGTERM")
    if hasattr(signal, name)
)
"""Signals that another process or the system sends. Other signals, such as SIGSEGV, are the
worker's own fault, and the worker would receive them again.
"""


class WorkerExitError(DagsterPipesExecutionError):
    """Raised if a worker process ended with an exit code other than 0.

    Attributes:
        exit_code: The exit code; a negative number is the signal that ended the process.
    """

    def __init__(self, exit_code: int) -> None:
        self.exit_code = exit_code
        if exit_code < 0:
            cause = f"signal {signal.Signals(-exit_code).name}"
        else:
            cause = f"exit code {exit_code}"
        super().__init__(f"the process ended with {cause}")


@dataclass(frozen=True)
class Subprocess(Launcher):
    """A launcher that runs the worker as a process, which ends when its parent process ends.

    The worker runs in a separate session of the operating system. Ctrl-C in a terminal therefore
    reaches the parent only: an interpreter that is still starting would answer with a stack trace.
    """

    pipes: dg.PipesSubprocessClient
    where = "on this machine"
    errors = (DagsterPipesExecutionError,)
    advice = (
        f"if the machine ran out of memory, {LESS_MEMORY}. A killed training run resumes from its "
        "last checkpoint when it is materialized again."
    )

    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, object]
    ) -> dg.PipesClientCompletedInvocation:
        with dg.open_pipes_session(
            context=context,
            context_injector=self.pipes.context_injector,
            message_reader=self.pipes.message_reader,
            extras=extras,
        ) as session:
            environment = os.environ | session.get_bootstrap_env_vars()
            process = Popen(COMMAND, env=environment, start_new_session=True)
            try:
                exit_code = process.wait()
            except BaseException:  # Dagster's interruption, or Ctrl-C
                end_session(process)
                raise
            if exit_code != 0:
                raise WorkerExitError(exit_code)
        return dg.PipesClientCompletedInvocation(session)

    def is_retryable(self, error: Exception) -> bool:
        return isinstance(error, WorkerExitError) and -error.exit_code in SIGNALS_FROM_OUTSIDE

    def remedy(self, error: Exception) -> str:
        if self.is_retryable(error):
            return self.advice
        return "the output above shows the cause. Fix it before you start the run again."


def end_session(process: "Popen[bytes]") -> None:
    """End a process that leads an operating system session, and all processes in that session."""
    _signal_session(process, signal.SIGTERM)
    try:
        process.wait(timeout=SECONDS_TO_END)
    except TimeoutExpired:
        _signal_session(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()


def _signal_session(process: "Popen[bytes]", signum: signal.Signals) -> None:
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signum)
    else:
        process.send_signal(signum)


class WholeMessages(dg.PipesTempFileMessageReader):
    """A reader of a worker's messages from a temporary file, which reads only complete messages."""

    @contextmanager
    def read_messages(self, handler: dg.PipesMessageHandler) -> Iterator[Mapping[str, object]]:
        """Read messages while the worker runs. Yield the parameters that name the message file."""
        with (
            TemporaryDirectory() as folder,
            WholeLineReader(str(Path(folder) / "messages")).read_messages(handler) as params,
        ):
            yield params
