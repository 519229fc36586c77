"""Whether an agent still sends the requests that its models were trained for.

The newest sessions are compared with the requests that an adapter's artifact records. What counts
as a change belongs to `datasets.requests`.
"""

import heapq
from collections.abc import Sequence
from datetime import datetime

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.requests import (
    REQUESTS_FILE,
    Request,
    RequestChange,
    TrainedRequests,
    compare_requests,
    read_request,
)
from agent_pipeline.errors import DataError
from agent_pipeline.judging.decisions import DropReason
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.structs import decode_json
from agent_pipeline.training.chain import find_trained_adapters

MOST_NEWEST = 50
"""Maximum number of newest sessions that are compared, so that a change shows soon."""

_NO_REQUESTS = (DropReason.ARCHIVED, DropReason.EMPTY, DropReason.BROKEN)
"""Reasons with which a session does not count, because it may not show the agent's requests."""


class RequestComparison(msgspec.Struct, frozen=True):
    """The comparison of the newest sessions with the training of one model.

    Attributes:
        model: `champion` or `candidate`.
        identity: The identity of its first adapter.
        sessions: The number of compared sessions.
        changes: The changes.
        problem: The reason why nothing was compared; empty if something was compared.
        is_recorded: Whether the adapter has the record of its requests. Without the record, a
            change of the requests is never noticed.
    """

    model: str
    identity: str
    sessions: int = 0
    changes: list[RequestChange] = []
    problem: str = ""
    is_recorded: bool = True

    @property
    def major_changes(self) -> list[RequestChange]:
        """Return the changes with which the model may fail, so without changed descriptions."""
        return [change for change in self.changes if not change.is_minor]

    def __str__(self) -> str:
        if self.problem:
            return f"not known: {self.problem}"
        if not self.changes:
            return f"as in training ({self.sessions} newest sessions)"
        return f"{'; '.join(map(str, self.changes))}, of the {self.sessions} newest"


def read_trained_requests(adapters: Sequence[Artifact]) -> TrainedRequests | None:
    """Return the requests of the rows that trained a chain of adapters.

    Return `None` if an older version trained the chain, or if the chain does not exist.
    """
    try:
        return decode_json(adapters[0].read(REQUESTS_FILE), TrainedRequests)
    except (IndexError, FileNotFoundError, msgspec.MsgspecError):
        return None


def compare_models(lake: Lake, key: PartitionKey) -> list[RequestComparison]:
    """Compare the newest sessions with the champion, and with the latest model if it is another.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    adapters: dict[str, list[Artifact]] = {}
    if champion := lake.champion(EXPORT, key):
        adapter = str(champion.manifest["made_from"]["adapter"])
        adapters["champion"] = find_trained_adapters(lake, key, adapter)
    if candidate := find_latest_adapter(lake, key):
        adapters["candidate"] = [candidate]
    comparisons: list[RequestComparison] = []
    for model, chain in adapters.items():
        identity = chain[0].identity if chain else ""
        if not any(comparison.identity == identity for comparison in comparisons):
            comparisons.append(compare_adapters(lake, key, model, chain))
    return comparisons


def find_latest_adapter(lake: Lake, key: PartitionKey) -> Artifact | None:
    """Return the adapter of the latest supervised fine-tuning, or `None`."""
    try:
        return lake.latest("sft_adapter", key)
    except DataError:
        return None


def compare_latest_adapter(lake: Lake, key: PartitionKey) -> RequestComparison | None:
    """Compare the newest sessions with the latest training, or return `None` without a training.

    Another training can teach the major changes.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    adapter = find_latest_adapter(lake, key)
    return compare_adapters(lake, key, "candidate", [adapter]) if adapter else None


def describe_changes(lake: Lake, key: PartitionKey) -> list[str]:
    """Return a sentence for each model whose agent asks something else than in training.

    A model without a record of its requests has a sentence, too.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    sentences = []
    for comparison in compare_models(lake, key):
        if comparison.changes:
            sentences.append(f"Since the {comparison.model} was trained: {comparison}.")
        elif not comparison.is_recorded:
            sentences.append(
                "Whether the system prompt or tools changed since the "
                f"{comparison.model} was trained is {comparison}."
            )
    return sentences


def compare_adapters(
    lake: Lake, key: PartitionKey, model: str, adapters: Sequence[Artifact]
) -> RequestComparison:
    """Compare the newest sessions with the training of a chain of adapters.

    Args:
        lake: The lake.
        key: The partition.
        model: `champion` or `candidate`.
        adapters: The adapters in the order of training.

    Raises:
        DataError: The table is damaged, or an older version wrote it.
    """
    trained = read_trained_requests(adapters)
    identity = adapters[0].identity if adapters else ""
    if trained is None:
        problem = "the adapter does not record its requests: train it again"
        return RequestComparison(model, identity, problem=problem, is_recorded=False)
    if trained.until is None:
        problem = "the trained sessions have no time"
        return RequestComparison(model, identity, problem=problem)
    newer = read_newest_requests(lake, key, trained.until)
    if not newer:
        return RequestComparison(model, identity, problem="no session is newer than its training")
    return RequestComparison(model, identity, len(newer), compare_requests(trained, newer))


def read_newest_requests(
    lake: Lake, key: PartitionKey, after: datetime, count: int = MOST_NEWEST
) -> list[Request]:
    """Return the requests of the newest sessions that began after a time, the newest last.

    Args:
        lake: The lake.
        key: The partition.
        after: The time.
        count: The largest number of sessions.

    Raises:
        DataError: The table is damaged, or an older version wrote it.
    """
    if not lake.has("curated_sessions", key):
        return []
    with lake.open("curated_sessions", key) as file:
        columns = ["session_id", "created_at", "drop_reason"]
        newer = (
            (row["created_at"], row["session_id"])
            for row in to_rows(read_batches(file, columns))
            if row["created_at"]
            and row["created_at"] > after
            and row["drop_reason"] not in _NO_REQUESTS
        )
        ids = [session_id for _, session_id in heapq.nlargest(count, newer)]
        wanted = pa.array(ids, pa.string())
        requests = {
            row["session_id"]: read_request(row["messages"], row["tools"])
            for batch in read_batches(file, ["session_id", "messages", "tools"])
            for row in to_rows([batch.filter(pc.is_in(batch["session_id"], wanted))])
        }
    return [requests[session_id] for session_id in reversed(ids)]
