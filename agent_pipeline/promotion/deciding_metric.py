"""The deciding metric: how often a model does the right thing, with and without a call.

The metric is the mean of two shares. The first is the share of turns with an expected call at which
the model makes exactly the right call. The second is the share of turns without an expected call at
which the model answers rightly without a call. A model that always calls, or never calls, reaches
at most one half. The figures that must not become worse are in `rules`.
"""

from collections.abc import Collection

from agent_pipeline.evaluation.paired import Difference, paired
from agent_pipeline.evaluation.scores import Scores

METRIC_VERSION = 1
"""The version of the deciding metric and of its test. Raise it if the same answers may lead to
another p-value, so that the test counts as a new test of the year.
"""


def measure_gain(
    candidate: Scores, baseline: Scores, tasks: Collection[str] | None = None
) -> Difference | None:
    """Return the candidate's gain over the baseline in the deciding metric, computed over tasks.

    Args:
        candidate: The candidate's scores.
        baseline: The scores of the champion or the base model on the same turns.
        tasks: The tasks to measure on; `None` for all tasks.

    Returns:
        The difference, or `None` if there are no turns.
    """
    turn_pairs = [
        (candidate_turn, baseline_turn)
        for candidate_turn, baseline_turn in zip(candidate.turns, baseline.turns, strict=True)
        if tasks is None or candidate_turn.task in tasks
    ]
    return paired(
        [candidate_turn.task for candidate_turn, _ in turn_pairs],
        [float(candidate_turn.right) for candidate_turn, _ in turn_pairs],
        [float(baseline_turn.right) for _, baseline_turn in turn_pairs],
        groups=[str(candidate_turn.expects_call) for candidate_turn, _ in turn_pairs],
        shares=True,
    )


def measure_model(scores: Scores, tasks: Collection[str] | None = None) -> float:
    """Return the deciding metric of one model, on all tasks or only on the given tasks."""
    turns = [turn for turn in scores.turns if tasks is None or turn.task in tasks]
    shares = []
    for expects_call in (True, False):
        right = [turn.right for turn in turns if turn.expects_call == expects_call]
        if right:
            shares.append(sum(right) / len(right))
    return sum(shares) / len(shares)
