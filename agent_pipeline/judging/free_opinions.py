"""The opinions of the judges that cost nothing: labels, the source, metrics and measures.

Turning opinions into a verdict belongs to `verdict_policy`.
"""

import math
import operator
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

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

MIN_SHARE_ABOVE_1 = 0.05
"""Smallest share of values above 1 with which a scale counts as a scale that goes above 1.

A few values above 1 are a bonus, or an error in the record.
"""


@dataclass(frozen=True)
class ScoreScales:
    """The scores and metrics of an agent whose scale goes above 1.

    On a scale from 1 to 5, a value of 1 is the worst value. One session does not show this, so the
    values of all sessions are compared.

    Attributes:
        above_1: The names of the metrics, and `SCORE` if it is the score.
    """

    above_1: frozenset[str] = frozenset()

    @classmethod
    def measure(cls, scored: Iterable[tuple[float | None, Mapping[str, float]]]) -> "ScoreScales":
        """Return the scales of an agent's scores.

        Args:
            scored: The score and the metrics of each session.
        """
        counts: dict[str, int] = {}
        counts_above_1: dict[str, int] = {}
        for score, metrics in scored:
            named = metrics if score is None else {**metrics, SCORE: score}
            for name, value in named.items():
                counts[name] = counts.get(name, 0) + 1
                counts_above_1[name] = counts_above_1.get(name, 0) + (1 < value < math.inf)
        return cls(
            frozenset(
                name
                for name, count in counts_above_1.items()
                if count and count >= MIN_SHARE_ABOVE_1 * counts[name]
            )
        )


UNKNOWN_SCALES = ScoreScales()


def describe_scales(scales: ScoreScales, policy: VerdictPolicy, key: PartitionKey) -> Iterator[str]:
    """Yield sentences about scores that give no verdict because their scale goes above 1.

    Args:
        scales: The scales of the agent's scores.
        policy: The rules for scores and metrics.
        key: The agent.
    """
    if policy.score_acceptable > 1:
        return
    if SCORE in scales.above_1 and policy.has_judge("score"):
        yield (
            f"The scores of {key} go above 1, so a score of 1 may be a low one and gives no "
            "verdict: set score_acceptable and score_unacceptable on the scale of the scores."
        )
    names = sorted(
        name
        for name, rule in policy.metrics.items()
        if name in scales.above_1 and rule in ("higher", "lower")
    )
    if names and policy.has_judge("metrics"):
        yield (
            f"The metrics {', '.join(names)} of {key} go above 1, so a value of 1 gives no "
            "verdict: set a comparison in `metrics`, such as '>= 4'."
        )


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
    if score > 1 >= policy.score_acceptable:
        return Opinion(
            None,
            (
                f"{reason} is above 1: set score_acceptable and score_unacceptable to the scale "
                "of the scores"
            ),
        )
    verdict = _judge_value(score, "higher", policy, is_scale_above_1)
    if verdict is None and score >= policy.score_acceptable:
        reason += (
            " may be low, because other scores are above 1: set score_acceptable and "
            "score_unacceptable on their scale"
        )
    return Opinion(verdict, reason)


def _judge_value(
    value: float, rule: str, policy: VerdictPolicy, is_scale_above_1: bool
) -> Verdict | None:
    """Return the verdict that follows from one metric's value.

    There is no verdict if the value is between the two thresholds, above their scale, or not a
    number.

    Args:
        value: The value.
        rule: The direction of the metric, or a comparison.
        policy: The thresholds.
        is_scale_above_1: Whether other sessions have values above 1.
    """
    if not math.isfinite(value):
        return None
    comparison = COMPARISON.fullmatch(rule)
    if comparison:
        holds = _OPERATORS[comparison[1]](value, float(comparison[2]))
        return "acceptable" if holds else "unacceptable"
    is_high = value >= policy.score_acceptable
    if is_high and policy.score_acceptable <= 1 and (value > 1 or is_scale_above_1):
        return None  # 1 or 2 of 5 is not on a scale from 0 to 1, so a verdict would be a guess
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
    opinions = {
        name: Opinion(_judge_value(value, policy.metrics[name], policy, name in scales.above_1))
        for name, value in values.items()
    }
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
