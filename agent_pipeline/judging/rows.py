"""Types of the rows of `judged_sessions` and `curated_sessions`, with decoded JSON columns.

The schemas are in `sessions.tables`. Computing the columns does not belong here.
"""

from typing import TypedDict

from agent_pipeline.judging.labels import Verdict
from agent_pipeline.judging.verdict_policy import VerdictSource
from agent_pipeline.sessions.tables import SessionRow


class StoredMeasureResult(TypedDict):
    """An entry of the column `measures`: the result of one measure.

    It has the fields of `measures.MeasureResult`.
    """

    passed: bool | None
    reason: str
    score: float | None
    raised: bool


class StoredOpinion(TypedDict):
    """An entry of the column `opinions`: the opinion of one judge.

    It has the fields of `verdict_policy.Opinion`.
    """

    verdict: Verdict | None
    reason: str
    name: str
    pending: bool


class StoredTurnFacts(TypedDict):
    """An entry of the column `turns`: the facts about one turn.

    It has the fields of `turn_facts.TurnFacts`.
    """

    tool_error: bool
    refused: bool
    breaks_schema: bool | None
    repeated_call: bool
    corrected_later: bool
    addresses_judge: bool
    failed_measures: list[str]


class JudgedRow(SessionRow):
    """One row of `judged_sessions`."""

    verdict: Verdict | None
    verdict_by: VerdictSource | None
    verdict_name: str | None
    verdict_reasons: str | None
    verdict_score: float | None
    measures: dict[str, StoredMeasureResult]
    opinions: dict[str, StoredOpinion]
    turns: list[StoredTurnFacts]


class CuratedRow(JudgedRow):
    """One row of `curated_sessions`."""

    kept: bool
    use: str
    drop_reason: str | None
    drop_detail: str | None
    missed_measures: list[str]
    duplicate_of: str | None
    continued_by: str | None
    served_model: bool | None
