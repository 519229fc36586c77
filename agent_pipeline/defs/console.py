"""The console logger of all runs: one short line an event that a person waits for, instead of Dagster's full records."""

import logging
import sys
import time

import dagster as dg


class _Line(logging.Formatter):
    """`12:04:31  sft_adapter         training: 12/40, 3m10s left`."""

    def format(self, record: logging.LogRecord) -> str:
        meta = getattr(record, "dagster_meta", None) or {}
        step = meta.get("step_key") or ""
        event = meta.get("dagster_event")
        message = said_of(event) if event else meta.get("orig_message") or record.getMessage()
        level = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        return f"{time.strftime('%H:%M:%S')}  {step:<20}{level}{message}"


def said_of(event: dg.DagsterEvent) -> str:
    """A few words for an event: a failure's own sentence where it has one."""
    if event.event_type_value == "STEP_START":
        return "started"
    if event.is_step_failure:
        data = event.step_failure_data
        if data.user_failure_data and data.user_failure_data.description:
            return data.user_failure_data.description
        return str(data.error_display_string).strip() if data.error else "failed"
    return event.message or event.event_type_value


class _WorthALine(logging.Filter):
    """Our own messages, and of Dagster's only that a step began or failed."""

    shown = frozenset({"STEP_START", "STEP_FAILURE"})

    def filter(self, record: logging.LogRecord) -> bool:
        event = (getattr(record, "dagster_meta", None) or {}).get("dagster_event")
        if event is None:
            return not record.getMessage().startswith("[pipes]")
        return event.event_type_value in self.shown


@dg.logger(config_schema={}, description="Short lines for a terminal.")
def console(context: dg.InitLoggerContext) -> logging.Logger:
    """A logger that writes what a person waits for to standard error."""
    logger = logging.Logger("agent_pipeline.console", level=logging.INFO)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    handler.addFilter(_WorthALine())
    logger.addHandler(handler)
    return logger
