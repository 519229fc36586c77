"""The system prompt and the tools with which the rows of an agent begin."""

from collections import Counter
from dataclasses import dataclass
from itertools import islice

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import DataError
from agent_pipeline.evaluation.episodes import opening_messages
from agent_pipeline.keys import PartitionKey
from agent_pipeline.selection.tables import read_dataset_rows
from agent_pipeline.sessions.session import Message, Tool, hash_json
from agent_pipeline.storage.lake import Lake

MAX_ROWS = 1000
"""Maximum number of rows that are read to find the most frequent system prompt."""


@dataclass(frozen=True)
class AgentPrompt:
    """The beginning of an agent's conversations.

    Attributes:
        system: The system messages.
        tools: The tools.
        question: The first message of a user in a session; empty if there is none.
        variants: How many different beginnings the agent's rows have.
    """

    system: list[Message]
    tools: list[Tool]
    question: str = ""
    variants: int = 1


def read_prompt_rows(lake: Lake, key: PartitionKey) -> list[DatasetRow]:
    """Return the first rows of an agent's training split, or of another split if it is empty.

    Raises:
        DataError: The agent has no rows.
    """
    for split in ("train", "select", "test"):
        rows = read_dataset_rows(lake, key, (split,), columns=["messages", "tools", "task_key"])
        if first_rows := list(islice(rows, MAX_ROWS)):
            return first_rows
    raise DataError(
        f"{key} has no rows from which its system prompt and tools can be read: run "
        f"`agent-pipeline materialize {key} --select '+sft_dataset'`.",
        partition=key,
        asset="sft_dataset",
    )


def find_agent_prompt(rows: list[DatasetRow]) -> AgentPrompt:
    """Return the most frequent beginning of the conversations of some rows."""
    openings = [
        (opening_messages(row["messages"], "system"), list(row.get("tools") or ())) for row in rows
    ]
    names = [hash_json(opening) for opening in openings]
    counts = Counter(names)
    position = names.index(counts.most_common(1)[0][0])
    system, tools = openings[position]
    users = opening_messages(rows[position]["messages"], "user")
    return AgentPrompt(system, tools, _first_text(users), len(counts))


def _first_text(messages: list[Message]) -> str:
    content = messages[0].get("content") if messages else ""
    return content if isinstance(content, str) else ""
