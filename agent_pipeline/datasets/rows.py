"""The rows of datasets, as they are read from the lake.

How a session becomes a row is decided in the module of each data set (`sft`, `preferences`, `kto`).
"""

from datetime import datetime
from typing import TypedDict

from agent_pipeline.datasets.splits import Split
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.turn_class import TurnClass


class DatasetRow(TypedDict, total=False):
    """A row of a dataset.

    Each dataset has only some of these columns, and a reader may request fewer.

    Attributes:
        row_id: The id of the row.
        session_id: The session, or the good session of a pair.
        content_sha256: The hash of the session's messages and tools.
        task_key: The task of the session.
        split: The split of the task.
        tools: The tools that the agent had.
        verdict_by: The judge of the session.
        served_model: Whether a model of this lake answered in the session.
        messages: The conversation (SFT).
        score: The score of the session (SFT).
        created_at: When the session began (SFT).
        turn_classes: The class of each assistant message (SFT).
        prompt: The messages before what is judged (preferences, KTO).
        chosen: The good session's messages (preferences).
        rejected: The bad session's messages (preferences).
        rejected_session_id: The bad session (preferences).
        rejected_verdict_by: The judge of the bad session (preferences).
        completion: The judged messages (KTO).
        label: Whether the session is good (KTO).
    """

    row_id: str
    session_id: str
    content_sha256: str
    task_key: str
    split: Split
    tools: list[Tool]
    verdict_by: str | None
    served_model: bool | None
    messages: list[Message]
    score: float | None
    created_at: datetime | None
    turn_classes: list[TurnClass | None]
    prompt: list[Message]
    chosen: list[Message]
    rejected: list[Message]
    rejected_session_id: str
    rejected_verdict_by: str | None
    completion: list[Message]
    label: bool
