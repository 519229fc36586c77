"""Uses of private parts of Dagster: shell runs, messages of the worker, and `dagster dev`.

What a run does, or what a message means, belongs to `cli`, `compute` and `defs`. Modules that slow
down the start of a code location are imported inside the functions.
"""

import copy
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from types import SimpleNamespace
from typing import Any

import dagster as dg
from dagster._core.definitions.definitions_load_context import (
    DefinitionsLoadContext,
    DefinitionsLoadType,
)
from dagster._core.errors import DagsterPipesExecutionError
from dagster._core.event_api import RunStatusChangeEventType
from dagster._core.launcher.base import CheckRunHealthResult, WorkerStatus
from dagster._utils import tail_file
from dagster._utils.schedules import get_next_cron_tick, is_valid_cron_schedule

__all__ = [
    "DAEMON_MODULE",
    "CheckRunHealthResult",
    "DagsterPipesExecutionError",
    "RepositoryAddress",
    "RunStatusChangeEventType",
    "WholeLineReader",
    "WorkerStatus",
    "execute_shell_run",
    "get_next_cron_tick",
    "is_code_location_starting",
    "is_valid_cron_schedule",
    "run_dev_command",
    "with_group",
]
"""Six types and functions of Dagster that its public interface uses but does not export."""

DAEMON_MODULE = "dagster._daemon"
"""Name of the module behind the program `dagster-daemon`, which `python -m` finds without a PATH.
"""

OpenProcess = Callable[..., "subprocess.Popen[Any]"]


def is_code_location_starting() -> bool:
    """Return whether the definitions are loaded for the first time, and not for a run.

    A run's process loads the definitions too. It must not fail because of a setting that was
    changed after the run was queued.
    """
    return DefinitionsLoadContext.get().load_type is DefinitionsLoadType.INITIALIZATION


def with_group(asset: dg.SourceAsset, group: str) -> dg.SourceAsset:
    """Return an observable source asset in another group.

    `SourceAsset.with_attributes` refuses to replace a group.
    """
    copied = copy.copy(asset)
    copied.group_name = group
    return copied


class WholeLineReader(dg.PipesFileMessageReader):
    """A reader of the worker's messages that waits until a line is complete.

    The reader of Dagster 1.13 parses a line that is half written, which happens on a busy machine.
    Its thread then ends, and the run loses the worker's progress and result.
    """

    def _reader_thread(self, handler: dg.PipesMessageHandler, is_resource_complete: Event) -> None:
        line = ""
        for part in tail_file(self._path, is_resource_complete.is_set):
            line += part
            if line.endswith("\n"):
                handler.handle_message(json.loads(line))
                line = ""


@dataclass(frozen=True)
class RepositoryAddress:
    """The place from which Dagster loads the definitions.

    Attributes:
        workspace_file: The workspace.yaml with the one code location.
        repository: The name of the repository in the code location.
    """

    workspace_file: str
    repository: str


def execute_shell_run(
    job: dg.JobDefinition,
    instance: dg.DagsterInstance,
    *,
    address: RepositoryAddress,
    assets: Sequence[dg.AssetKey],
    partition: str | None,
    config: Mapping[str, object],
    tags: Mapping[str, str],
) -> dg.JobExecutionResult:
    """Run assets of a job in this process, and let the UI show the run like its own runs.

    `JobDefinition.execute_in_process` writes no logs of steps and gives a run no code location. The
    UI's home page, the sensors and the daemon then do not count the run.

    Args:
        job: The job.
        instance: The Dagster instance.
        address: Where Dagster finds the definitions.
        assets: The assets to materialize.
        partition: The partition, or None.
        config: The run config.
        tags: Tags of the run. The run is never started again if its process ends, because a
            person may have interrupted it.
    """
    from dagster._core.definitions.job_base import InMemoryJob
    from dagster._core.execution.api import execute_run
    from dagster._core.execution.execute_in_process import merge_run_tags
    from dagster._core.remote_origin import RemoteRepositoryOrigin
    from dagster._core.storage.tags import MAX_RETRIES_TAG
    from dagster._core.workspace.load import location_origins_from_yaml_paths

    (location,) = location_origins_from_yaml_paths([address.workspace_file])
    all_tags = {**tags, MAX_RETRIES_TAG: "0"}
    dagster_run = instance.create_run_for_job(
        job,
        run_config=config,
        tags=merge_run_tags(job, partition, all_tags, list(assets), instance, config),
        asset_selection=frozenset(assets),
        remote_job_origin=RemoteRepositoryOrigin(location, address.repository).get_job_origin(
            job.name
        ),
    )
    with _log_copiers_ignore_interrupts():
        return execute_run(InMemoryJob(job), dagster_run, instance)


@contextmanager
def _log_copiers_ignore_interrupts() -> Iterator[None]:
    """Keep Ctrl-C away from the processes that copy a step's output to the screen.

    Otherwise, these processes would print a stack trace. Dagster has no option for the session of
    these processes.
    """
    from dagster._core.execution import compute_logs

    def popen(*arguments: Any, **options: Any) -> "subprocess.Popen[Any]":
        return subprocess.Popen(*arguments, **options, start_new_session=True)

    vars(compute_logs)["subprocess"] = SimpleNamespace(Popen=popen)
    try:
        yield
    finally:
        vars(compute_logs)["subprocess"] = subprocess


def run_dev_command(webserver_module: str) -> None:
    """Run `dagster dev` with the options of the command line, but with another web server.

    The command has no option for the module of the web server.

    Args:
        webserver_module: The module to start instead of `dagster_webserver`.
    """
    from dagster._cli import dev

    open_process: OpenProcess = vars(dev)["open_ipc_subprocess"]

    def open_own_process(command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        replaced = [webserver_module if part == "dagster_webserver" else part for part in command]
        return open_process(replaced, **options)

    vars(dev)["open_ipc_subprocess"] = open_own_process
    dev.dev_command()
