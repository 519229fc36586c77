"""Probation: a champion that promoted itself is watched for some nights, beside the champion before it, on tasks that came after both.

A look that contradicts the promotion is written into the ledger before the champion moves: a run that is killed between the two is ended
by the next one. A look spends of the year's budget of error as a decision does.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from agent_pipeline.evaluation.scores import Policy
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.decide import adapter_of_export, facts_since, scores
from agent_pipeline.promotion.ledger import EXPORT, Record, ledger, spent_in_year
from agent_pipeline.promotion.report import summary
from agent_pipeline.promotion.rules import MOST_TURNED, watch
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry, now


def promoted_by_itself(lake: Lake, key: PartitionKey) -> tuple[Artifact, Artifact, Entry] | None:
    """The champion, if a decision promoted it in place of another, and not a person; the other, and the entry of the history."""
    moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
    if not moves:
        return None
    promoted = (moves[-1].champion, moves[-1].against, moves[-1].who, "promote")
    by_itself = any(
        (each.candidate, each.champion, each.who, each.decision.outcome) == promoted
        for each in ledger(lake, key).records()
    )
    found = (
        [lake.find_undamaged(EXPORT, key, identity) for identity in promoted[:2] if identity]
        if by_itself
        else []
    )
    return (found[0], found[1], moves[-1]) if len(found) == 2 and found[0] and found[1] else None


def look(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    compare: Callable[[dict[str, Any]], dict[str, Any]],
    policy: Policy,
    nights: int,
    who: str,
) -> Record | None:
    """Look at a champion on probation by the task `compare`, and roll it back where the newer tasks contradict its promotion.

    `None` where no champion is on probation, where too few newer tasks came, or where these were looked at before; and where the verdicts
    turned that it was trained on, since they choose the newer tasks as well.

    Raises:
        DataError: the champion moved meanwhile, or an adapter is gone.
    """
    generation, watched = lake.pointers(EXPORT, key).generation, promoted_by_itself(lake, key)
    if watched is None:
        return None
    promoted, replaced, entry = watched
    pair = (promoted.identity, replaced.identity)

    def rolled_back() -> Record | None:
        records = ledger(lake, key).records()
        return next(
            (
                each
                for each in records
                if (each.candidate, each.champion) == pair and each.decision.outcome == "roll back"
            ),
            None,
        )

    record = rolled_back()  # a run was killed before the champion moved
    age = datetime.fromisoformat(now()) - datetime.fromisoformat(entry.when)
    facts = (
        facts_since(lake, key, promoted)
        if record is None and age <= timedelta(days=nights)
        else None
    )
    if facts and facts.turned <= MOST_TURNED and len(facts.newer) >= policy.confirm_tasks:
        adapters = [adapter_of_export(lake, key, each).reference for each in (promoted, replaced)]
        config = evaluation.manifest["made_from"]["config"]
        result = compare(
            {
                "candidate": adapters[0],
                "champion": adapters[1],
                "evaluation": config,
                "play": None,
                "watch": True,
            }
        )
        evaluations = [
            lake.find_undamaged("evaluation", key, result[name]) if result[name] else None
            for name in ("candidate", "champion")
        ]
        champion, before = scores(
            (evaluations[0], evaluations[1]), (None, None), result["same_base"]
        )
        evaluator = hash_json(
            ["probation", champion.evaluator, sorted(facts.newer), policy.rules()]
        )

        def made(number: int) -> Record | None:
            records = ledger(lake, key).records()
            decision = watch(champion, before, facts.newer, policy, spent_in_year(records, now()))
            if decision.p is None or any(
                (each.candidate, each.champion, each.evaluator) == (*pair, evaluator)
                for each in records
            ):
                return None
            return Record(
                number=number,
                when=now(),
                who=who,
                candidate=pair[0],
                champion=pair[1],
                evaluator=evaluator,
                decision=decision,
            )

        record = ledger(lake, key).append(made)
    if record and record.decision.outcome == "roll back":
        lake.set_champion(replaced, why=summary(record.decision), who=who, expected=generation)
    return record
