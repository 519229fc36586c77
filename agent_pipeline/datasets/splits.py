"""The permanent split: each task, with all its trials, is in `train`, `select` or `test`.

Only a hash of the task's key determines the split. Adding sessions, running again or moving the
store never moves a task, so no test task was ever in an earlier training set. `ledger` keeps the
splits if the sizes change. The file of the ledger does not belong here.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypedDict, get_args

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.greetings import find_request_end, says_something
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import define_required, make_scalar

Split = Literal["train", "select", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

MIN_REQUEST_SIMILARITY = 0.9
"""Minimum Jaccard similarity of five-word sequences above which two requests count as nearly equal.
"""

LINEAGE_COLUMNS = define_required(
    pa.string(),
    row_id="id of the row, unique in the table",
    session_id="id of the session that the row was made from",
    content_sha256="sha256 (hex) of the session's messages and tools",
    task_key="key of the session's task",
    split="permanent split of the task: train, select or test",
)
"""Columns that come first in every dataset."""


class LineageRow(TypedDict):
    """The columns that the rows of every dataset have."""

    row_id: str
    session_id: str
    content_sha256: str
    task_key: str
    split: Split


class TaskSplit(Protocol):
    """An object that determines the split of a task: only the split sizes, or the ledger."""

    def find_split(self, task_key: str) -> Split:
        """Return the split of the task with a given key."""
        ...


class SplitSizes(NamedTuple):
    """The expected share of the tasks in each held-out split.

    The rest, `1 - test - select`, is trained.
    """

    test: float = 0.2
    select: float = 0.1

    def validated(self) -> "SplitSizes":
        """Return these split sizes if they are valid shares.

        The sum must leave some tasks for training.

        Raises:
            SettingsError: A size is negative, or the two sizes leave nothing to train on.
        """
        if not (self.test >= 0 and self.select >= 0 and sum(self) < 1):  # NaN fails too
            raise SettingsError(
                f"The split sizes test={self.test} and select={self.select} are wrong: set them "
                "to shares whose sum is below 1."
            )
        return self

    def find_split(self, task_key: str) -> Split:
        """Return the split of a task, derived from the sha256 of the task's key.

        The hash is read as a uniform number in [0, 1). The lowest part of the range is `test`, the
        next part is `select`, and the rest is `train`.
        """
        digest = hashlib.sha256(task_key.encode("utf-8")).digest()
        position = int.from_bytes(digest[:8], "big") / 2**64
        if position < self.test:
            return "test"
        return "select" if position < self.test + self.select else "train"

    def share(self, split: Split) -> float:
        """Return the expected share of the tasks in a split."""
        return {"test": self.test, "select": self.select, "train": 1 - sum(self)}[split]


def add_splits(
    rows: Iterable[Mapping[str, Any]], task_split: TaskSplit
) -> Iterator[dict[str, Any]]:
    """Yield rows from outside the lake (distilled or collected), each with the split of its task.

    Pass the ledger of the agent that is trained (`ledger.read_ledger`). A task that the ledger
    holds out is then held out here too, if its key is the same. The key is the id that the source
    gives, or the first user message if there is no id.
    """
    for row in rows:
        yield {**row, "split": task_split.find_split(row["task_key"])}


def count_tasks_needed(share: float, certainty: float = 0.95) -> int:
    """Return how many tasks are needed so that a split with a given share contains a task.

    `certainty` is the probability that the split has at least one task.
    """
    return math.ceil(math.log(1 - certainty) / math.log(1 - share))


@dataclass(frozen=True)
class EmptySplit:
    """A split that should have rows but is empty.

    Attributes:
        split: The split.
        task_count: The number of tasks in all splits.
        tasks_needed: The number of tasks at which the split has a task 19 times out of 20.
    """

    split: Split
    task_count: int
    tasks_needed: int

    def describe(self) -> str:
        """Return a sentence about the empty split for users."""
        return (
            f"{self.split} has no rows, because none of the {self.task_count} tasks is in this "
            f"split: with {self.tasks_needed} tasks, it would have a row with a probability of 95 "
            "%."
        )


def find_empty_splits(rows: pa.Table, sizes: SplitSizes) -> list[EmptySplit]:
    """Return the splits that should have rows but are empty.

    Args:
        rows: A table with the columns `split` and `task_key`.
        sizes: The sizes of the split. They determine which splits should have rows.
    """
    tasks_by_split = {
        split: pc.count_distinct(part["task_key"]).as_py() for split, part in _split_rows(rows)
    }
    task_count = sum(tasks_by_split.values())
    return [
        EmptySplit(split, task_count, count_tasks_needed(sizes.share(split)))
        for split in SPLITS
        if sizes.share(split) > 0 and split not in tasks_by_split
    ]


def find_root_tasks(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the task of the root session for every session whose parent is among the rows.

    A session with a parent is a fork or the work of a sub-agent. Sessions whose parents form a
    cycle keep their own tasks.

    Args:
        rows: Rows with `session_id`, `parent_session_id` (or `None`) and `task_key`.

    Returns:
        The task key of the root, by the session id of the descendant.
    """
    parents_and_tasks = {
        row["session_id"]: (row["parent_session_id"], row["task_key"]) for row in rows
    }
    root_tasks: dict[str, str] = {}
    for session_id, (parent, _) in parents_and_tasks.items():
        ancestors = {session_id}
        while parent in parents_and_tasks and parent not in ancestors:
            ancestors.add(parent)
            parent, root_tasks[session_id] = parents_and_tasks[parent]
        if parent in ancestors:
            root_tasks.pop(session_id, None)
    return root_tasks


def find_overlaps(rows: pa.Table) -> dict[str, list[Any]]:
    """Return the sessions, tasks and texts that are in more than one split, by kind.

    Empty lists prove that there are none.

    Args:
        rows: A table with `session_id`, `task_key`, `content_sha256` and `split`.

    Returns:
        The sorted session ids, task keys and content hashes that are in several splits.
    """
    overlaps: dict[str, list[object]] = {}
    for kind in ("session_id", "task_key", "content_sha256"):
        values = pa.chunked_array(
            [pc.unique(part[kind]) for _, part in _split_rows(rows)], rows.schema.field(kind).type
        )
        value_counts = pc.value_counts(values)
        in_several = pc.greater(value_counts.field("counts"), make_scalar(1, pa.int64()))
        overlaps[kind] = sorted(value_counts.filter(in_several).field("values").to_pylist())
    return overlaps


def _split_rows(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Yield each split of a dataset with the split's rows.

    `group_by` would do the same, but it imports pandas.
    """
    for split in pc.unique(rows["split"]):
        yield split.as_py(), rows.filter(pc.equal(rows["split"], split))


def is_unnamed_task(task_key: str) -> bool:
    """Return whether neither the source nor the settings name a task.

    The key of such a task is made from its request or from its session.
    """
    return task_key.startswith(("text:", "session:"))


def join_request(request: Sequence[Message]) -> str:
    """Join the messages of a request into one text."""
    return "\n".join(message["content"] for message in request)


def find_first_request(messages: Sequence[Message]) -> list[Message]:
    """Return the user messages up to the agent's answer to the first request.

    The first request is the first user message that is more than a greeting. The list is empty if
    there is no such message.
    """
    request_end = find_request_end(messages)
    if request_end is None:
        return []
    answer_index = request_end
    while answer_index < len(messages) and messages[answer_index]["role"] != "assistant":
        answer_index += 1
    return [
        message
        for message in messages[:answer_index]
        if message["role"] == "user" and says_something(message["content"])
    ]
