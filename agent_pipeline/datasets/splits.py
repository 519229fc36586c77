"""The permanent split: a task is in `train`, `select` or `test`, with all its trials.

A hash of the task's key alone decides. Adding sessions, running again or moving the store never moves a task, so no test task was in an
earlier training set. `ledger` keeps it so when the sizes change.
"""

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.errors import SettingsError
from agent_pipeline.sessions.greetings import find_request_end, says_something
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import define_required, make_scalar

Split = Literal["train", "select", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)


ROW = define_required(
    pa.string(),
    row_id="the row; unique in the table",
    session_id="the session that it is from",
    content_sha256="sha256 (hex) of the content that it is from",
    task_key="the session's task",
    split="the task's permanent split: train, select or test",
)
"""The columns of every data set's rows."""


class TaskSplit(Protocol):
    """Knows the split of a task: sizes alone, or a ledger."""

    def of(self, task_key: str) -> Split:
        """The split of a task."""
        ...


class SplitSizes(NamedTuple):
    """Expected shares of the tasks; the rest, `1 - test - select`, trains."""

    test: float = 0.2
    select: float = 0.1

    def checked(self) -> "SplitSizes":
        """Itself.

        Raises:
            SettingsError: the shares are no shares, or leave nothing to train on.
        """
        if not (self.test >= 0 and self.select >= 0 and sum(self) < 1):  # NaN fails too
            raise SettingsError(
                f"The split sizes test={self.test} and select={self.select} must be shares whose sum is below 1."
            )
        return self

    def of(self, task_key: str) -> Split:
        """By sha256 of a task's key, uniform in [0, 1): the lowest part is `test`, the next `select`, the rest `train`."""
        place = int.from_bytes(hashlib.sha256(task_key.encode("utf-8")).digest()[:8], "big") / 2**64
        if place < self.test:
            return "test"
        return "select" if place < self.test + self.select else "train"

    def share(self, split: Split) -> float:
        return {"test": self.test, "select": self.select, "train": 1 - sum(self)}[split]


def with_splits(rows: Iterable[Mapping[str, Any]], split: TaskSplit) -> Iterator[dict[str, Any]]:
    """Rows from outside the lake (distilled, collected), each with the `split` of its `task_key`.

    With the ledger of the agent that is trained (`ledger.read_ledger`), a task that it holds out is held out here too, if it has the same
    key: the id that the source gives, else the first user message.
    """
    return (dict(row) | {"split": split.of(row["task_key"])} for row in rows)


def tasks_needed(share: float, certainty: float = 0.95) -> int:
    """How many tasks it takes for at least one to fall into a split of this share, with this certainty."""
    return math.ceil(math.log(1 - certainty) / math.log(1 - share))


def empty_splits(rows: pa.Table, sizes: SplitSizes) -> list[str]:
    """A sentence for each split that should have rows (`split`, `task_key`) and has none, with the number of tasks that would do."""
    tasks = {split: pc.count_distinct(part["task_key"]).as_py() for split, part in _by_split(rows)}
    number = sum(tasks.values())
    return [
        f"{split} has no rows: it got none of the {number} tasks; with {tasks_needed(sizes.share(split))} it gets one, 19 times of 20."
        for split in SPLITS
        if sizes.share(split) > 0 and split not in tasks
    ]


def root_tasks(rows: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The task of every session that has a parent among the rows (a fork, a sub-agent's work): its root's, by session id.

    A row has `session_id`, `parent_session_id` (or `None`) and `task_key`. Sessions in a circle keep their own tasks.
    """
    known = {row["session_id"]: (row["parent_session_id"], row["task_key"]) for row in rows}
    found = {}
    for session_id, (parent, _) in known.items():
        seen = {session_id}
        while parent in known and parent not in seen:
            seen.add(parent)
            found[session_id] = known[parent][1]
            parent = known[parent][0]
        if parent in seen:
            found.pop(session_id, None)
    return found


def overlaps(rows: pa.Table) -> dict[str, list[Any]]:
    """What is in more than one split, by kind: session ids, task keys, and contents (by hash). Empty lists are the proof of none."""
    crossing = {}
    for kind in ("session_id", "task_key", "content_sha256"):
        values = pa.chunked_array(
            [pc.unique(part[kind]) for _, part in _by_split(rows)], rows.schema.field(kind).type
        )
        places = pc.value_counts(values)
        crossing[kind] = sorted(
            places.filter(pc.greater(places.field("counts"), make_scalar(1, pa.int64())))
            .field("values")
            .to_pylist()
        )
    return crossing


def _by_split(rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each split. `group_by` does that too, and imports pandas."""
    for split in pc.unique(rows["split"]):
        yield split.as_py(), rows.filter(pc.equal(rows["split"], split))


ALIKE = 0.9
"""Similarity (Jaccard, of five words in a row) from which on two requests are nearly the same."""


def is_unnamed(task_key: str) -> bool:
    """Tell whether neither the source nor a setting names a task, so that its key is that of its request or of its session."""
    return task_key.startswith(("text:", "session:"))


def request_text(request: Sequence[Message]) -> str:
    """Return the words of a request as one text."""
    return "\n".join(message["content"] for message in request)


def first_request(messages: Sequence[Message]) -> list[Message]:
    """Return what users wrote before the agent answered their first message that says something; nothing if no message does."""
    asked = find_request_end(messages)
    if asked is None:
        return []
    answered = next(
        (at for at in range(asked, len(messages)) if messages[at]["role"] == "assistant"),
        len(messages),
    )
    users = (message for message in messages[:answered] if message["role"] == "user")
    return [message for message in users if says_something(message["content"])]
