"""The opinions of the judges that cost nothing: labels, the source, metrics and measures.

Turning opinions into a verdict belongs to `verdict_policy`.
"""

import math
import operator
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from agent_pipeline.judging.labels import VERDICTS, Label, Verdict
from agent_pipeline.judging.measures import MeasureResult
from agent_pipeline.judging.verdict_policy import (
    COMPARISON,
    Opinion,
    VerdictPolicy,
    find_group_verdict,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}

SCORE = ""
"""The name of the session's score among the names of metrics."""

_TOLERANCE = 1e-6
"""Largest rounding error of a score: 1.0000000000000002 is a score of 1."""

MIN_COUNT_ABOVE_1 = 3
"""Smallest number of values of 2 or more that show a scale that goes above 1, such as 1 to 5."""

MIN_SHARE_ABOVE_1 = 0.05
"""Smallest share of values of 2 or more that shows a scale that goes above 1, such as 1 to 5."""


@dataclass(frozen=True)
class ScoreScales:
    """The scores and metrics of an agent whose scale goes above 1.

    On a scale from 1 to 5, a value of 1 is the worst value. One session does not show this, so the
    values of all sessions are compared. A score from 0 to 1 may have a bonus, such as 1.2. So only
    values from 2 show a scale that goes above 1. If no value is below 1, one such value is enough.
    Otherwise, several are needed, and more than there are values between 0 and 1.

    Attributes:
        above_1: The names of the metrics, and `SCORE` if it is the score.
        counts_above_1: Number of values above 1, by name. Names without such values are left out.
    """

    above_1: frozenset[str] = frozenset()
    counts_above_1: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def measure(cls, scored: Iterable[tuple[float | None, Mapping[str, float]]]) -> "ScoreScales":
        """Return the scales of an agent's scores.

        Args:
            scored: The score and the metrics of each session.
        """
        values_by_name: defaultdict[str, array[float]] = defaultdict(lambda: array("d"))
        for score, metrics in scored:
            if score is not None:
                values_by_name[SCORE].append(score)
            for name, value in metrics.items():
                values_by_name[name].append(value)
        above_1: set[str] = set()
        counts_above_1: dict[str, int] = {}
        for name, stored_values in values_by_name.items():
            values = np.frombuffer(stored_values)
            values = values[np.isfinite(values)]
            count_above = int(np.count_nonzero(values > 1 + _TOLERANCE))
            if not count_above:
                continue
            counts_above_1[name] = count_above
            count_from_2 = int(np.count_nonzero(values >= 2 - _TOLERANCE))
            is_between = (values > _TOLERANCE) & (values < 1 - _TOLERANCE)
            count_between = int(np.count_nonzero(is_between))
            least = max(MIN_COUNT_ABOVE_1, MIN_SHARE_ABOVE_1 * len(values), count_between + 1)
            if values.min() >= 1 - _TOLERANCE:
                least = 1
            if count_from_2 >= least:
                above_1.add(name)
        return cls(frozenset(above_1), counts_above_1)

    def change_verdicts(self, policy: VerdictPolicy) -> bool:
        """Return whether the opinions on sessions may differ from those with unknown scales."""
        return not self.above_1.isdisjoint(_list_judged(policy))


UNKNOWN_SCALES = ScoreScales()


def _list_judged(policy: VerdictPolicy) -> list[str]:
    """Return `SCORE` and the names of the metrics that are compared with the thresholds."""
    directed = [name for name, rule in policy.metrics.items() if rule in ("higher", "lower")]
    return [SCORE, *sorted(directed)]


def describe_scales(scales: ScoreScales, policy: VerdictPolicy, key: PartitionKey) -> Iterator[str]:
    """Yield sentences about scores and metrics with values above 1.

    Args:
        scales: The scales of the agent's scores.
        policy: The rules for scores and metrics.
        key: The agent.
    """
    judged = [
        name
        for name in _list_judged(policy)
        if policy.has_judge("metrics" if name else "score") and name in scales.counts_above_1
    ]
    if policy.has_limits_below_1 and SCORE in judged and SCORE in scales.above_1:
        yield (
            f"{_count_values(SCORE, scales)} of {key} are above 1, so a score of 1 may be a low "
            f"one, and score_acceptable is {policy.score_acceptable:g}: check that "
            "score_acceptable and score_unacceptable are on the scale of the scores."
        )
    if not (policy.has_default_acceptable or policy.has_limits_below_1):
        return
    if policy.has_default_acceptable and SCORE in judged and SCORE in scales.above_1:
        yield (
            f"The scores of {key} go above 1, so a score of 1 may be a low one and gives no "
            "verdict: set score_acceptable and score_unacceptable on the scale of the scores."
        )
    names = [name for name in judged if name and name in scales.above_1]
    if names:
        yield (
            f"The metrics {', '.join(names)} of {key} go above 1, so a value of 1 gives no "
            "verdict: set a comparison in `metrics`, such as '>= 4'."
        )
    few = [_count_values(name, scales) for name in judged if name not in scales.above_1]
    if few and policy.has_default_acceptable:
        yield (
            f"{', '.join(few)} of {key} are above 1 and give no verdict, and a value of 1 counts "
            "as the highest: if values above 1 are high values too, set score_acceptable = 1; if "
            "1 is a low value, set both limits on the scale of the values."
        )


