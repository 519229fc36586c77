"""A lock that allows one run per partition at a time, from the UI, the shell or the schedule."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import dagster as dg

from agent_pipeline.compute.launchers.runs import alive
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import (
    LakeError,
    PartitionError,
    PipelineError,
    SettingsError,
    disk_sentence,
    first_line,
)
from agent_pipeline.keys import parse_key

_HELD: set[str] = set()
"""Runs of this process that hold the lock of their partition. A run has several IO managers, and
the first IO manager takes the lock.
"""


class HoldingIOManager(dg.ConfigurableIOManager):
    """An IO manager that holds the lock of a run's partition until the run ends.

    A second run of the partition waits, and logs that it waits. The lock is a file lock, which the
    system releases when a run is killed. Dagster sets up IO managers in runs only; it would set up
    a resource in sensors too.
    """

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["HoldingIOManager"]:
        run = context.run
        with ExitStack() as held:
            if run is not None and run.run_id not in _HELD:
                try:
                    _hold(held, context, run)
                except (SettingsError, PartitionError):
                    pass  # the first asset says so in its sentence
                except PipelineError:
                    raise
                except Exception as error:
                    sentence = disk_sentence(error) or (
                        f"The lake cannot be locked ({first_line(error)}): start the run "
                        "again when the lake can be written to."
                    )
                    raise LakeError(sentence) from error
            yield self


def _hold(held: ExitStack, context: dg.InitResourceContext, run: dg.DagsterRun) -> None:
    """Take the locks of a run's process and of its partition, for as long as `held` is open."""
    held.enter_context(alive(run.run_id))
    key = parse_key(partition) if (partition := run.tags.get("dagster/partition")) else None
    waiting = f"waiting for another run of {key or 'the assets of all agents'} to end"
    lake = load_settings().open_lake()
    lake.prepare()
    held.enter_context(lake.run_of(key, lambda: _log(context, waiting)))
    _HELD.add(run.run_id)
    held.callback(_HELD.discard, run.run_id)


def _log(context: dg.InitResourceContext, text: str) -> None:
    if context.log is not None:
        context.log.info(text)
