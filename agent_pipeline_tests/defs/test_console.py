import io
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.compute_logs import redirect_to_file

from agent_pipeline.defs.console import console, said_of
from agent_pipeline.defs.specs import check_result, warning

STEP = """
import os
import dagster as dg
from agent_pipeline.defs.console import console

logger = console.logger_fn(dg.InitLoggerContext({}, console))
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # as Dagster does while a step runs
logger.error("the reason")
"""


def test_what_a_step_says_is_on_the_screen_at_once_and_not_by_the_echo_of_a_capture() -> None:
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    assert "error: the reason" in done.stderr


def test_replaced_standard_error_is_the_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that calls the command may give `sys.stderr` another file."""
    with (tmp_path / "screen").open("w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        logger = console.logger_fn(dg.build_init_logger_context())
        with redirect_to_file(screen, str(tmp_path / "captured")):
            logger.error("the reason")
    assert "error: the reason" in (tmp_path / "screen").read_text(encoding="utf-8")
    assert not (tmp_path / "captured").read_text(encoding="utf-8"), (
        "the echo of the capture would show the line twice"
    )


def test_standard_error_in_memory_is_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream in (io.StringIO(), io.TextIOWrapper(io.BytesIO(), write_through=True)):
        monkeypatch.setattr(sys, "stderr", stream)
        console.logger_fn(dg.build_init_logger_context()).error("the reason")
        stream.seek(0)
        assert "error: the reason" in stream.read()


def test_who_stops_a_run_reads_that_it_was_interrupted_and_no_trace() -> None:
    @dg.op
    def waits() -> None:
        raise dg.DagsterExecutionInterruptedError

    @dg.job
    def job() -> None:
        waits()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert [said_of(event) for event in result.all_events if event.is_step_failure] == [
        "interrupted"
    ]


def test_a_run_that_fails_outside_of_its_steps_says_why() -> None:
    @dg.resource
    def broken() -> None:
        raise RuntimeError("the reason")

    @dg.op(required_resource_keys={"broken"})
    def waits() -> None: ...

    @dg.job(resource_defs={"broken": broken})
    def job() -> None:
        waits()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    [words] = [
        words for event in result.all_events if event.is_failure and (words := said_of(event))
    ]
    assert "the reason" in words


def test_a_run_of_which_a_step_failed_leaves_it_to_the_step_to_say_why() -> None:
    @dg.op
    def fails() -> None:
        raise dg.Failure("the reason")

    @dg.job
    def job() -> None:
        fails()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert [words for event in result.all_events if (words := said_of(event))] == ["the reason"]


def test_check_that_fails_says_why_in_the_shell() -> None:
    """Three of six checks printed FAILED, and nothing else."""
    assert check_result(False, "the reason").description == "the reason"
    assert (
        check_result(
            False, None, {"near_duplicates": 3, "plot": dg.MetadataValue.md("a picture")}
        ).description
        == "near duplicates: 3"
    )
    assert check_result(False, "").description
    assert check_result(True, None).description
    assert check_result(True, None, {"rows": 3, "sessions": ""}).description == "rows: 3"

    @dg.asset(check_specs=[dg.AssetCheckSpec("all_is_well", asset="made")], dagster_type=dg.Any)
    def made() -> dg.MaterializeResult:
        return dg.MaterializeResult(
            value=1, check_results=[warning("all_is_well", False, None, {"rows": 0})]
        )

    result = dg.materialize([made], instance=dg.DagsterInstance.ephemeral())
    words = [
        said_of(event)
        for event in result.all_events
        if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION
    ]
    assert words == ["check all is well: FAILED: rows: 0"]
