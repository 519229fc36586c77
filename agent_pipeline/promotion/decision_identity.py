"""The identity of a decision, and of the statistical test that the decision is based on.

A decision in the ledger stands for the same two models until its identity changes. A new decision
may be based on the same test as an earlier decision. Only a new test uses the yearly error budget
(`error_budget`). The rules are in `rules`.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence

import msgspec

from agent_pipeline.evaluation.scores import Scores
from agent_pipeline.promotion.deciding_metric import METRIC_VERSION
from agent_pipeline.promotion.decision import DecisionFacts, SanityAnswer
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import RULES_VERSION
from agent_pipeline.sessions.session import hash_json


def hash_decision_inputs(
    candidate: Scores, baseline: Scores, policy: PromotionPolicy, facts: DecisionFacts
) -> str:
    """Return a hash of all inputs that `decide_on_candidate` uses.

    The number of earlier decisions is left out, because every decision changes it. The names and
    the texts of sanity questions are left out, because the rules use only which answers are good.

    Args:
        candidate: The candidate's scores.
        baseline: The baseline's scores.
        policy: The limits of the rules.
        facts: The inputs besides the scores.
    """
    other_facts = msgspec.structs.replace(facts, earlier_decisions=0, sanity_answers=())
    sanity_answers = _list_used_answers(facts.sanity_answers)
    return _hash_inputs(candidate, baseline, policy.rules(), other_facts, sanity_answers)


def _list_used_answers(answers: Sequence[SanityAnswer]) -> list[tuple[str, list[list[bool]]]]:
    """Return the group of every sanity question, and which of its answers are good."""
    answers_by_question: dict[tuple[str, str], list[list[bool]]] = defaultdict(list)
    for answer in answers:
        good_answers = [answer.base, answer.candidate]
        answers_by_question[answer.group, answer.question].append(good_answers)
    return sorted((group, sorted(pairs)) for (group, _), pairs in answers_by_question.items())


def hash_tested_scores(
    candidate: Scores, baseline: Scores, tasks: Collection[str] | None = None
) -> str:
    """Return a hash of the scores from which the p-value of a gain is computed.

    Decisions with the same hash on the same two models are based on the same test.

    Args:
        candidate: The candidate's scores.
        baseline: The baseline's scores on the same turns.
        tasks: The tasks of the test; `None` for all tasks.
    """
    turns = [
        [new.turn, new.task, new.expects_call, new.right, old.right]
        for new, old in zip(candidate.turns, baseline.turns, strict=True)
        if tasks is None or new.task in tasks
    ]
    return hash_json([METRIC_VERSION, sorted(turns)])


def hash_probation_inputs(
    champion: Scores, previous: Scores, newer_tasks: Collection[str], policy: PromotionPolicy
) -> str:
    """Return a hash of all inputs of `check_probation`, without the number of earlier decisions.

    Args:
        champion: The scores of the champion on probation.
        previous: The scores of the previous champion.
        newer_tasks: The tasks that are newer than the training of both models.
        policy: The limits of the rules.
    """
    return _hash_inputs("probation", champion, previous, set(newer_tasks), policy.rules())


def _hash_inputs(*inputs: object) -> str:
    return hash_json(
        [RULES_VERSION, *(msgspec.to_builtins(value, order="sorted") for value in inputs)]
    )
