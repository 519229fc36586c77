"""The ledger of a partition's decisions, which is stored next to the history of its pointers.

    <root>/models/gguf_export/project=<p>/agent=<a>/decisions/00000007.json

Entries are only appended, never changed. The yearly error budget is counted from them
(`error_budget`). The log of completed moves of the champion is in this module too. The types of a
decision are in `decision`.
"""

import msgspec

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import Decision, Figure, ReasonKind
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.logs import Log

EXPORT = "gguf_export"
DECISION_PAGES = "champion"
"""The asset of the pages of decisions."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the ledger: a decision, a probation check, or an export that a person holds back.

    Attributes:
        number: The number of the entry.
        when: The time (ISO 8601, UTC).
        who: The run or the user.
        candidate: The identity of the export that the decision is about.
        champion: The identity of the export that it was compared with; `None` for the base model.
        evaluator: The hash of everything that was decided from (`decision_identity`). Older
            versions hashed only the scoring of the candidate, and the policy.
        decision: The decision.
        test: The figures on the split `test`, which do not affect the decision.
        why: A person's reason.
        verdicts: The number of verdicts on the candidate's training sessions, by who judged
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
    """A record that a command moved a champion, served it, and reported the move.

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

    If a command was killed before it served the champion, it is not in this log.
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

    A probation check that keeps the champion does not count as a decision.
    """
    for entry in reversed(open_ledger(lake, key).records()):
        if entry.candidate == candidate and entry.decision.outcome != "keep":
            return entry
    return None
