"""The ledger of a partition's decisions, beside the history of its pointers.

    <root>/models/gguf_export/project=<p>/agent=<a>/decisions/00000007.json

It is append-only, and it is what a year's budget of error is counted by.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from agent_pipeline.evaluation.scores import Decision, Figure
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.logs import Log

EXPORT = "gguf_export"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the ledger. `champion` is the export that the candidate was compared with (`None`: the base model). `test` are the
    figures of the split `test`; `why` is a person's. `verdicts` counts who judged the sessions that the candidate was trained on
    (`datasets.verdicts.count_verdicts`; `None` in records of older versions)."""

    number: int
    when: str
    who: str
    candidate: str
    champion: str | None
    evaluator: str
    decision: Decision
    test: tuple[Figure, ...] = ()
    why: str = ""
    verdicts: dict[str, Any] | None = None


def ledger(lake: Lake, key: PartitionKey) -> Log[Record]:
    """The decisions on a partition's candidates."""
    return lake.log(EXPORT, key, "decisions", Record)


class CompletedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A command that moved a champion to entry `generation` of the history, served it, and said so."""

    number: int
    generation: int
    when: str


def completed_moves(lake: Lake, key: PartitionKey) -> Log[CompletedMove]:
    """The commands that moved a partition's champion and then served it. A killed command is missing here."""
    return lake.log(EXPORT, key, "completed_moves", CompletedMove)


def spent_in_year(records: Sequence[Record], when: str) -> int:
    """How many decisions and looks have spent of the budget of error of the year of a time."""
    return sum(each.when[:4] == when[:4] and each.decision.p is not None for each in records)


def is_held(lake: Lake, key: PartitionKey, candidate: str) -> bool:
    """Whether a person holds an export back."""
    records = ledger(lake, key).records()
    return any(
        reason.kind == "held"
        for record in records
        if record.candidate == candidate
        for reason in record.decision.reasons
    )


def last_decision(lake: Lake, key: PartitionKey, candidate: str) -> Record | None:
    """The last decision on an export; a look that left it champion is none."""
    records = reversed(ledger(lake, key).records())
    return next(
        (
            each
            for each in records
            if each.candidate == candidate and each.decision.outcome != "keep"
        ),
        None,
    )
