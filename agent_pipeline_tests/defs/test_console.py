import subprocess
import sys

import dagster as dg

from agent_pipeline.defs.console import said_of

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


def test_who_stops_a_run_reads_that_it_was_interrupted_and_no_trace() -> None:
    @dg.op
    def waits() -> None:
        raise dg.DagsterExecutionInterruptedError

    @dg.job
    def job() -> None:
        waits()

    with dg.DagsterInstance.ephemeral() as instance:
        result = job.execute_in_process(instance=instance, raise_on_error=False)
    assert [said_of(event) for event in result.all_events if event.is_step_failure] == ["interrupted"]


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
    [words] = [words for event in result.all_events if event.is_failure and (words := said_of(event))]
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
