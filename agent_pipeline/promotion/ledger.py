"""The ledger of a partition's decisions, next to the history of its pointers.

    <root>/models/gguf_export/project=<p>/agent=<a>/decisions/00000007.json

The ledger is append-only. The yearly error budget is counted from it (`error_budget`). The log of
completed moves of the champion is here too. What a decision is made of is in `decision`.
"""

import msgspec

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import Decision, Figure, ReasonKind
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.logs import Log

EXPORT = "gguf_export"


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, a probation check, or a person's hold.

    Attributes:
        number: The number of the entry.
        when: The time (ISO 8601, UTC).
        who: The run or the user.
        candidate: The identity of the export that was decided on.
        champion: The identity of the export that it was compared with; `None` is the base model.
        evaluator: The hash of how both were scored, and of the policy.
        decision: The decision.
        test: The figures on the split `test`, which decide nothing.
        why: A person's reason.
        verdicts: The counts of who judged the sessions that the candidate was trained on
            (`datasets.verdicts.count_verdicts`); `None` in entries of older versions.
    """

    number: int
    when: str
    who: str
    candidate: str
    champion: str | None
    evaluator: str
    decision: Decision
    test: tuple[Figure, ...] = ()
    why: str = ""
    verdicts: VerdictCounts | None = None


class CompletedMove(msgspec.Struct, frozen=True, kw_only=True):
    """A command that moved a champion, served it, and reported the move.

    Attributes:
        number: The number of the entry.
        generation: The entry of the pointers' history that the command wrote.
        when: The time (ISO 8601, UTC).
    """

    number: int
    generation: int
    when: str


def open_ledger(lake: Lake, key: PartitionKey) -> Log[LedgerEntry]:
    """Return the ledger of a partition's decisions."""
    return lake.log(EXPORT, key, "decisions", LedgerEntry)


def open_completed_moves(lake: Lake, key: PartitionKey) -> Log[CompletedMove]:
    """Return the log of the commands that moved a partition's champion and then served it.

    A command that was killed in between is missing there.
    """
    return lake.log(EXPORT, key, "completed_moves", CompletedMove)


def is_held_back(lake: Lake, key: PartitionKey, candidate: str) -> bool:
    """Return whether a person holds an export back."""
    for entry in open_ledger(lake, key).records():
        kinds = {reason.kind for reason in entry.decision.reasons}
        if entry.candidate == candidate and ReasonKind.HELD_BY_PERSON in kinds:
            return True
    return False


def find_last_decision(lake: Lake, key: PartitionKey, candidate: str) -> LedgerEntry | None:
    """Return the last decision on an export.

    A probation check that left the export the champion is not a decision on it.
    """
    for entry in reversed(open_ledger(lake, key).records()):
        if entry.candidate == candidate and entry.decision.outcome != "keep":
            return entry
    return None
