"""One run of a partition at a time, from the UI, the shell and the night alike."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import dagster as dg

from agent_pipeline.compute.launchers.runs import alive
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import PipelineError, disk_sentence, first_line
from agent_pipeline.keys import parse_key

_HELD: set[str] = set()
"""The runs of this process that hold their partition: a run has several IO managers, and the first one takes the lock."""


class HoldingIOManager(dg.ConfigurableIOManager):
    """Holds the run's partition as long as the run goes on; a second run of the partition waits, and says so.

    The lock is a file lock: the system releases it when a run is killed, without a daemon. IO managers are set up in every run and in
    nothing else (a resource would be set up by sensors too).
    """

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator["HoldingIOManager"]:
        run = context.run
        with ExitStack() as held:
            if run is not None and run.run_id not in _HELD:
                with suppress(PipelineError):  # wrong settings or a wrong key: the first asset says so in its sentence
                    held.enter_context(alive(run.run_id))
                    key = parse_key(partition) if (partition := run.tags.get("dagster/partition")) else None
                    waiting = f"waiting for another run of {key or 'what pools all agents'} to end"
                    try:
                        held.enter_context(load_settings().open_lake().run_of(key, lambda: _log(context, waiting)))
                    except PipelineError:
                        raise
                    except Exception as error:  # nothing else would say why the run failed
                        _log(context, disk_sentence(error) or f"The lake cannot be locked ({first_line(error)}).")
                        raise
                    _HELD.add(run.run_id)
                    held.callback(_HELD.discard, run.run_id)
            yield self


def _log(context: dg.InitResourceContext, text: str) -> None:
    if context.log is not None:
        context.log.info(text)
