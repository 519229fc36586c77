"""A user's mistake becomes one `dg.Failure` with one sentence; only what may pass is tried again."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from agent_pipeline.errors import PipelineError, disk_sentence, first_line, is_retryable
from agent_pipeline.redaction.exceptions import redact_exception, redact_sentence

RETRIES, RETRY_SECONDS = 2, 60.0


@contextmanager
def user_errors() -> Iterator[None]:
    """Let what the user can fix, and a lost connection, end the run with a sentence; let our own bugs end it with their stack trace.

    What is private in the text of an error becomes a pseudonym, since Dagster keeps the text. A step whose error may pass is tried again, and its last try ends with the sentence.
    """
    try:
        yield
    except Exception as error:
        sentence = str(error) if isinstance(error, PipelineError) else disk_sentence(error)
        retryable, connection = is_retryable(error), first_line(error)
        public = redact_exception(error)
        if retryable:
            if _tries() < RETRIES:
                raise dg.RetryRequested(RETRIES, RETRY_SECONDS) from public
            sentence = (
                sentence
                or f"A connection was lost ({connection}): repeat it once the store and the lake can be reached."
            )
        if sentence is None:
            if public is error:
                raise
            raise public from public.__cause__
        raise dg.Failure(redact_sentence(sentence), allow_retries=False) from public


def _tries() -> int:
    """How often the step that is running was tried before; too often where none is."""
    try:
        return dg.AssetExecutionContext.get().op_execution_context.retry_number
    except dg.DagsterInvariantViolationError:
        return RETRIES
