"""Dagster's default run launcher, extended to notice runs whose process has died."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
from filelock import FileLock, Timeout

from agent_pipeline._compat.dagster import CheckRunHealthResult, WorkerStatus
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import PipelineError

_SETTLED = 1.0
"""Seconds after which a free lock is tried again, because a run may just be about to take it."""


class WatchedRunLauncher(dg.DefaultRunLauncher):
    """A run launcher that marks runs as failed if their process was killed.

    Dagster's run monitoring asks it whether a run lives. A run holds a lock file of this machine
    (`alive`), which the system releases with the process. The state of a run on another machine is
    unknown here.
    """

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        try:
            file = _file(run.run_id)
        except PipelineError:  # settings that cannot be read say nothing of a run
            return CheckRunHealthResult(WorkerStatus.RUNNING)
        for wait in (_SETTLED, 0.0):
            if not file.exists() or _is_held(file):
                return CheckRunHealthResult(WorkerStatus.RUNNING)
            time.sleep(wait)
        file.unlink(missing_ok=True)
        return CheckRunHealthResult(
            WorkerStatus.FAILED,
            "Its process is gone: it was killed, or the machine was switched off.",
        )


@contextmanager
def alive(run_id: str) -> Iterator[None]:
    """Hold the lock that shows that the process of a run is alive.

    Raises:
        SettingsError: the settings cannot be read.
    """
    file = _file(run_id)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file):
        try:
            yield
        finally:
            file.unlink(missing_ok=True)


def _file(run_id: str) -> Path:
    return load_settings().cache_path / "runs" / f"{run_id}.lock"


def _is_held(file: Path) -> bool:
    try:
        with FileLock(file, timeout=0):
            return False
    except Timeout:
        return True
