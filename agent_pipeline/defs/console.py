"""The console logger for runs from the shell, which prints one short line per important event."""

import io
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import IO

import dagster as dg
from dagster_shared.error import SerializableErrorInfo

from agent_pipeline.errors import PipelineError

INTERRUPTED = "interrupted"


def said_of(event: dg.DagsterEvent) -> str | None:
    """Return a short text about an event that matters to a user, or None for any other event."""
    if event.is_step_failure:
        data = event.step_failure_data
        if data.user_failure_data and data.user_failure_data.description:
            return data.user_failure_data.description
        if is_interruption(event):
            return INTERRUPTED
        if data.error and data.error.cls_name == "DagsterAssetCheckFailedError":
            return None  # the line of the check says why
        return data.error_display_string.strip() if data.error else "failed"
    if (
        event.is_job_failure and not event.job_failure_data.first_step_failure_event
    ):  # no step says why: Dagster's storage failed, say
        error = event.job_failure_data.error
        if is_interruption(event):
            return INTERRUPTED
        return _sentence_in(error) or error.to_string().strip() if error else event.message
    if event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
        metadata = event.materialization.metadata
        values = {name: value.value for name, value in metadata.items()}
        rows, size = values.get("dagster/row_count"), values.get("size_bytes")
        what = (
            f"{rows:,} rows"
            if isinstance(rows, int)
            else "reused, nothing has changed"
            if values.get("reused")
            else "done"
        )
        return f"{what}, {_bytes(size)}" if isinstance(size, int) else what
    if event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
        check = event.asset_check_evaluation_data
        why = f": {check.description}" if check.description and not check.passed else ""
        return (
            f"check {check.check_name.replace('_', ' ')}: "
            f"{'passed' if check.passed else 'FAILED'}{why}"
        )
    return None


def is_interruption(event: dg.DagsterEvent) -> bool:
    """Return whether a step or a run failed because a person or a service manager stopped it."""
    if event.is_step_failure:
        error = event.step_failure_data.error
    elif event.is_job_failure:
        error = event.job_failure_data.error
    else:
        return False
    return bool(error and error.cls_name == dg.DagsterExecutionInterruptedError.__name__)


def _sentence_in(error: SerializableErrorInfo) -> str | None:
    """Return the first sentence for users in an error or its causes, or None."""
    named = {cls.__name__ for cls in _subclasses(PipelineError)}
    cause: SerializableErrorInfo | None = error
    while cause:
        if cause.cls_name in named:
            return cause.message.strip().partition(": ")[2]
        cause = cause.cause
    return None


def _subclasses(cls: type[Exception]) -> Iterator[type[Exception]]:
    yield cls
    for subclass in cls.__subclasses__():
        yield from _subclasses(subclass)


class _Line(logging.Formatter):
    """A formatter that writes lines such as `12:04:31 sft_adapter training: 12/40, 3m10s left`."""

    def format(self, record: logging.LogRecord) -> str:
        meta = getattr(record, "dagster_meta", None) or {}
        event = meta.get("dagster_event")
        step = meta.get("step_key") or ""
        if event is not None and event.event_type == dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            step = event.asset_check_evaluation_data.asset_key.path[-1]
        elif event is not None and event.event_type == dg.DagsterEventType.ASSET_MATERIALIZATION:
            # One step may materialize several assets.
            step = event.materialization.asset_key.path[-1]
        message = said_of(event) if event else meta.get("orig_message") or record.getMessage()
        level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        return f"{time.strftime('%H:%M:%S')}  {step:<19} {level}{message}"


class _WorthALine(logging.Filter):
    """A filter for the messages of assets and those events of Dagster that matter to a user."""

    def filter(self, record: logging.LogRecord) -> bool:
        meta = getattr(record, "dagster_meta", None) or {}
        event = meta.get("dagster_event")
        if event is not None:
            return said_of(event) is not None
        # A step that failed has said why; that those after it did not run follows from it.
        message = meta.get("orig_message") or record.getMessage()
        return record.levelno >= logging.INFO and not message.startswith(
            ("[pipes]", "Dependencies for step")
        )


@dg.logger(config_schema={}, description="Short lines for a terminal.")
def console(context: dg.InitLoggerContext) -> logging.Logger:
    """Return a logger that writes one-line messages to standard error."""
    logger = logging.Logger("agent_pipeline.console", level=logging.DEBUG)
    handler = logging.StreamHandler(_screen())
    handler.setFormatter(_Line())
    handler.addFilter(_WorthALine())
    logger.addHandler(handler)
    return logger


def _screen() -> IO[str]:
    """Return the original standard error, which Dagster does not capture during a step.

    A process of Dagster's copies the captured output to the screen. It is ended when the run ends,
    and then loses the last lines, which say why the run failed. A notebook's stream has no file
    that Dagster captures, and is returned as it is.
    """
    stream = sys.stderr
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    try:
        descriptor = os.dup(stream.fileno())
    except io.UnsupportedOperation:  # a text in memory
        return stream
    return os.fdopen(descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace")


def _bytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"
