"""Mixing the data of several tasks in exact proportions (AgentTuning, Zeng et al. 2023).

The number of samples per task is computed by largest remainders over exact fractions. If a task has
too few samples, the other tasks provide more, by their weights, and the shortfall is reported. No
sample is taken twice: equal contents, within one task or in two tasks, are taken once and counted.
Only the contents and the seed determine which samples are taken and in which order; the order of
the input does not matter. Tables of the lake belong to `multi_task`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import msgspec

from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.sessions.session import hash_json

MixingStrategy = Literal["weighted", "balanced", "proportional"]

_Key = TypeVar("_Key", str, int)


class TaskSample(msgspec.Struct, frozen=True):
    """A training sample of a task.

    `source` names the origin of the sample.
    """

    task_type: str
    data: dict[str, Any]
    source: str = ""


@dataclass(frozen=True)
class MixerConfig:
    """Rules for mixing the data of several tasks.

    Attributes:
        task_weights: The weight of each task. The sum does not matter. A task with weight 0
            provides no samples.
        strategy: `weighted`: by `task_weights`. `balanced`: the same number of samples for each
            task. `proportional`: by the tasks' own sizes.
        shuffle: Whether samples are in a random order. Otherwise, they are ordered by task.
        seed: The seed of the choice and of the order.
        total_samples: Number of samples to take. `None` takes as many as possible with every task
            in its exact share, except for tasks without samples.

    Raises:
        SettingsError: A weight is negative or not finite, no weight is above 0, or there is no
            such strategy.
    """

    task_weights: Mapping[str, float] = field(default_factory=dict)
    strategy: MixingStrategy = "weighted"
    shuffle: bool = True
    seed: int = 42
    total_samples: int | None = None

    def __post_init__(self) -> None:
        strategies = get_args(MixingStrategy)
        if self.strategy not in strategies:
            raise SettingsError(
                f"There is no mixing strategy {self.strategy!r}: choose one of "
                f"{', '.join(strategies)}."
            )
        for task, weight in sorted(self.task_weights.items()):
            if not 0 <= weight < float("inf"):
                raise SettingsError(
                    f"The weight of the task {task!r} is {weight}: set it to 0 or more."
                )
        needs_weights = bool(self.task_weights) or self.strategy == "weighted"
        if needs_weights and not any(self.task_weights.values()):
            raise SettingsError(
                "No task has a weight above 0: set `task_weights`, for example {'tool_use': 0.6, "
                "'planning': 0.4}."
            )
        if self.total_samples is not None and self.total_samples < 1:
            raise SettingsError(
                f"The mixer's `total_samples` is {self.total_samples}: set it to 1 or more, or to "
                "None to use as many samples as possible."
            )


class TaskShare(NamedTuple):
    """The result of mixing for one task.

    Attributes:
        share: The task's exact share.
        available: Number of distinct samples of the task.
        duplicates: Number of samples that were left out because they equal other samples.
        asked: Number of samples that the share requires.
        shortfall: Number of samples that the task lacks.
        taken: Number of samples that were taken.
    """

    share: float
    available: int
    duplicates: int
    asked: int
    shortfall: int
    taken: int


class MultiTaskMixer:
    """A mixer of datasets of several tasks.

    Attributes:
        config: The rules.
        report: The result of the last `mix`, by task.
    """

    def __init__(self, config: MixerConfig) -> None:
        self.config = config
        self.report: dict[str, TaskShare] = {}

    def mix(self, task_datasets: Mapping[str, Sequence[object]]) -> list[TaskSample]:
        """Mix samples of all tasks in their exact shares.

        The samples are in a random order, or ordered by task if `shuffle` is false.

        Args:
            task_datasets: The samples of each task: `TaskSample`s, or rows. The source of a row is
                its `source`, or its `session_id` if there is no `source`.

        Raises:
            SettingsError: A dataset has no weight, or a weight has no dataset.
            DataError: There is nothing to mix.
        """
        pools, duplicates = _index_distinct(task_datasets)
        sizes = {task: len(pool) for task, pool in pools.items()}
        shares = self._compute_shares(sizes)
        total = self.config.total_samples
        if total is None:
            total = _find_largest_total(sizes, shares)
        rows_asked = round_by_largest_remainder(total, shares)
        taken = _share_out(total, sizes, shares)
        if not sum(taken.values()):
            described = ", ".join(
                f"{task} has {size} samples" for task, size in sorted(sizes.items())
            )
            raise DataError(f"There is nothing to mix: {described}.")
        self.report = {
            task: TaskShare(
                share=float(shares[task]),
                available=sizes[task],
                duplicates=duplicates[task],
                asked=rows_asked[task],
                shortfall=max(rows_asked[task] - sizes[task], 0),
                taken=taken[task],
            )
            for task in sorted(sizes)
        }
        chosen: list[tuple[str, TaskSample]] = []
        for task in sorted(pools):
            chosen += self._draw(pools[task], taken[task])
        if self.config.shuffle:
            chosen.sort(key=lambda hashed: hash_json([self.config.seed, "order", hashed[0]]))
        return [sample for _, sample in chosen]

    def get_task_distribution(self, samples: Sequence[TaskSample]) -> dict[str, float]:
        """Return the share that each task has in a list of samples, by task name.

        The result is empty if there are no samples.
        """
        counts = Counter(sample.task_type for sample in samples)
        return {task: counts[task] / len(samples) for task in sorted(counts)}

    def _compute_shares(self, sizes: Mapping[str, int]) -> dict[str, Fraction]:
        """Return the exact share of each task according to the mixing strategy."""
        self._check_tasks(sizes)
        weights = {task: self._weigh(task, size) for task, size in sizes.items()}
        sum_of_weights = sum(weights.values())
        if not sum_of_weights:
            return dict.fromkeys(weights, Fraction(0))
        return {task: weight / sum_of_weights for task, weight in weights.items()}

    def _check_tasks(self, sizes: Mapping[str, int]) -> None:
        """Check that the task weights and the task data name the same tasks."""
        weights = self.config.task_weights
        if not weights:
            return
        for task in sorted(set(weights) ^ set(sizes)):
            if task in weights:
                problem = "a weight but no data set"
            else:
                problem = "a data set but no weight (0 leaves it out)"
            raise SettingsError(
                f"The task {task!r} has {problem}: use the same tasks in `task_weights` and in "
                "the data."
            )

    def _weigh(self, task: str, size: int) -> Fraction:
        """Return the weight of a task according to the mixing strategy."""
        weights = self.config.task_weights
        # The text of the weight is exact: 0.2 means a fifth, not the nearest binary number.
        weight = Fraction(str(weights[task])) if weights else Fraction(1)
        if self.config.strategy == "weighted" or not weight:
            return weight
        return Fraction(size if self.config.strategy == "proportional" else 1)

    def _draw(self, pool: Mapping[str, TaskSample], count: int) -> list[tuple[str, TaskSample]]:
        """Return samples of one task with the hashes of their contents, ordered by hash.

        The samples with the lowest hashes of seed and content are taken.
        """
        hashes = sorted(pool, key=lambda content_hash: hash_json([self.config.seed, content_hash]))
        return [(content_hash, pool[content_hash]) for content_hash in sorted(hashes[:count])]


def _find_largest_total(sizes: Mapping[str, int], shares: Mapping[str, Fraction]) -> int:
    """Return the largest total for which every task has enough samples for its share."""
    used_shares = {task: share for task, share in shares.items() if share and sizes[task]}
    sum_of_shares = sum(used_shares.values())
    totals = [int(sizes[task] * sum_of_shares / share) for task, share in used_shares.items()]
    return min(totals, default=0)


def round_by_largest_remainder(total: int, shares: Mapping[_Key, Fraction]) -> dict[_Key, int]:
    """Round the products `total` × share to whole numbers that add up to `total`.

    The largest remainders are rounded up. Among equal remainders, the first by name or number is
    rounded up. The sum is 0 if every share is 0.
    """
    exact = {task: total * share for task, share in shares.items()}
    counts = {task: int(amount) for task, amount in exact.items()}
    missing = (total if any(shares.values()) else 0) - sum(counts.values())
    by_remainder = sorted(counts, key=lambda task: (counts[task] - exact[task], task))
    for task in by_remainder[:missing]:
        counts[task] += 1
    return counts


def _share_out(
    total: int, sizes: Mapping[str, int], shares: Mapping[str, Fraction]
) -> dict[str, int]:
    """Return the number of samples that each task contributes.

    A task that has fewer samples than its share requires provides all of them, and the other tasks
    share the rest.
    """
    exhausted: set[str] = set()
    while True:
        others = {task: share for task, share in shares.items() if share and task not in exhausted}
        remaining = total - sum(sizes[task] for task in exhausted)
        sum_of_shares = sum(others.values())
        newly_exhausted = {
            task
            for task, share in others.items()
            if remaining * share > sizes[task] * sum_of_shares
        }
        if not newly_exhausted:
            break
        exhausted |= newly_exhausted
    counts = {task: sizes[task] if task in exhausted else 0 for task in sizes}
    other_shares = {task: share / sum_of_shares for task, share in others.items()}
    return counts | round_by_largest_remainder(remaining, other_shares)


def _index_distinct(
    task_datasets: Mapping[str, Sequence[object]],
) -> tuple[dict[str, dict[str, TaskSample]], Counter[str]]:
    """Return the distinct samples of each task by content hash, and the number of duplicates.

    Each content is taken once, for the first task by name.
    """
    pools: dict[str, dict[str, TaskSample]] = {}
    duplicates: Counter[str] = Counter()
    seen_hashes: set[str] = set()
    for task in sorted(task_datasets):
        pools[task] = {}
        samples = _make_samples(task, task_datasets[task])
        # Among equal contents, the first by hash is taken, so that the order of the input does not
        # matter.
        samples.sort(key=lambda sample: hash_json(msgspec.to_builtins(sample)))
        for sample in samples:
            content_hash = _hash_content(sample.data)
            if content_hash in seen_hashes:
                duplicates[task] += 1
                continue
            seen_hashes.add(content_hash)
            pools[task][content_hash] = sample
    return pools, duplicates


def _make_samples(task: str, dataset: Sequence[Any]) -> list[TaskSample]:
    samples = []
    for entry in dataset:
        if isinstance(entry, TaskSample):
            samples.append(TaskSample(task, entry.data, entry.source))
        else:
            source = str(entry.get("source") or entry.get("session_id") or "")
            samples.append(TaskSample(task, dict(entry), source))
    return samples


def _hash_content(data: Mapping[str, object]) -> str:
    """Return a hash of a sample's conversation, or of all its data if it has no conversation."""
    if "messages" in data:
        return hash_json([data["messages"], data.get("tools") or []])
    return hash_json(data)
