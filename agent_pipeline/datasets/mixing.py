"""Several tasks' data in exact proportions (AgentTuning, Zeng et al. 2023).

How many of each task is decided by largest remainders over exact fractions. What a task has too little of goes to the others, by their
weights, and is reported. No sample is given twice: equal contents, in one task or in two, are taken once and counted. Which samples, and in
which order, follows from their contents and the seed alone, not from the order in which they are given.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.sessions.session import hash_json

Strategy = Literal["weighted", "balanced", "proportional"]
_Key = TypeVar("_Key", str, int)


class TaskSample(msgspec.Struct, frozen=True):
    """One sample of a task; `source` says where it is from."""

    task_type: str
    data: dict[str, Any]
    source: str = ""


@dataclass(frozen=True)
class MixerConfig:
    """How tasks are mixed.

    `weighted`: by `task_weights`, which need no sum of 1. `balanced`: as many of each. `proportional`: by the tasks' own sizes.
    With weights, these two are of the tasks whose weight is above 0.

    `total_samples`: how many in all; without it, as many as there can be with every task in its exact share (a task without samples aside).

    Raises:
        SettingsError: a weight is negative or not finite, none is above 0, or there is no such strategy.
    """

    task_weights: Mapping[str, float] = field(default_factory=dict)
    strategy: Strategy = "weighted"
    shuffle: bool = True
    seed: int = 42
    total_samples: int | None = None

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            raise SettingsError(
                f"There is no mixing strategy {self.strategy!r}: choose one of {', '.join(get_args(Strategy))}."
            )
        if bad := sorted(
            task for task, weight in self.task_weights.items() if not 0 <= weight < float("inf")
        ):
            raise SettingsError(
                f"The weight of the task {bad[0]!r} is {self.task_weights[bad[0]]}: give a number of 0 or more."
            )
        if not any(self.task_weights.values()) and (
            self.task_weights or self.strategy == "weighted"
        ):
            raise SettingsError(
                "No task has a weight above 0: give task_weights, as {'tool_use': 0.6, 'planning': 0.4}."
            )
        if self.total_samples is not None and self.total_samples < 1:
            raise SettingsError(
                f"The mixer's total_samples is {self.total_samples}: give 1 or more, or none for as many as there can be."
            )


class TaskShare(NamedTuple):
    """What became of one task: its exact share, how many samples it has and how many of those were equal to others, how many its share asks
    for, how many it has too few, and how many were taken."""

    share: float
    available: int
    duplicates: int
    asked: int
    shortfall: int
    taken: int


class MultiTaskMixer:
    """Mixes data sets of tasks. `report`, of the last `mix`, has a `TaskShare` by task."""

    def __init__(self, config: MixerConfig) -> None:
        self.config = config
        self.report: dict[str, TaskShare] = {}

    def mix(self, task_datasets: Mapping[str, Sequence[Any]]) -> list[TaskSample]:
        """Samples of all tasks: in a drawn order, or (without `shuffle`) task after task.

        A data set holds `TaskSample`s or rows (their `source`, else their `session_id`, is kept as the source).

        Raises:
            SettingsError: a data set has no weight, or a weight no data set.
            DataError: there is nothing to mix.
        """
        pools, duplicates = _distinct(task_datasets)
        sizes = {task: len(pool) for task, pool in pools.items()}
        shares = self._shares(sizes)
        total = self.config.total_samples
        if total is None:
            whole = sum(share for task, share in shares.items() if sizes[task])
            total = min(
                (
                    int(sizes[task] * whole / share)
                    for task, share in shares.items()
                    if share and sizes[task]
                ),
                default=0,
            )
        asked, taken = largest_remainder(total, shares), _filled(total, sizes, shares)
        if not sum(taken.values()):
            raise DataError(
                f"There is nothing to mix: {', '.join(f'{task} has {size} samples' for task, size in sorted(sizes.items()))}."
            )
        self.report = {
            task: TaskShare(
                float(shares[task]),
                sizes[task],
                duplicates[task],
                asked[task],
                max(asked[task] - sizes[task], 0),
                taken[task],
            )
            for task in sorted(sizes)
        }
        chosen = [
            (key, sample)
            for task in sorted(pools)
            for key, sample in self._drawn(pools[task], taken[task])
        ]
        if self.config.shuffle:
            chosen.sort(key=lambda pair: hash_json([self.config.seed, "order", pair[0]]))
        return [sample for _, sample in chosen]

    def get_task_distribution(self, samples: Sequence[TaskSample]) -> dict[str, float]:
        """The share of each task among samples, by name; empty where there are none."""
        counts = Counter(sample.task_type for sample in samples)
        return {task: counts[task] / len(samples) for task in sorted(counts)}

    def _shares(self, sizes: Mapping[str, int]) -> dict[str, Fraction]:
        """Each task's exact share, by the strategy."""
        weights = self.config.task_weights
        if weights and (unknown := sorted(set(weights) ^ set(sizes))):
            what = (
                "a weight but no data set"
                if unknown[0] in weights
                else "a data set but no weight (0 leaves it out)"
            )
            raise SettingsError(
                f"The task {unknown[0]!r} has {what}: name the same tasks in task_weights and in the data."
            )
        # As it is written: 0.2 is a fifth, not the binary number next to it.
        given = {task: Fraction(str(weights[task])) if weights else Fraction(1) for task in sizes}
        if self.config.strategy != "weighted":
            proportional = self.config.strategy == "proportional"
            given = {
                task: Fraction(sizes[task] if proportional else 1) if weight else Fraction(0)
                for task, weight in given.items()
            }
        whole = sum(given.values())
        return {task: weight / whole if whole else Fraction(0) for task, weight in given.items()}

    def _drawn(self, pool: Mapping[str, TaskSample], count: int) -> list[tuple[str, TaskSample]]:
        """Samples of one task: those of the lowest places, which are hashes of seed and content."""
        places = sorted(pool, key=lambda key: hash_json([self.config.seed, key]))
        return [(key, pool[key]) for key in sorted(places[:count])]


