"""The examination of the agents of large stores in several processes.

What is examined belongs to `examination`.
"""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from multiprocessing import get_context
from types import TracebackType

from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import PipelineError
from agent_pipeline.judging.free_opinions import UNKNOWN_SCALES, ScoreScales
from agent_pipeline.judging.labels import Labels
from agent_pipeline.keys import PartitionKey
from agent_pipeline.readiness.examination import (
    Examination,
    ExaminationRules,
    Shard,
    examine,
    merge_examinations,
)
from agent_pipeline.readiness.machine import count_cores
from agent_pipeline.sources.base import TraceSource

MAX_PROCESSES = 8
MIN_AGENTS_PER_PROCESS = 4
"""Number of agents per process from which the sessions of an agent are not divided."""


class ExaminationPool:
    """One process per core that examine agents, while the caller reports on earlier agents.

    Each process reads the index of the store once. If there are few agents, every process examines
    its part of the sessions of each agent.

    Args:
        store: The setting `store`. Each process loads the other settings itself.
        agents: Number of agents to examine.
    """

    def __init__(self, store: str | list[str], agents: int) -> None:
        processes = min(count_cores(), MAX_PROCESSES)
        self._store = store if isinstance(store, str) else tuple(store)
        self._shards = processes if agents < MIN_AGENTS_PER_PROCESS * processes else 1
        # A forked process could inherit a lock that a thread of a library holds.
        self._pool = ProcessPoolExecutor(processes, get_context("spawn"))

    def __enter__(self) -> "ExaminationPool":
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start(
        self, key: PartitionKey, labels: Labels, scales: ScoreScales = UNKNOWN_SCALES
    ) -> Callable[[], Examination]:
        """Start the examination of an agent, and return a function that waits for its result.

        The function raises a `PipelineError` if the sessions cannot be examined.

        Args:
            key: The partition.
            labels: People's labels.
            scales: The scales of the agent's scores.
        """
        shards = [Shard(index, self._shards) for index in range(self._shards)]
        futures = [
            self._pool.submit(_examine_shard, self._store, key, labels, scales, shard)
            for shard in shards
        ]

        def collect() -> Examination:
            parts = []
            for future in futures:
                part = future.result()
                if isinstance(part, str):
                    raise PipelineError(part)
                parts.append(part)
            return merge_examinations(parts)

        return collect


@cache
def _open_store(store: str | tuple[str, ...]) -> tuple[Settings, TraceSource]:
    """Return the settings and the store. A process opens them once."""
    settings = load_settings(store=store if isinstance(store, str) else list(store))
    return settings, settings.open_store()


def _examine_shard(
    store: str | tuple[str, ...],
    key: PartitionKey,
    labels: Labels,
    scales: ScoreScales,
    shard: Shard,
) -> Examination | str:
    """Return the examination of a part of an agent's sessions, or the sentence of an error.

    Not every error can be sent to another process.
    """
    try:
        settings, source = _open_store(store)
        rules = ExaminationRules.load(settings, settings.open_lake(), key, labels)
        rules = replace(rules, scales=scales)
        source.notes.clear()
        return examine(source, key, rules, labels, shard=shard)
    except PipelineError as error:
        return str(error)
