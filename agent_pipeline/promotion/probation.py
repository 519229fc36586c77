"""Probation: an automatically promoted champion is compared with the previous champion.

A probation lasts for some nights. The two models are compared on the tasks that are newer than the
training of both. If a check contradicts the promotion, it is written into the ledger before the
champion moves. So if a rollback is killed between the two steps, the next run completes it. A check
uses the yearly error budget, like a decision.

The sessions of production may contradict the promotion too (`production`), as long as the champion
is served.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec

from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.comparison import CompareResult, adapter_of_export
from agent_pipeline.promotion.decision import Decision, DecisionReason, ReasonKind
from agent_pipeline.promotion.decision_facts import collect_facts_since
from agent_pipeline.promotion.decision_identity import hash_probation_inputs, hash_tested_scores
from agent_pipeline.promotion.decision_wording import summarize
from agent_pipeline.promotion.error_budget import count_tests_before
from agent_pipeline.promotion.ledger import EXPORT, LedgerEntry, open_ledger
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.production import ProductionReport
from agent_pipeline.promotion.rules import MAX_SHARE_TURNED_BAD, check_probation
from agent_pipeline.promotion.stored_scores import read_scores
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import Entry, now


@dataclass(frozen=True)
class SelfPromotion:
    """A promotion that a decision made without a person.

    Attributes:
        champion: The export that was promoted.
        previous: The export that was the champion before.
        when: The time of the promotion (ISO 8601).
    """

    champion: Artifact
    previous: Artifact
    when: str


def find_self_promotion(lake: Lake, key: PartitionKey) -> SelfPromotion | None:
    """Return the promotion of the current champion, if a decision and not a person promoted it.

    Returns:
        The promotion; `None` if a person moved the champion, if there was no champion before, or if
        one of the two exports does not exist anymore.
    """
    moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
    if not moves:
        return None
    last_move = moves[-1]
    if not last_move.champion or not last_move.against or not _is_in_ledger(lake, key, last_move):
        return None
    champion = lake.find_undamaged(EXPORT, key, last_move.champion)
    previous = lake.find_undamaged(EXPORT, key, last_move.against)
    if not champion or not previous:
        return None
    return SelfPromotion(champion, previous, last_move.when)


def is_first_self_promotion(lake: Lake, key: PartitionKey) -> bool:
    """Return whether the current champion is the first one, and a decision promoted it."""
    moves = [entry for entry in lake.history(EXPORT, key) if entry.moved == "champion"]
    return len(moves) == 1 and _is_in_ledger(lake, key, moves[0])


def _is_in_ledger(lake: Lake, key: PartitionKey, move: Entry) -> bool:
    """Return whether a decision made a move of the champion."""
    return any(
        entry.candidate == move.champion
        and entry.champion == move.against
        and entry.who == move.who
        and entry.decision.outcome == "promote"
        for entry in open_ledger(lake, key).records()
    )


def run_probation_check(
    lake: Lake,
    key: PartitionKey,
    evaluation: Artifact,
    compare: Callable[[dict[str, object]], CompareResult],
    policy: PromotionPolicy,
    nights: int,
    who: str,
) -> LedgerEntry | None:
    """Compare a champion on probation with the previous champion, which is restored if needed.

    Args:
        lake: The lake.
        key: The partition.
        evaluation: An evaluation whose settings are used.
        compare: The function that runs the task `compare`.
        policy: The limits of the rules.
        nights: The number of nights that a probation lasts.
        who: The run, for the ledger.

    Returns:
        The check; `None` if no champion is on probation, or if there is nothing new to check. There
        is nothing new if there are too few newer tasks, or if the newer tasks were checked before.
        There is no check either if too many verdicts changed, because verdicts choose the newer
        tasks.

    Raises:
        DataError: The champion moved in the meantime, or an adapter does not exist anymore.
    """
    generation = lake.pointers(EXPORT, key).generation
    promotion = find_self_promotion(lake, key)
    if promotion is None:
        return None
    entry = _find_rollback(lake, key, promotion)  # a killed run may have left it
    age = datetime.fromisoformat(now()) - datetime.fromisoformat(promotion.when)
    if entry is None and age <= timedelta(days=nights):
        facts = collect_facts_since(lake, key, promotion.champion)
        verdicts_hold = facts.share_turned_bad <= MAX_SHARE_TURNED_BAD
        if verdicts_hold and len(facts.newer_tasks) >= policy.confirm_tasks:
            params = {
                "candidate": adapter_of_export(lake, key, promotion.champion).reference,
                "champion": adapter_of_export(lake, key, promotion.previous).reference,
                "evaluation": evaluation.manifest["made_from"]["config"],
                "play": None,
                "watch": True,
            }
            result = compare(params)
            entry = _write_check(
                lake, key, promotion, result, policy, sorted(facts.newer_tasks), who
            )
    if entry and entry.decision.outcome == "roll back":
        lake.set_champion(
            promotion.previous, why=summarize(entry.decision), who=who, expected=generation
        )
    return entry


def roll_back_worse_champion(
    lake: Lake, key: PartitionKey, report: ProductionReport, who: str
) -> LedgerEntry | None:
    """Restore the previous champion if the champion is shown to be worse in production.

    The rollback is written into the ledger before the champion moves, as in `run_probation_check`.
    The sequential test has an error rate of its own, so the rollback uses no yearly error budget.

    Args:
        lake: The lake.
        key: The partition.
        report: The report of the asset `production`.
        who: The run, for the ledger.

    Returns:
        The rollback; `None` if the champion is not shown to be worse, if a person promoted it, or
        if there is no previous champion.

    Raises:
        DataError: The champion moved in the meantime.
    """
    generation = lake.pointers(EXPORT, key).generation
    promotion = find_self_promotion(lake, key)
    if promotion is None or promotion.champion.identity != report.champion:
        return None
    entry = _find_rollback(lake, key, promotion)  # a killed run may have left it
    if entry is None and not report.worse_than:
        return None
    if entry is None:
        entry = _write_rollback(lake, key, promotion, report, who)
    lake.set_champion(
        promotion.previous, why=summarize(entry.decision), who=who, expected=generation
    )
    return entry


def _write_rollback(
    lake: Lake, key: PartitionKey, promotion: SelfPromotion, report: ProductionReport, who: str
) -> LedgerEntry:
    """Write into the ledger that production shows the champion to be worse."""
    reasons = [
        DecisionReason(
            ReasonKind.WORSE_IN_PRODUCTION,
            comparison.rival,
            "roll back",
            comparison.champion_share.value,
            comparison.rival_share.value,
            comparison.margin,
        )
        for comparison in report.worse_than
    ]
    decision = Decision(
        outcome="roll back",
        p_value=None,
        allowed_error=report.worse_than[0].allowed_error,
        more_tasks=0,
        figures=(),
        reasons=tuple(reasons),
    )

    def make_entry(number: int) -> LedgerEntry:
        return LedgerEntry(
            number=number,
            when=now(),
            who=who,
            candidate=promotion.champion.identity,
            champion=promotion.previous.identity,
            evaluator="production",
            decision=decision,
        )

    entry = open_ledger(lake, key).append(make_entry)
    assert entry is not None  # `make_entry` always returns an entry
    return entry


def _find_rollback(lake: Lake, key: PartitionKey, promotion: SelfPromotion) -> LedgerEntry | None:
    """Return the check in the ledger that contradicts a promotion."""
    for entry in open_ledger(lake, key).records():
        same_models = (entry.candidate, entry.champion) == (
            promotion.champion.identity,
            promotion.previous.identity,
        )
        if same_models and entry.decision.outcome == "roll back":
            return entry
    return None


def _write_check(
    lake: Lake,
    key: PartitionKey,
    promotion: SelfPromotion,
    result: CompareResult,
    policy: PromotionPolicy,
    newer_tasks: list[str],
    who: str,
) -> LedgerEntry | None:
    """Check a promotion with both models' scores, and write the check into the ledger.

    Args:
        lake: The lake.
        key: The partition.
        promotion: The promotion to check.
        result: The result of the task `compare`.
        policy: The limits of the rules.
        newer_tasks: The tasks that are newer than the training of both models, sorted.
        who: The run, for the ledger.

    Returns:
        The entry; `None` if nothing could be tested, or if the same check is in the ledger.
    """
    champion_identity = promotion.champion.identity
    previous_identity = promotion.previous.identity
    champion_evaluation = (
        lake.find_undamaged("evaluation", key, result["candidate"]) if result["candidate"] else None
    )
    previous_evaluation = (
        lake.find_undamaged("evaluation", key, result["champion"]) if result["champion"] else None
    )
    champion_scores, previous_scores = read_scores(
        (champion_evaluation, previous_evaluation), (None, None), result["same_base"]
    )
    evaluator = hash_probation_inputs(champion_scores, previous_scores, newer_tasks, policy)

    def make_entry(number: int) -> LedgerEntry | None:
        entries = open_ledger(lake, key).records()
        was_checked = any(
            (entry.candidate, entry.champion, entry.evaluator)
            == (champion_identity, previous_identity, evaluator)
            for entry in entries
        )
        decision = check_probation(champion_scores, previous_scores, newer_tasks, policy, 0)
        if decision.p_value is None or was_checked:
            return None
        draft = LedgerEntry(
            number=number,
            when=now(),
            who=who,
            candidate=champion_identity,
            champion=previous_identity,
            evaluator=evaluator,
            decision=decision,
            tested_scores=hash_tested_scores(champion_scores, previous_scores, newer_tasks),
        )
        earlier_tests = count_tests_before(entries, draft)
        decision = check_probation(
            champion_scores, previous_scores, newer_tasks, policy, earlier_tests
        )
        return msgspec.structs.replace(draft, decision=decision)

    return open_ledger(lake, key).append(make_entry)
