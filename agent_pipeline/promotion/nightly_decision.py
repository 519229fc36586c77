"""The nightly decision: compare, apply the rules, write the ledger, and move the champion.

A decision is written into the ledger before the champion moves. So if a run is killed between the
two steps, the error budget is not used twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.approval import Approver, may_promote_itself
from agent_pipeline.promotion.comparison import (
    CompareResult,
    Comparison,
    make_compare_params,
    read_comparison,
)
from agent_pipeline.promotion.decision import DecisionFacts
from agent_pipeline.promotion.decision_facts import collect_facts
from agent_pipeline.promotion.decision_identity import hash_decision_inputs, hash_tested_scores
from agent_pipeline.promotion.decision_page import write_decision_page
from agent_pipeline.promotion.decision_wording import describe_hold, summarize
from agent_pipeline.promotion.episodes_in_force import NO_WORLD, DecidingWorld
from agent_pipeline.promotion.error_budget import count_tests_before
from agent_pipeline.promotion.ledger import EXPORT, LedgerEntry, open_ledger
from agent_pipeline.promotion.mlflow_runs import Written, write_run
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.probation import run_probation_check
from agent_pipeline.promotion.rules import decide_on_candidate
from agent_pipeline.promotion.stored_scores import read_scores
from agent_pipeline.promotion.verified_verdicts import count_training_verdicts
from agent_pipeline.redaction import Redactor
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake
from agent_pipeline.storage.pointers import now, user_name

Compare = Callable[[dict[str, Any]], CompareResult]
"""A function that runs the task `compare` with the given parameters."""


@dataclass(frozen=True)
class PromotionSettings:
    """The settings for a partition's decisions.

    Attributes:
        policy: The limits of the rules.
        approve: Whether a winning candidate waits for a person.
        probation_nights: The number of nights that the probation of a new champion lasts.
        deciding_world: The world of the episodes that decisions use.
    """

    policy: PromotionPolicy
    approve: Approver
    probation_nights: int
    deciding_world: DecidingWorld = NO_WORLD


@dataclass(frozen=True)
class CandidateDecision:
    """A decision on a candidate that has been carried out.

    Attributes:
        entry: The decision's entry in the ledger.
        page: The page of the decision.
        champion: The identity of the champion after the decision.
        hold: That a person holds the candidate back, and why; empty if no person does.
    """

    entry: LedgerEntry
    page: Artifact
    champion: str | None
    hold: str = ""

    @property
    def waits_for_a_person(self) -> bool:
        """Return whether the candidate won, and a person has to promote it."""
        is_winner = self.entry.decision.outcome == "promote"
        return is_winner and not self.hold and self.champion != self.entry.candidate


@dataclass(frozen=True)
class NightlyDecision:
    """The decisions of one nightly run.

    Attributes:
        probation: The check of a champion on probation; `None` if no check was needed.
        decided: The decision on the candidate; `None` if no decision was needed.
        candidate_was_rolled_back: Whether the candidate is the champion that failed its probation
            in this run.
        mlflow: The result of writing to MLflow; `None` if MLflow is not configured.
    """

    probation: LedgerEntry | None
    decided: CandidateDecision | None
    candidate_was_rolled_back: bool
    mlflow: Written | None


@dataclass(frozen=True)
class EvaluatedCandidate:
    """A candidate and its evaluation.

    Attributes:
        export: The candidate, an export.
        evaluation: The evaluation of the candidate.
    """

    export: Artifact
    evaluation: Artifact


def decide_night(
    lake: Lake,
    key: PartitionKey,
    evaluated: EvaluatedCandidate,
    compare: Compare,
    settings: PromotionSettings,
    redactor: Redactor,
    who: str,
) -> NightlyDecision:
    """Check a champion on probation. Then decide on the candidate and record the decision.

    The decision is recorded as a page and as an MLflow run.

    There is no decision if the candidate is already the champion, or if it has just failed its
    probation.

    Args:
        lake: The lake.
        key: The partition.
        evaluated: The candidate with its evaluation.
        compare: The function that runs the task `compare`.
        settings: The partition's settings.
        redactor: The redactor that replaces private values in the data for MLflow.
        who: The run, for the ledger.

    Raises:
        DataError: As `run_probation_check`, `make_compare_params` and `decide_and_promote`.
    """
    candidate, evaluation = evaluated.export, evaluated.evaluation
    probation = None
    if settings.approve == "auto":
        probation = run_probation_check(
            lake, key, evaluation, compare, settings.policy, settings.probation_nights, who
        )
    was_rolled_back = (
        probation is not None
        and probation.decision.outcome == "roll back"
        and probation.candidate == candidate.identity
    )
    champion = lake.champion(EXPORT, key)
    is_champion = champion is not None and champion.identity == candidate.identity
    decided = None
    if not was_rolled_back and not is_champion:
        world = settings.deciding_world
        params = make_compare_params(lake, key, evaluation, candidate, champion, world)
        compared = read_comparison(lake, key, evaluation, candidate, compare(params), world)
        entry = decide_and_promote(lake, key, candidate, champion, compared, settings, who)
        page = write_decision_page(lake, key, candidate, champion, compared, entry)
        hold = describe_hold(lake, key, candidate.identity)
        decided = CandidateDecision(entry, page, lake.pointers(EXPORT, key).champion, hold)
    written = write_run(lake, key, redactor, settings.deciding_world, candidate)
    return NightlyDecision(probation, decided, was_rolled_back, written)


def decide_and_promote(
    lake: Lake,
    key: PartitionKey,
    candidate: Artifact,
    champion: Artifact | None,
    compared: Comparison,
    settings: PromotionSettings,
    who: str = "",
) -> LedgerEntry:
    """Decide on a candidate, write the decision into the ledger, and promote a winner.

    If the ledger already has a decision on this candidate against the same champion from the same
    inputs, no new decision is made. A new decision that is based on the same test as an earlier
    decision uses the error of the earlier decision again. `approval` decides which candidates wait
    for a person.

    Args:
        lake: The lake.
        key: The partition.
        candidate: The candidate, an export.
        champion: The champion, if there is one.
        compared: The artifacts of both models.
        settings: The partition's settings.
        who: The run or the user, for the ledger.

    Returns:
        The entry of this decision in the ledger, which may be from an earlier run. It is the entry
        of the decision also if a person holds the candidate back.

    Raises:
        DataError: The champion moved in the meantime, or the evaluations cannot be compared.
    """
    policy = settings.policy
    candidate_scores, baseline_scores = read_scores(
        compared.select, compared.episodes, compared.same_base
    )
    pointers = lake.pointers(EXPORT, key)
    champion_identity = champion.identity if champion else None
    if pointers.champion != champion_identity:
        raise DataError(
            f"The champion of {key} was changed by {pointers.who} at {pointers.when}, during this "
            "decision: materialize `champion` again."
        )
    verdicts = count_training_verdicts(lake, key, candidate)
    facts = collect_facts(lake, key, champion, compared, verdicts)
    evaluator = hash_decision_inputs(candidate_scores, baseline_scores, policy, facts)

    def find_earlier_entry(entries: list[LedgerEntry]) -> LedgerEntry | None:
        for entry in reversed(entries):
            same_models = (entry.candidate, entry.champion) == (
                candidate.identity,
                champion_identity,
            )
            if same_models and entry.evaluator == evaluator and not entry.is_hold_of_person:
                return entry
        return None

    def make_entry(number: int) -> LedgerEntry | None:
        entries = open_ledger(lake, key).records()
        if find_earlier_entry(entries):
            return None
        decision = decide_on_candidate(candidate_scores, baseline_scores, policy, facts)
        tested_scores = ""
        if decision.p_value is not None:
            tested_scores = hash_tested_scores(candidate_scores, baseline_scores)
        test_scores = read_scores(compared.test, (None, None), compared.same_base)
        on_test = decide_on_candidate(*test_scores, policy, DecisionFacts())
        draft = LedgerEntry(
            number=number,
            when=now(),
            who=who or user_name(),
            candidate=candidate.identity,
            champion=champion_identity,
            evaluator=evaluator,
            decision=decision,
            test=on_test.figures,
            verdicts=verdicts,
            tested_scores=tested_scores,
        )
        all_facts = msgspec.structs.replace(
            facts, earlier_decisions=count_tests_before(entries, draft)
        )
        decision = decide_on_candidate(candidate_scores, baseline_scores, policy, all_facts)
        return msgspec.structs.replace(draft, decision=decision)

    ledger = open_ledger(lake, key)
    entry = ledger.append(make_entry) or find_earlier_entry(ledger.records())
    assert entry is not None
    promotes_itself = may_promote_itself(
        lake, key, candidate, candidate_scores, verdicts, settings.approve
    )
    if entry.decision.outcome == "promote" and promotes_itself:
        lake.set_champion(
            candidate,
            why=summarize(entry.decision),
            who=entry.who,
            expected=pointers.generation,
        )
    return entry