def largest_remainder(total: int, shares: Mapping[_Key, Fraction]) -> dict[_Key, int]:
    """Whole numbers next to `total` × share whose sum is `total` (0 where no share is).

    The largest remainders are rounded up; of equal ones the first by name or number.
    """
    exact = {task: total * share for task, share in shares.items()}
    counts = {task: int(number) for task, number in exact.items()}
    left = (total if any(shares.values()) else 0) - sum(counts.values())
    for task in sorted(counts, key=lambda task: (counts[task] - exact[task], task))[:left]:
        counts[task] += 1
    return counts


def _filled(total: int, sizes: Mapping[str, int], shares: Mapping[str, Fraction]) -> dict[str, int]:
    """How many each task gives: of those whose share asks for more than they have all, of the rest their shares of what is left."""
    full: set[str] = set()
    while True:
        others = {task: share for task, share in shares.items() if share and task not in full}
        left, whole = total - sum(sizes[task] for task in full), sum(others.values())
        over = {task for task, share in others.items() if left * share > sizes[task] * whole}
        if not over:
            break
        full |= over
    given = {task: sizes[task] if task in full else 0 for task in sizes}
    return given | largest_remainder(left, {task: share / whole for task, share in others.items()})


def _distinct(
    task_datasets: Mapping[str, Sequence[Any]],
) -> tuple[dict[str, dict[str, TaskSample]], Counter[str]]:
    """Each task's samples by the hash of their content, each content once, in the first task by name; and how many were left out."""
    pools: dict[str, dict[str, TaskSample]] = {}
    duplicates: Counter[str] = Counter()
    seen: set[str] = set()
    for task in sorted(task_datasets):
        pools[task] = {}
        # Among equal contents the first by hash is taken, so that the order in which they are given does not matter.
        for sample in sorted(
            _samples(task, task_datasets[task]),
            key=lambda sample: hash_json(msgspec.to_builtins(sample)),
        ):
            key = _content(sample.data)
            if key in seen:
                duplicates[task] += 1
                continue
            seen.add(key)
            pools[task][key] = sample
    return pools, duplicates


def _samples(task: str, dataset: Sequence[Any]) -> list[TaskSample]:
    return [
        TaskSample(task, each.data, each.source)
        if isinstance(each, TaskSample)
        else TaskSample(task, dict(each), str(each.get("source") or each.get("session_id") or ""))
        for each in dataset
    ]


def _content(data: Mapping[str, Any]) -> str:
    """What makes a sample the same sample: the conversation of a row that has one, else all of it."""
    return hash_json([data["messages"], data.get("tools") or []] if "messages" in data else data)
