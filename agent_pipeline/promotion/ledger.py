"""The ledger of a partition's decisions, which is stored next to the history of its pointers.

    <root>/models/gguf_export/project=<p>/agent=<a>/decisions/00000007.json

Entries are only appended, never changed. The yearly error budget is counted from them
(`error_budget`). The log of completed moves of the champion is in this module too. The types of a
decision are in `decision`.
"""

from contextlib import suppress

import msgspec

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.errors import DamageError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision import Decision, Figure, ReasonKind
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.logs import Log
from agent_pipeline.storage.pointers import now, user_name

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
        evaluator: The hash of everything that was decided from (`decision_identity`); empty if a
            person holds the export back. Older versions hashed only the scoring of the candidate,
            and the policy.
        decision: The decision.
        test: The figures on the split `test`, which do not affect the decision.
        why: A person's reason.
        verdicts: The number of verdicts on the candidate's training sessions, by who judged
            (`datasets.verdicts.count_verdicts`); `None` in entries of older versions.
        tested_scores: The hash of the scores that the statistical test used
            (`decision_identity.hash_tested_scores`); empty without a test, and in entries of older
            versions.
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
    tested_scores: str = ""

    @property
    def is_hold_of_person(self) -> bool:
        """Return whether a person holds the export back with this entry."""
        return any(reason.kind == ReasonKind.HELD_BY_PERSON for reason in self.decision.reasons)


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


class LiftedHold(msgspec.Struct, frozen=True, kw_only=True):
    """A record that a person made a held export the champion, which ends the hold.

    Attributes:
        number: The number of the entry.
        hold: The number of the hold in the ledger.
        when: The time (ISO 8601, UTC).
        who: The user.
    """

    number: int
    hold: int
    when: str
    who: str


def open_ledger(lake: Lake, key: PartitionKey) -> Log[LedgerEntry]:
    """Return the ledger of a partition's decisions."""
    return lake.log(EXPORT, key, "decisions", LedgerEntry)


def open_completed_moves(lake: Lake, key: PartitionKey) -> Log[CompletedMove]:
    """Return the log of the commands that moved a partition's champion and then served it.

    If a command was killed before it served the champion, it is not in this log.
    """
    return lake.log(EXPORT, key, "completed_moves", CompletedMove)


def open_lifted_holds(lake: Lake, key: PartitionKey) -> Log[LiftedHold]:
    """Return the log of the holds that a person lifted. Older versions did not write it."""
    return lake.log(EXPORT, key, "lifted_holds", LiftedHold)


def lift_hold(lake: Lake, key: PartitionKey, candidate: str) -> None:
    """Record that a person made an export the champion, so the hold on the export ends.

    If the ledger is damaged, nothing is recorded, because a command must not fail for that.
    """
    with suppress(DamageError):
        hold = find_hold(lake, key, candidate)
        if hold is not None:
            lifted = LiftedHold(number=0, hold=hold.number, when=now(), who=user_name())
            open_lifted_holds(lake, key).append(
                lambda number: msgspec.structs.replace(lifted, number=number)
            )


def find_hold(lake: Lake, key: PartitionKey, candidate: str) -> LedgerEntry | None:
    """Return the entry with which a person holds an export back.

    Later decisions do not end the hold. It ends when a person makes the export the champion, also
    if the export is the champion already.
    """
    holds = [
        entry
        for entry in open_ledger(lake, key).records()
        if entry.candidate == candidate and entry.is_hold_of_person
    ]
    if not holds:
        return None
    lifted = {entry.hold for entry in open_lifted_holds(lake, key).records()}
    was_lifted = holds[-1].number in lifted or any(
        move.moved == "champion"
        and move.champion == candidate
        and move.command
        and move.when > holds[-1].when
        for move in lake.history(EXPORT, key)
    )
    return None if was_lifted else holds[-1]


def is_held_back(lake: Lake, key: PartitionKey, candidate: str) -> bool:
    """Return whether a person holds an export back."""
    return find_hold(lake, key, candidate) is not None


def find_last_decision(lake: Lake, key: PartitionKey, candidate: str) -> LedgerEntry | None:
    """Return the last decision on an export, or a person's hold if there is no decision.

    A hold does not hide a decision, because the decision may reject the export for harm. Show
    `decision_wording.describe_hold` next to the decision. A probation check that keeps the champion
    does not count as a decision. A hold that a person lifted does not count either.
    """
    for entry in reversed(open_ledger(lake, key).records()):
        is_decision = entry.decision.outcome != "keep" and not entry.is_hold_of_person
        if entry.candidate == candidate and is_decision:
            return entry
    return find_hold(lake, key, candidate)
