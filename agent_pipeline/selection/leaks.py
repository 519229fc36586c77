"""Whether held-out sessions are trials of tasks that are also trained, although nobody names their tasks.

A task that the source or a setting names is in one split. Without names, a task is a request word by word, and two trials of one task
may lie in two splits. Their ids or their requests give them away.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

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
from agent_pipeline.selection.tables import dataset_rows
from agent_pipeline.storage.lake import Lake

_COLUMNS = ("session_id", "task_key", "split")


class Leak(NamedTuple):
    """A held-out session, and a session of a split before its own (train, select, test) that is a trial of the same task."""

    session_id: str
    split: str
    other_session_id: str
    other_split: str


class Leaks(NamedTuple):
    """The leaks of a partition, one per held-out session; how many sessions are held out; and the `task_pattern` that would end them."""

    leaks: list[Leak]
    held_out: int
    proposal: PatternProposal | None

    def sentence(self, key: PartitionKey) -> str:
        """Return what is wrong and what to do."""
        first = self.leaks[0]
        if self.proposal:
            remedy = f"put this into pipeline.toml, so that the trials of a task are in one split:\n{self.proposal.lines(str(key))}"
        else:
            remedy = "name the task in the data, or set task_pattern or task_field"
        return (
            f"{len(self.leaks)} of {self.held_out} held-out sessions of {key} are trials of a task that has trials in another split, "
            f"such as {first.session_id} ({first.split}) and {first.other_session_id} ({first.other_split}): {remedy}"
        )


def find_leaks(lake: Lake, key: PartitionKey) -> Leaks:
    """Find the held-out sessions of `sft_dataset` that have a trial of their task in a split before their own.

    Raises:
        DataError: the table was never made, or is damaged.
    """
    unnamed, held_out = set[str](), 0
    for row in dataset_rows(lake, key, SPLITS, columns=_COLUMNS):
        held_out += row["split"] != "train"
        if is_unnamed_task(row["task_key"]):
            unnamed.add(row["session_id"])
    if not unnamed:
        return Leaks([], held_out, None)
    splits: dict[str, str] = {}
    requests: dict[str, str] = {}
    for row in dataset_rows(lake, key, SPLITS, columns=(*_COLUMNS, "messages")):
        if row["session_id"] in unnamed:
            splits[row["session_id"]] = row["split"]
            requests[row["session_id"]] = join_request(find_first_request(row["messages"]))
    proposal = propose_pattern(requests)
    leaks = {leak.session_id: leak for leak in _near(splits, requests)}
    leaks |= {leak.session_id: leak for leak in _by_id(splits, proposal.tasks if proposal else {})}
    return Leaks([leaks[name] for name in sorted(leaks)], held_out, proposal)


def refuse_leaks(lake: Lake, key: PartitionKey) -> None:
    """Stop a training run whose held-out sessions would measure what was trained.

    Raises:
        DataError: some held-out sessions are trials of trained tasks; the sentence names the setting.
    """
    found = find_leaks(lake, key)
    if found.leaks:
        raise DataError(
            f'{found.sentence(key)}\nIf they are different tasks, set split.leaks = "warn".'
        )


def _near(splits: Mapping[str, str], requests: Mapping[str, str]) -> Iterator[Leak]:
    def rows() -> Iterator[dict[str, Any]]:
        for session_id, text in requests.items():
            if text:
                yield {
                    "session_id": session_id,
                    "split": splits[session_id],
                    "messages": [{"role": "user", "content": text}],
                }

    for near in find_near_across_splits(rows, MIN_REQUEST_SIMILARITY):
        yield Leak(near.session_id, near.split, near.other_session_id, near.other_split)


def _by_id(splits: Mapping[str, str], tasks: Mapping[str, str]) -> Iterator[Leak]:
    groups: dict[str, list[str]] = defaultdict(list)
    for session_id, task in tasks.items():
        groups[task].append(session_id)
    for ids in groups.values():
        first = min(ids, key=lambda session_id: (SPLITS.index(splits[session_id]), session_id))
        for session_id in ids:
            if splits[session_id] != splits[first]:
                yield Leak(session_id, splits[session_id], first, splits[first])
