"""Leaks: held-out sessions that are trials of a task that was trained.

A task that the source or a setting names is in one split. If a task has no name, it is identified
by the exact words of its request, so two trials of the same task may be in two splits. Their ids or
their requests can reveal this. Near-duplicates of whole conversations belong to `duplicates`.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_pipeline.datasets.splits import (
    MIN_REQUEST_SIMILARITY,
    SPLITS,
    find_first_request,
    is_unnamed_task,
    join_request,
)
from agent_pipeline.errors import DataError
from agent_pipeline.ingestion.task_patterns import PatternProposal, propose_pattern
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.duplicates import find_near_across_splits
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.storage.lake import Lake

_COLUMNS = ("session_id", "task_key", "split")


@dataclass(frozen=True)
class Leak:
    """A held-out session, and a session of an earlier split that is a trial of the same task.

    The splits are ordered train, select, test.

    Attributes:
        session_id: The held-out session.
        split: Its split.
        other_session_id: The other session.
        other_split: The split of the other session.
    """

    session_id: str
    split: str
    other_session_id: str
    other_split: str


@dataclass(frozen=True)
class Leaks:
    """The leaks that were found for an agent.

    Attributes:
        leaks: The leaks, at most one per held-out session.
        held_out: The number of held-out sessions.
        proposal: A `task_pattern` that would remove the leaks, or None.
    """

    leaks: list[Leak]
    held_out: int
    proposal: PatternProposal | None

    def describe(self, key: PartitionKey) -> str:
        """Describe the problem with an agent's splits, and explain how to fix it."""
        first = self.leaks[0]
        if self.proposal:
            remedy = (
                "put this into pipeline.toml, so that all trials of a task are in one "
                f"split:\n{self.proposal.lines(str(key))}"
            )
        else:
            remedy = "add the name of the task to the data, or set `task_pattern` or `task_field`"
        return (
            f"{len(self.leaks)} of {self.held_out} held-out sessions of {key} are trials of a task "
            f"that has trials in another split, such as {first.session_id} ({first.split}) and "
            f"{first.other_session_id} ({first.other_split}): {remedy}"
        )


class LeakError(DataError):
    """Raised if held-out sessions are trials of trained tasks.

    Attributes:
        key: The agent.
        leaks: The leaks.
    """

    def __init__(self, key: PartitionKey, leaks: Leaks) -> None:
        self.key, self.leaks = key, leaks
        super().__init__(
            f"{leaks.describe(key)}\nIf these sessions have different tasks, set split.leaks = "
            '"warn".'
        )


def find_leaks(lake: Lake, key: PartitionKey) -> Leaks:
    """Find the held-out SFT rows whose task has a trial in an earlier split.

    Raises:
        DataError: the table does not exist, or is damaged.
    """
    unnamed, held_out = set[str](), 0
    for row in read_dataset_rows(lake, key, SPLITS, columns=_COLUMNS):
        held_out += row["split"] != "train"
        if is_unnamed_task(row["task_key"]):
            unnamed.add(row["session_id"])
    if not unnamed:
        return Leaks([], held_out, None)
    splits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for row in read_dataset_rows(lake, key, SPLITS, columns=(*_COLUMNS, "messages")):
        if row["session_id"] in unnamed:
            splits[row["session_id"]] = row["split"]
            requests[row["session_id"]] = join_request(find_first_request(row["messages"]))
    return compare_trials(splits, requests, held_out)


def compare_trials(splits: Mapping[str, str], requests: Mapping[str, str], held_out: int) -> Leaks:
    """Find the held-out sessions without a task name that have a trial in an earlier split.

    Args:
        splits: The split of each session whose task has no name.
        requests: The first request of each of these sessions.
        held_out: The number of all held-out sessions.
    """
    proposal = propose_pattern(requests)
    leaks = {leak.session_id: leak for leak in _find_by_request(splits, requests)}
    tasks = proposal.tasks if proposal else {}
    leaks |= {leak.session_id: leak for leak in _find_by_id(splits, tasks)}
    return Leaks([leaks[session_id] for session_id in sorted(leaks)], held_out, proposal)


def refuse_leaks(lake: Lake, key: PartitionKey) -> None:
    """Raise an error if held-out sessions would measure tasks that were trained.

    Raises:
        LeakError: some held-out sessions are trials of trained tasks.
    """
    leaks = find_leaks(lake, key)
    if leaks.leaks:
        raise LeakError(key, leaks)


def _find_by_request(splits: Mapping[str, str], requests: Mapping[str, str]) -> Iterator[Leak]:
    """Yield the leaks that are visible because two requests are nearly equal.

    Args:
        splits: The split of each session.
        requests: The first request of each session.
    """

    def read() -> Iterator[dict[str, Any]]:
        for session_id, text in requests.items():
            if text:
                yield {
                    "session_id": session_id,
                    "split": splits[session_id],
                    "messages": [{"role": "user", "content": text}],
                }

    for near in find_near_across_splits(read, MIN_REQUEST_SIMILARITY):
        yield Leak(near.session_id, near.split, near.other_session_id, near.other_split)


def _find_by_id(splits: Mapping[str, str], tasks: Mapping[str, str]) -> Iterator[Leak]:
    """Yield the leaks that are visible in session ids.

    Args:
        splits: The split of each session.
        tasks: The task of each session, as a pattern extracts it from the id.
    """
    groups: dict[str, list[str]] = defaultdict(list)
    for session_id, task in tasks.items():
        groups[task].append(session_id)
    for ids in groups.values():
        first = min(ids, key=lambda session_id: (SPLITS.index(splits[session_id]), session_id))
        for session_id in ids:
            if splits[session_id] != splits[first]:
                yield Leak(session_id, splits[session_id], first, splits[first])
