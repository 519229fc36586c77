"""A user's mistake becomes one `dg.Failure` with one sentence, and no retry."""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from agent_pipeline.errors import PipelineError, disk_sentence


@contextmanager
def user_errors() -> Iterator[None]:
    """Let what the user can mend end the run with its sentence; let our own bugs end it with their stack trace."""
    try:
        yield
    except PipelineError as error:
        raise dg.Failure(str(error), allow_retries=False) from error
    except OSError as error:
        if (sentence := disk_sentence(error)) is None:
            raise
        raise dg.Failure(sentence, allow_retries=False) from error
