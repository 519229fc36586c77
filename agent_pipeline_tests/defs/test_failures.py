"""What is tried again, and what is not."""

import errno

import dagster as dg
import pytest
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError
from filelock import FileLock

from agent_pipeline.compute.launchers.runs import WatchedRunLauncher, alive
from agent_pipeline.defs.failures import RETRIES, user_errors
from agent_pipeline.errors import (
    DataError,
    PassingError,
    PipelineError,
    SettingsError,
    StoreError,
    first_line,
)
from agent_pipeline.worker import _turn


def _caused(error: PipelineError, cause: Exception) -> PipelineError:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (_caused(StoreError("the store is away"), ConnectionResetError()), RETRIES + 1),
        (PassingError("the process died"), RETRIES + 1),
        (_caused(SettingsError("the address is wrong"), ConnectionRefusedError()), 1),
        (_caused(DataError("no rows"), KeyError()), 1),
        (EndpointConnectionError(endpoint_url="http://bucket"), RETRIES + 1),
        (ConnectionClosedError(endpoint_url="http://bucket"), RETRIES + 1),
        (OSError(errno.EBUSY, "Reduce your request rate"), RETRIES + 1),
    ],
)
def test_only_what_may_pass_is_tried_again_and_its_sentence_is_the_same(
    error: Exception, tries: int
) -> None:
    tried = []

    @dg.asset
    def table(context: dg.AssetExecutionContext) -> None:
        with user_errors():
            tried.append(context.op_execution_context.retry_number)
            raise error

    result = dg.materialize([table], raise_on_error=False)
    (failure,) = result.filter_events(lambda event: event.is_step_failure)
    assert (
        len(tried) == tries
        and first_line(error) in failure.step_failure_data.user_failure_data.description
    )


def test_redaction_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sentence for Dagster's log is redacted with the options of the settings."""
    monkeypatch.setenv("AGENT_PIPELINE_REDACTION__ALLOW", '["ann@example.org"]')
    with pytest.raises(dg.Failure) as raised, user_errors():
        raise DataError("The rows of ann@example.org and bob@example.org are gone.")
    assert raised.value.description == "The rows of ann@example.org and <EMAIL_1> are gone."


def test_a_run_lives_as_long_as_its_lock_is_held(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_CACHE", str(tmp_path))
    monkeypatch.setattr("agent_pipeline.compute.launchers.runs._SETTLED", 0.0)
    run = dg.DagsterRun(job_name="retrain")

    def status() -> str:
        return WatchedRunLauncher().check_run_worker_health(run).status.value

    assert status() == "RUNNING", "nothing is known of a run of another machine"
    with alive(run.run_id):
        assert status() == "RUNNING"
    assert status() == "RUNNING" and not list(tmp_path.glob("runs/*"))
    (tmp_path / "runs" / f"{run.run_id}.lock").touch()  # what a killed process leaves
    assert status() == "FAILED"


def test_as_many_heavy_tasks_run_at_once_as_the_pool_allows(tmp_path) -> None:
    waiting: list[str] = []
    with _turn(tmp_path, 2, waiting.append), _turn(tmp_path, 2, waiting.append):
        third = FileLock(tmp_path / "worker-0.lock", timeout=0)
        assert not waiting and (tmp_path / "worker-1.lock").exists()
        with pytest.raises(TimeoutError):
            third.acquire()
    with _turn(tmp_path, 1, waiting.append):
        assert not waiting
