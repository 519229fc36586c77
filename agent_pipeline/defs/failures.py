"""A user's mistake becomes one `dg.Failure` with one sentence; only what may pass is tried again."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from agent_pipeline.errors import PipelineError, disk_sentence, is_passing

RETRIES, RETRY_SECONDS = 2, 60.0


@contextmanager
def user_errors() -> Iterator[None]:
    """Let what the user can fix end the run with its sentence; let our own bugs end it with their stack trace.

    A step whose error may pass is tried again, and its last try ends with the sentence.
    """
    try:
        yield
    except PipelineError as error:
        if is_passing(error) and _tries() < RETRIES:
            raise dg.RetryRequested(RETRIES, RETRY_SECONDS) from error
        raise dg.Failure(str(error), allow_retries=False) from error
    except OSError as error:
        if (sentence := disk_sentence(error)) is None:
            raise
        raise dg.Failure(sentence, allow_retries=False) from error


def _tries() -> int:
    """How often the step that is running was tried before; too often where none is."""
    try:
        return dg.AssetExecutionContext.get().op_execution_context.retry_number
    except dg.DagsterInvariantViolationError:
        return RETRIES
