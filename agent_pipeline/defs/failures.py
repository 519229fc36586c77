"""Conversion of an asset's errors into `dg.Failure` with one sentence, and rules for retries."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import PipelineError, disk_sentence, first_line, is_retryable
from agent_pipeline.redaction import RedactionOptions
from agent_pipeline.redaction.exceptions import redact_exception, redact_sentence

RETRIES, RETRY_SECONDS = 2, 60.0


@contextmanager
def user_errors() -> Iterator[None]:
    """End a run with one sentence if the user can fix the error. Let bugs end with a stack trace.

    Dagster keeps the text of an error, so what the settings `redaction` call private in the text
    becomes pseudonyms. A step whose error may pass is tried again.
    """
    try:
        yield
    except Exception as error:
        sentence = str(error) if isinstance(error, PipelineError) else disk_sentence(error)
        retryable, connection = is_retryable(error), first_line(error)
        options = _redaction_options()
        public = redact_exception(error, options)
        if retryable:
            if _tries() < RETRIES:
                raise dg.RetryRequested(RETRIES, RETRY_SECONDS) from public
            sentence = sentence or (
                f"A connection was lost ({connection}): start the run again when the store "
                "and the lake can be reached."
            )
        if sentence is None:
            if public is error:
                raise
            raise public from public.__cause__
        raise dg.Failure(redact_sentence(sentence, options), allow_retries=False) from public


def _redaction_options() -> RedactionOptions:
    """Return the settings' redaction options, or the defaults if the settings cannot be loaded."""
    try:
        return load_settings().redaction_options
    except PipelineError:
        return RedactionOptions()


def _tries() -> int:
    """Return how often the running step was tried before, or a large number outside of a step."""
    try:
        return dg.AssetExecutionContext.get().op_execution_context.retry_number
    except dg.DagsterInvariantViolationError:
        return RETRIES
