"""The held-out data: the rows of the split `test`, and the recorded sessions of their tasks."""

from collections.abc import Collection
from contextlib import suppress

import pyarrow as pa
import pyarrow.compute as pc

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.sft_tables import read_sft_columns
from agent_pipeline.datasets.splits import Split
from agent_pipeline.errors import DataError, MissingError
from agent_pipeline.evaluation.episodes import PLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Message
from agent_pipeline.sessions.tables import read_batches, to_rows
from agent_pipeline.sessions.transcript import list_texts
from agent_pipeline.storage.lake import Lake

LEAST_REPLY, AROUND_A_CALL = 96, 64
"""The token limit of a short message (96), and the number of tokens for a call's name and markers
in the notation of any model family (64).
"""


def heldout_rows(lake: Lake, key: PartitionKey, split: Split = "test") -> list[DatasetRow]:
    """Return the SFT rows of a split, from `heldout_dataset` for the split `test` and from
    `sft_dataset` for any other split.

    Raises:
        DataError: The split has no rows, or the table does not exist.
    """
    rows = list(read_dataset_rows(lake, key, (split,)))
    if not rows:
        tasks = pc.count_distinct(read_sft_columns(lake, key, ["task_key"])["task_key"]).as_py()
        raise DataError(
            f"{key} has no held-out rows, because none of its {tasks} tasks is in the split "
            f"{split}: add sessions of other tasks. About 2 of 10 tasks are held out. Training "
            "rows are never used for evaluation."
        )
    return rows


def reply_limit(lake: Lake, key: PartitionKey) -> int:
    """Return the maximum number of tokens in a model's message, derived from the agent's longest
    message in the held-out rows.

    Every two characters count as one token, twice the usual rate of English. A character of a script
    such as Chinese counts as up to three tokens, because an English vocabulary has few tokens for
    it. `AROUND_A_CALL` is added. The result is at least `LEAST_REPLY`, even if there are no rows.
    """
    longest = 0
    with suppress(MissingError):
        for row in read_dataset_rows(lake, key, ("test",), columns=["messages"]):
            for text in (
                "".join(list_texts(message))
                for message in row["messages"]
                if message["role"] == "assistant"
            ):
                longest = max(longest, len(text) // 2, 3 * (len(text.encode()) - len(text)) // 2)
    return max(LEAST_REPLY, longest + AROUND_A_CALL)


def recorded_sessions(
    lake: Lake, key: PartitionKey, tasks: Collection[str]
) -> dict[str, tuple[str, list[Message]]]:
    """Return the id and the messages of the first complete recorded session of each task, by task
    key.

    Sessions that a model played are left out.
    """
    wanted = pa.array(sorted(tasks), pa.string())
    batches = read_batches(
        lake.open("judged_sessions", key), ["session_id", "task_key", "trial", "broken", "messages"]
    )
    whole = (
        batch.filter(pc.and_(pc.is_in(batch["task_key"], wanted), pc.is_null(batch["broken"])))
        for batch in batches
    )
    recorded = (row for row in to_rows(whole) if not row["session_id"].startswith(PLAYED))
    rows = sorted(recorded, key=lambda row: (row["trial"] or "", row["session_id"]))
    return {row["task_key"]: (row["session_id"], row["messages"]) for row in reversed(rows)}
