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
