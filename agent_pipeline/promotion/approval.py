"""The approval of promotions: whether only a person may promote a candidate.

A person can promote any export with `agent-pipeline promote` or the job `promote`. This module
decides when a winning candidate becomes the champion without a person.
"""

from typing import Literal

from agent_pipeline.datasets.verdicts import VerdictCounts
from agent_pipeline.evaluation.scores import Scores
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import export_named
from agent_pipeline.promotion.decision import Decision, DecisionReason, ReasonKind
from agent_pipeline.promotion.ledger import (
    EXPORT,
    LedgerEntry,
    find_last_decision,
    is_held_back,
    open_ledger,
)
from agent_pipeline.promotion.rules import count_unmeasured_harm
from agent_pipeline.promotion.verified_verdicts import is_verified
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import now, user_name

Approver = Literal["auto", "person"]
"""The setting `champion.approve`: with `auto`, a winning candidate is promoted; with `person`, it
waits for a person.
"""


def may_promote_itself(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    scores: Scores,
    verdicts: VerdictCounts,
    approve: Approver,
) -> bool:
    """Return whether a candidate that won becomes the champion without a person's approval.

    Args:
        lake: The lake.
        key: The partition.
        candidate: The candidate, an export.
        scores: The candidate's scores.
        verdicts: The verdicts on the candidate's training sessions.
        approve: The setting `champion.approve`.
    """
    return approve == "auto" and not needs_a_person(lake, key, candidate, scores, verdicts)


def needs_a_person(
    lake: Lake, key: PartitionKey, candidate: Artifact, scores: Scores, verdicts: VerdictCounts
) -> bool:
    """Return whether only a person may promote a candidate.

    Each of these reasons is enough:

    - Nobody verified one of the candidate's training sessions. The rules hold such a candidate
      back, but decisions of older versions in the ledger did not check this.
    - The candidate was the champion before. The next run must not undo a rollback.
    - A person holds the candidate back.
    - The candidate's harm was not measured: it played no episode in a world, or the world does not
      report for every episode whether the model did harm.
    - The replayed world left out a held-out task, so the candidate's harm there is not known.

    Args:
        lake: The lake.
        key: The partition.
        candidate: The candidate, an export.
        scores: The candidate's scores.
        verdicts: The verdicts on the candidate's training sessions.
    """
    was_champion = any(entry.champion == candidate.identity for entry in lake.history(EXPORT, key))
    return (
        not is_verified(verdicts)
        or was_champion
        or is_held_back(lake, key, candidate.identity)
        or not scores.episodes
        or count_unmeasured_harm(scores.episodes) > 0
        or bool(scores.not_played)
    )


def hold_back(lake: Lake, key: PartitionKey, identity: str = "", why: str = "") -> LedgerEntry:
    """Record in the ledger that a person holds back an export from automatic promotion.

    The hold counts until a person promotes the export, whatever later decisions say.

    Args:
        lake: The lake.
        key: The partition.
        identity: The first digits of the identity of the export or of its adapter; empty for the
            latest export.
        why: The person's reason.

    Raises:
        DataError: There is no such export.
    """
    export = export_named(lake, key, identity) if identity else lake.latest(EXPORT, key)
    last_entry = find_last_decision(lake, key, export.identity)
    held = Decision(
        outcome="hold",
        p_value=None,
        allowed_error=0.0,
        more_tasks=0,
        figures=(),
        reasons=(DecisionReason(ReasonKind.HELD_BY_PERSON, "person", "hold"),),
    )

    def make_entry(number: int) -> LedgerEntry:
        return LedgerEntry(
            number=number,
            when=now(),
            who=user_name(),
            candidate=export.identity,
            champion=last_entry.champion if last_entry else None,
            evaluator="",
            decision=held,
            why=why,
        )

    entry = open_ledger(lake, key).append(make_entry)
    assert entry is not None  # `make_entry` always returns an entry
    return entry
