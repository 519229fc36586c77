"""The permanent split: `train`, `select` and `test` belong to the task, forever.

A task's place is a hash of its key alone. Adding sessions, re-running, or moving the store never moves a task, so tonight's test task
was in no earlier night's training set; all trials of a task are on one side.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple

from agent_pipeline.errors import SettingsError

Split = Literal["train", "select", "test"]
SPLITS: tuple[Split, ...] = ("train", "select", "test")


class SplitSizes(NamedTuple):
    """Expected shares of the tasks; the rest, `1 - test - select`, trains."""

    test: float = 0.2
    select: float = 0.1

    def checked(self) -> "SplitSizes":
        """Itself.

        Raises:
            SettingsError: the shares are no shares, or leave nothing to train on.
        """
        if not (self.test >= 0 and self.select >= 0 and sum(self) < 1):  # said so that NaN fails too
            raise SettingsError(f"The split sizes test={self.test} and select={self.select} must be shares whose sum is below 1.")
        return self


def split_of(task_key: str, sizes: SplitSizes) -> Split:
    """The side of a task: uniform in [0, 1) by sha256 of its key; the lowest part tests, the next selects, the rest trains."""
    place = int.from_bytes(hashlib.sha256(task_key.encode("utf-8")).digest()[:8], "big") / 2**64
    if place < sizes.test:
        return "test"
    return "select" if place < sizes.test + sizes.select else "train"


def overlaps(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    """What stands on more than one side, by kind: session ids, task keys, and contents (by hash). Empty lists are the proof of none."""
    sides: dict[str, dict[str, set[str]]] = {kind: defaultdict(set) for kind in ("session_id", "task_key", "content_sha256")}
    for row in rows:
        for kind, seen in sides.items():
            seen[row[kind]].add(row["split"])
    return {kind: sorted(value for value, splits in seen.items() if len(splits) > 1) for kind, seen in sides.items()}
