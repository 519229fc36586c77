"""The opinions of the judges that cost nothing: labels, the source, metrics and measures.

Turning opinions into a verdict belongs to `verdict_policy`.
"""

import math
import operator
from collections.abc import Mapping

from agent_pipeline.judging.labels import VERDICTS, Label, Verdict
from agent_pipeline.judging.measures import MeasureResult
from agent_pipeline.judging.verdict_policy import (
    COMPARISON,
    Opinion,
    VerdictPolicy,
    find_group_verdict,
)
from agent_pipeline.sessions.session import Session

_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


def collect_opinions(
    session: Session,
    results: Mapping[str, MeasureResult],
    policy: VerdictPolicy,
    label: Label | None,
) -> dict[str, Opinion]:
    """Return the opinions of all judges that do not cost money, by judge.

    Args:
        session: The session.
        results: The results of the measures, by name.
        policy: The rules for scores and metrics.
        label: A person's label of the session.
    """
    opinions: dict[str, Opinion] = {}
    if label:
        opinions["label"] = Opinion(label.judgment, label.reason)
    judgment = VERDICTS.get(session.judgment)
    if judgment:
        opinions["judgment"] = Opinion(judgment)
    if session.score is not None:
        opinions["score"] = _judge_score(session.score, policy)
    declared = {name: session.scores[name] for name in policy.metrics if name in session.scores}
    if declared:
        opinions["metrics"] = _judge_metrics(declared, policy)
    if results:
        opinions["measures"] = _judge_measures(results)
    return opinions


def _judge_score(score: float, policy: VerdictPolicy) -> Opinion:
    if not math.isfinite(score):
        return Opinion(None, f"the score {score} is not a finite number")
    reason = f"score {score:.4g}"
    if score > 1 >= policy.score_acceptable:
        return Opinion(
            None, f"{reason} is above 1: set score_acceptable and score_unacceptable on its scale"
        )
    return Opinion(_judge_value(score, "higher", policy), reason)


def _judge_value(value: float, rule: str, policy: VerdictPolicy) -> Verdict | None:
    """Return the verdict that follows from one metric's value.

    There is no verdict if the value is between the two thresholds, above their scale, or not a
    number.
    """
    if not math.isfinite(value):
        return None
    comparison = COMPARISON.fullmatch(rule)
    if comparison:
        holds = _OPERATORS[comparison[1]](value, float(comparison[2]))
        return "acceptable" if holds else "unacceptable"
    if value > 1 >= policy.score_acceptable:
        return None  # 2 of 5 is above a scale from 0 to 1, so a good verdict would be a guess
    is_high = value >= policy.score_acceptable
    is_low = value <= policy.score_unacceptable
    is_good, is_bad = (is_high, is_low) if rule == "higher" else (is_low, is_high)
    if is_good:
        return "acceptable"
    return "unacceptable" if is_bad else None


def _judge_metrics(values: Mapping[str, float], policy: VerdictPolicy) -> Opinion:
    """Return the opinion that follows from the declared metrics.

    The verdict is `unacceptable` if any declared metric gives it, and `acceptable` if all of them
    do.
    """
    opinions = {
        name: Opinion(_judge_value(value, policy.metrics[name], policy))
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
        return Opinion(None, f"not taken: {', '.join(not_taken)}")
    if not votes:
        return Opinion(None, "no measure passes or fails")
    return Opinion("acceptable", f"passed {', '.join(votes)}", ", ".join(votes))