def _count_values(name: str, scales: ScoreScales) -> str:
    """Return the number of values above 1 in words."""
    count = scales.counts_above_1[name]
    return f"{count} values of the metric {name}" if name else f"{count} scores"


def collect_opinions(
    session: Session,
    results: Mapping[str, MeasureResult],
    policy: VerdictPolicy,
    label: Label | None,
    scales: ScoreScales = UNKNOWN_SCALES,
) -> dict[str, Opinion]:
    """Return the opinions of all judges that do not cost money, by judge.

    Args:
        session: The session.
        results: The results of the measures, by name.
        policy: The rules for scores and metrics.
        label: A person's label of the session.
        scales: The scales of the agent's scores.
    """
    opinions: dict[str, Opinion] = {}
    if label:
        opinions["label"] = Opinion(label.judgment, label.reason)
    judgment = VERDICTS.get(session.judgment)
    if judgment:
        opinions["judgment"] = Opinion(judgment)
    if session.score is not None:
        opinions["score"] = _judge_score(session.score, policy, SCORE in scales.above_1)
    declared = {name: session.scores[name] for name in policy.metrics if name in session.scores}
    if declared:
        opinions["metrics"] = _judge_metrics(declared, policy, scales)
    if results:
        opinions["measures"] = _judge_measures(results)
    return opinions


def _judge_score(score: float, policy: VerdictPolicy, is_scale_above_1: bool) -> Opinion:
    if not math.isfinite(score):
        return Opinion(None, f"the score {score} is not a finite number")
    reason = f"score {score:.4g}"
    if score > 1 + _TOLERANCE and policy.has_default_acceptable:
        return Opinion(
            None,
            (
                f"{reason} is above 1: set score_acceptable and score_unacceptable to the scale "
                "of the scores"
            ),
        )
    is_guess = policy.has_default_acceptable and is_scale_above_1
    verdict = _judge_value(score, "higher", policy, is_guess)
    if verdict is None and score >= policy.score_acceptable:
        reason += (
            " may be low, because other scores are above 1: set score_acceptable and "
            "score_unacceptable on their scale"
        )
    return Opinion(verdict, reason)


def _judge_value(value: float, rule: str, policy: VerdictPolicy, is_guess: bool) -> Verdict | None:
    """Return the verdict that follows from one metric's value.

    There is no verdict if the value is between the two thresholds, or not a number.

    Args:
        value: The value.
        rule: The direction of the metric, or a comparison.
        policy: The thresholds.
        is_guess: Whether a high value gives no verdict, because its scale may go above 1.
    """
    if not math.isfinite(value):
        return None
    comparison = COMPARISON.fullmatch(rule)
    if comparison:
        holds = _OPERATORS[comparison[1]](value, float(comparison[2]))
        return "acceptable" if holds else "unacceptable"
    is_high = value >= policy.score_acceptable
    if is_high and is_guess:
        return None  # 1 or 2 of 5 is not on a scale from 0 to 1
    is_low = value <= policy.score_unacceptable
    is_good, is_bad = (is_high, is_low) if rule == "higher" else (is_low, is_high)
    if is_good:
        return "acceptable"
    return "unacceptable" if is_bad else None


def _judge_metrics(
    values: Mapping[str, float], policy: VerdictPolicy, scales: ScoreScales
) -> Opinion:
    """Return the opinion that follows from the declared metrics.

    The verdict is `unacceptable` if any declared metric gives it, and `acceptable` if all of them
    do.
    """
    opinions = {}
    for name, value in values.items():
        is_above_1 = name in scales.above_1
        is_guess = (is_above_1 and policy.has_limits_below_1) or (
            policy.has_default_acceptable and (is_above_1 or value > 1 + _TOLERANCE)
        )
        opinions[name] = Opinion(_judge_value(value, policy.metrics[name], policy, is_guess))
    verdict = find_group_verdict(list(opinions), opinions)
    deciding: list[str] = []
    if verdict:
        deciding = sorted(name for name in opinions if opinions[name].verdict == verdict)
    reason = ", ".join(
        f"{name} {value:.4g} ({policy.metrics[name]})" for name, value in sorted(values.items())
    )
    return Opinion(verdict, reason, ", ".join(deciding))


def _judge_measures(results: Mapping[str, MeasureResult]) -> Opinion:
    """Return the opinion that follows from the measures.

    The verdict is `unacceptable` if a measure failed, and `acceptable` if all measures passed. A
    score without a threshold does not count.
    """
    votes = {
        name: result
        for name, result in results.items()
        if result.passed is not None or result.score is None
    }
    failed = {name: result.reason for name, result in votes.items() if result.passed is False}
    if failed:
        described = [f"{name} ({reason})" if reason else name for name, reason in failed.items()]
        return Opinion("unacceptable", f"failed {', '.join(described)}", ", ".join(failed))
    not_taken = [name for name, result in votes.items() if result.passed is None]
    if not_taken:
        return Opinion(None, f"no result: {', '.join(not_taken)}")
    if not votes:
        return Opinion(None, "no measure has a result")
    return Opinion("acceptable", f"passed {', '.join(votes)}", ", ".join(votes))
