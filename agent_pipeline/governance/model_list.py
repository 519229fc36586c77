"""The models of the agents: the champion, the latest export and its decision, and the history."""

from collections.abc import Iterable

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decision_wording import (
    describe_hold,
    describe_outcome,
    describe_reason,
    summarize,
)
from agent_pipeline.promotion.ledger import EXPORT, find_last_decision, open_ledger
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry


class ModelSummary(msgspec.Struct, frozen=True):
    """The models of an agent.

    Attributes:
        partition: The agent's partition.
        champion: The identity of the export that is served; null if there is no champion.
        champion_since: The time (UTC) since which the champion is served.
        latest: The identity of the latest export.
        decision: The outcome of the last decision on the latest export, or `none`.
        reason: The first reason of the decision, and a person's hold.
        waits: Whether the latest export can be promoted, and waits for a person's approval.
        verdicts: The number of verdicts on the training sessions; null if it is not known.
        verified: The number of these verdicts that a person, a score or a judge gave.
        moved: What changed last: `latest` (there is a new export) or `champion` (there is a new
            champion).
        moved_at: The time (UTC) at which the latest export or the champion changed last.
        held: Whether a person holds the latest export back.
    """

    partition: str
    champion: str | None
    champion_since: str | None
    latest: str | None
    decision: str
    reason: str
    waits: bool
    verdicts: int | None
    verified: int | None
    moved: str
    moved_at: str
    held: bool = False


class ModelList(msgspec.Struct, frozen=True):
    """The models of all agents.

    Attributes:
        models: One entry per agent that has an export.
    """

    models: list[ModelSummary]


class PointerMove(msgspec.Struct, frozen=True):
    """A move of the pointer to the champion or to the latest export.

    Attributes:
        number: The number of the change, for `rollback --to`.
        when: The time (UTC).
        who: The person or the run.
        moved: What changed: `latest` (the latest export) or `champion`.
        model: The identity of the export that became the latest export or the champion.
        why: The reason.
    """

    number: int
    when: str
    who: str
    moved: str
    model: str | None
    why: str


class DecisionSummary(msgspec.Struct, frozen=True):
    """A decision on an export.

    Attributes:
        number: The number of the decision.
        when: The time (UTC).
        candidate: The identity of the export that the decision is about.
        champion: The identity of the champion that it was compared with; null for the base model.
        outcome: The outcome, such as `promote` or `reject`.
        summary: The outcome and its reasons, or the reason that a person gave.
    """

    number: int
    when: str
    candidate: str
    champion: str | None
    outcome: str
    summary: str


class ModelHistory(msgspec.Struct, frozen=True):
    """The history of an agent's models.

    Attributes:
        model: The present state.
        moves: All changes of the latest export and of the champion, the earliest first.
        decisions: The decisions, the earliest first.
    """

    model: ModelSummary
    moves: list[PointerMove]
    decisions: list[DecisionSummary]


def summarize_models(lake: Lake, key: PartitionKey, pointers: Entry) -> ModelSummary:
    """Return a summary of an agent's models.

    Args:
        lake: The lake.
        key: The agent's partition.
        pointers: The present state of the agent's pointers.
    """
    entry = find_last_decision(lake, key, pointers.latest) if pointers.latest else None
    decision = entry.decision if entry else None
    verdicts = entry.verdicts if entry else None
    hold = describe_hold(lake, key, pointers.latest) if pointers.latest else ""
    reasons = []
    if decision and decision.reasons and entry and not entry.is_hold_of_person:
        reasons.append(describe_reason(decision.reasons[0]))
    reasons += [hold] if hold else []
    return ModelSummary(
        partition=str(key),
        champion=pointers.champion,
        champion_since=find_champion_start(lake.history(EXPORT, key), pointers.champion),
        latest=pointers.latest,
        decision=describe_outcome(decision) if decision else "none",
        reason="; ".join(reasons),
        waits=bool(
            decision
            and decision.outcome == "promote"
            and not hold
            and pointers.champion != pointers.latest
        ),
        verdicts=verdicts["verdicts"] if verdicts else None,
        verified=verdicts["verified"] if verdicts else None,
        moved=pointers.moved,
        moved_at=pointers.when,
        held=bool(hold),
    )


def find_champion_start(history: Iterable[Entry], champion: str | None) -> str | None:
    """Return the time at which the champion became the champion, or None if it is not known."""
    started = None
    previous: str | None = None
    for entry in history:
        if entry.champion != previous:
            started, previous = entry.when, entry.champion
    return started if champion and previous == champion else None


def summarize_history(lake: Lake, key: PartitionKey) -> ModelHistory:
    """Return the history of an agent's models."""
    moves = [
        PointerMove(
            number=entry.generation,
            when=entry.when,
            who=entry.who,
            moved=entry.moved,
            model=entry.champion if entry.moved == "champion" else entry.latest,
            why=entry.why,
        )
        for entry in lake.history(EXPORT, key)
    ]
    decisions = [
        DecisionSummary(
            number=record.number,
            when=record.when,
            candidate=record.candidate,
            champion=record.champion,
            outcome=record.decision.outcome,
            summary=record.why or summarize(record.decision),
        )
        for record in open_ledger(lake, key).records()
    ]
    return ModelHistory(summarize_models(lake, key, lake.pointers(EXPORT, key)), moves, decisions)
