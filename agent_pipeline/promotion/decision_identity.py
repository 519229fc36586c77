"""The identity of a decision: a hash of everything that the rules decide from.

A decision in the ledger stands for the same two models until its identity changes. The rules are in
`rules`.
"""

from collections.abc import Collection

import msgspec

from agent_pipeline.evaluation.scores import Scores
from agent_pipeline.promotion.decision import DecisionFacts
from agent_pipeline.promotion.policy import PromotionPolicy
from agent_pipeline.promotion.rules import RULES_VERSION
from agent_pipeline.sessions.session import hash_json


def hash_decision_inputs(
    candidate: Scores, baseline: Scores, policy: PromotionPolicy, facts: DecisionFacts
) -> str:
    """Return a hash of all inputs of `decide_on_candidate`.

    The number of earlier decisions is left out, because every decision changes it.

    Args:
        candidate: The candidate's scores.
        baseline: The baseline's scores.
        policy: The limits of the rules.
        facts: The inputs besides the scores.
    """
    facts = msgspec.structs.replace(facts, earlier_decisions=0)
    return _hash_inputs(candidate, baseline, policy.rules(), facts)


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
