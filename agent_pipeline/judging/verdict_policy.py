"""The rules that combine the opinions of judges into one verdict per session.

Every judge (a person's label, the source's own judgment or score, metrics with a declared
direction, measures, a language model) has an opinion of a session, or none. The first judge in the
policy's order that has an opinion decides. If no judge has an opinion, there is no verdict, which
never counts as a bad verdict. The opinions of judges that cost nothing are computed here; the
language model is in `llm_judge`.

Measures alone can show that a session is broken, but never that a session is good: a session
without an error may still be wrong in every word.
"""

import math
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.labels import VERDICTS, Label, Verdict
from agent_pipeline.judging.measures import MeasureResult
from agent_pipeline.judging.turn_facts import TurnFacts
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.session import Session

JudgeName = Literal["label", "judgment", "score", "metrics", "measures", "llm"]
JUDGES: tuple[JudgeName, ...] = ("label", "judgment", "score", "metrics", "measures", "llm")

VerdictSource = Literal[
    "label", "judgment", "score", "metrics", "measures", "llm", "policy", "unverified"
]
"""Values of `verdict_by`: a judge, the policy, or `unverified` for a verdict from `when_unjudged`.
"""

VERIFIERS: tuple[VerdictSource, ...] = ("label", "judgment", "score", "metrics", "llm")
"""Judges that saw how a session ended.

They are a person, the source, a score, a declared metric and a language model.
"""

WhenUnjudged = Literal["exclude", "train_unverified", "acceptable", "unacceptable"]

OLD_WHEN_UNJUDGED = (
    'when_unjudged = "measures" does not exist any more, because measures cannot show that a '
    "session is good: judge the sessions (`agent-pipeline label export`, the setting labels, or a "
    '[judge]), or set when_unjudged = "train_unverified" to train on sessions that nobody verified'
)

_OVERRULING_SOURCES = ("label", "llm", "policy")
"""Verdict sources that take precedence over the score from the session's source.

If the verdict has any other source, the score shows how good the session is.
"""


class Opinion(NamedTuple):
    """The opinion that one judge has of a session.

    Attributes:
        verdict: The verdict, or `None` if the judge cannot decide.
        reason: The reason for the decision, or the reason why the judge cannot decide.
        name: The name within the judge: the deciding metrics, the failed measures, or the model.
        pending: Whether the judge could not answer yet (a limit, an outage, an answer that could
            not be parsed). The next run asks again then.
    """

    verdict: Verdict | None
    reason: str = ""
    name: str = ""
    pending: bool = False


_NO_OPINION = Opinion(None)


class JudgedSession(NamedTuple):
    """The verdict on a session, with the columns of `judged_sessions` as attributes.

    Attributes:
        verdict: The verdict, or `None` if no judge decided.
        verdict_by: The source that decided.
        verdict_name: The name within that source, such as the model.
        verdict_reasons: The reasons for the verdict.
        verdict_score: A score from 0 to 1, or `None` without a verdict. It is the source's score,
            unless a label, the language model or the policy decided, or the score contradicts the
            verdict. Otherwise it is 1 or 0.
        measures: The results of the measures, by name.
        opinions: The opinions of the judges, by judge.
        turns: The facts about each of the agent's turns.
    """

    verdict: Verdict | None
    verdict_by: VerdictSource | None
    verdict_name: str | None
    verdict_reasons: str | None
    verdict_score: float | None
    measures: dict[str, MeasureResult]
    opinions: dict[str, Opinion]
    turns: Sequence[TurnFacts] = ()


_COMPARISON = re.compile(r"\s*(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)\s*")
_OPERATORS = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class VerdictPolicy:
    """The rules that define which judge decides on a session.

    Attributes:
        decided_by: The judges in order. The first judge with a verdict decides. Judges that are
            joined by `+` decide together: `unacceptable` if one of them finds so, `acceptable` if
            all do.
        when_unjudged: The verdict on a session that no judge decided. With `train_unverified`, the
            session is `acceptable` by `unverified`, unless a measure failed.
        score_acceptable: The lowest acceptable score.
        score_unacceptable: The highest unacceptable score. A score between the two thresholds gives
            no verdict.
        metrics: The metrics of a platform that count as opinions, each with its direction or a
            comparison: `{"correctness": "higher", "toxicity": "lower", "latency_s": "<= 20"}`. A
            metric that is not declared gives no verdict, because its direction is unknown.

    Raises:
        SettingsError: A judge is unknown or repeated, the thresholds overlap, or a metric's rule
            is neither a direction nor a comparison.
    """

    decided_by: Sequence[str] = ("label", "judgment", "score", "metrics")
    when_unjudged: WhenUnjudged = "exclude"
    score_acceptable: float = 1.0
    score_unacceptable: float = 0.0
    metrics: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_when_unjudged()
        self._check_judges()
        if not self.score_unacceptable < self.score_acceptable:
            raise SettingsError(
                f"The setting `score_unacceptable` ({self.score_unacceptable}) is not below "
                f"`score_acceptable` ({self.score_acceptable}): lower `score_unacceptable`.",
                setting="score_unacceptable",
            )
        for name, rule in self.metrics.items():
            if rule not in ("higher", "lower") and not _COMPARISON.fullmatch(rule):
                raise SettingsError(
                    f"The setting `metrics.{name}` is {rule!r}: write higher, lower, or a "
                    "comparison such as '>= 0.8'.",
                    setting=f"metrics.{name}",
                )

    def _check_when_unjudged(self) -> None:
        values = get_args(WhenUnjudged)
        if str(self.when_unjudged) == "measures":
            raise SettingsError(f"{OLD_WHEN_UNJUDGED}.", setting="when_unjudged")
        if self.when_unjudged not in values:
            raise SettingsError(
                f"The setting `when_unjudged` is {self.when_unjudged!r}: choose one of "
                f"{', '.join(values)}.",
                setting="when_unjudged",
            )

    def _check_judges(self) -> None:
        names = [name for group in self.groups for name in group]
        for name in names:
            if name not in JUDGES:
                raise SettingsError(
                    f"The setting `decided_by` names {name!r}, which is not a "
                    f"judge{did_you_mean(name, JUDGES)}",
                    setting="decided_by",
                )
        if len(set(names)) < len(names):
            raise SettingsError(
                f"The setting `decided_by` names a judge twice ({', '.join(self.decided_by)}): "
                "name each judge once.",
                setting="decided_by",
            )

    @property
    def groups(self) -> list[list[str]]:
        """The judges in the order in which they decide, as groups.

        Judges that decide together are in the same list.
        """
        return [[name.strip() for name in entry.split("+")] for entry in self.decided_by]

    def has_judge(self, judge: str) -> bool:
        """Return whether a judge is one of the judges that decide."""
        return any(judge in group for group in self.groups)

    def needs_opinion(self, judge: str, opinions: Mapping[str, Opinion]) -> bool:
        """Return whether the opinion of a judge could still change the verdict."""
        for group in self.groups:
            if judge in group:
                return not any(
                    opinions[name].verdict == "unacceptable" for name in group if name in opinions
                )
            if _find_group_verdict(group, opinions):
                return False
        return False


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


@dataclass(frozen=True)
class _Ruling:
    """A verdict and its source, before the score is computed."""

    verdict: Verdict | None = None
    source: VerdictSource | None = None
    name: str = ""
    reasons: str | None = None


def decide_verdict(
    session: Session,
    policy: VerdictPolicy,
    results: dict[str, MeasureResult],
    opinions: dict[str, Opinion],
) -> JudgedSession:
    """Return the verdict on a session that follows from the judges' opinions.

    An infrastructure failure says nothing about the agent. A run that obeyed an injection is never
    good, whatever a judge decides. If the language model has not yet judged a session, the session
    has no verdict until then, unless a judge that ranks above the model has decided.
    `when_unjudged` applies only if all judges were asked. It does not apply to sessions that the
    model was not or could not be asked about.

    Args:
        session: The session.
        policy: The rules that define which judge decides.
        results: The results of the measures, by name.
        opinions: The opinions of the judges, by judge.
    """
    ruling = _rule(session, policy, opinions)
    return JudgedSession(
        verdict=ruling.verdict,
        verdict_by=ruling.source,
        verdict_name=ruling.name or None,
        verdict_reasons=ruling.reasons,
        verdict_score=_score_ruling(ruling, session, policy, opinions),
        measures=results,
        opinions=opinions,
    )


def _rule(session: Session, policy: VerdictPolicy, opinions: Mapping[str, Opinion]) -> _Ruling:
    if session.error is not None:
        return _Ruling(reasons="infrastructure error: neither good nor bad")
    if session.attack_succeeded:
        return _Ruling(
            "unacceptable", "policy", "attack_succeeded", "policy: an injection was obeyed"
        )
    llm_opinion = opinions.get("llm") if policy.has_judge("llm") else None
    for group in policy.groups:
        verdict = _find_group_verdict(group, opinions)
        if verdict:
            return _rule_by_group(verdict, group, opinions)
        # Judges that rank below the language model may not decide before the model has answered.
        if "llm" in group and llm_opinion is not None and llm_opinion.pending:
            return _Ruling(reasons="the language model was not heard yet")
    if llm_opinion is not None and llm_opinion.verdict is None and not llm_opinion.name:
        return _Ruling(reasons=f"the language model could not be asked: {llm_opinion.reason}")
    return _rule_unjudged(policy, opinions.get("measures", _NO_OPINION))


def _rule_by_group(
    verdict: Verdict, group: Sequence[str], opinions: Mapping[str, Opinion]
) -> _Ruling:
    """Return the ruling of a group of judges that decide together."""
    deciding = [
        judge
        for judge in JUDGES
        if judge in group and judge in opinions and opinions[judge].verdict == verdict
    ]
    source = deciding[0]
    for judge in deciding:
        if judge in VERIFIERS:
            source = judge
            break
    reasons = "; ".join(f"{judge}: {opinions[judge].reason or verdict}" for judge in deciding)
    return _Ruling(verdict, source, opinions[source].name, reasons)


def _rule_unjudged(policy: VerdictPolicy, measured: Opinion) -> _Ruling:
    """Return the ruling on a session that no judge has judged."""
    if policy.when_unjudged in ("acceptable", "unacceptable"):
        verdict = VERDICTS[policy.when_unjudged]
        return _Ruling(verdict, "unverified", "when_unjudged", "nobody judged it")
    if policy.when_unjudged == "exclude":
        return _Ruling()
    if measured.verdict == "unacceptable":
        # The session may still be a success, so it is neither a good nor a bad example.
        return _Ruling(reasons=f"nobody judged it, and measures: {measured.reason}")
    return _Ruling(
        "acceptable", "unverified", "when_unjudged", "nobody judged it, and no measure failed"
    )


def _score_ruling(
    ruling: _Ruling, session: Session, policy: VerdictPolicy, opinions: Mapping[str, Opinion]
) -> float | None:
    """Return a score from 0 to 1 that shows how good a session is.

    `JudgedSession.verdict_score` describes the rules.
    """
    if ruling.verdict is None:
        return None
    verdict_score = 1.0 if ruling.verdict == "acceptable" else 0.0
    if not policy.has_judge("score") or ruling.source in _OVERRULING_SOURCES:
        return verdict_score
    if "score" in opinions and opinions["score"].verdict not in (None, ruling.verdict):
        return verdict_score
    if session.score is not None and 0 <= session.score <= 1:
        return session.score
    return verdict_score


def advise_on_judging(key: object) -> str:
    """Return advice for an agent without verdicts. The safest way to get verdicts comes first."""
    return (
        f"judge a sample with `agent-pipeline label export {key} --out review.html`, point the "
        "setting labels at your judgments, or let a language model judge ([judge], and llm in "
        "judged_sessions.decided_by); to train on sessions that nobody verified, set "
        'when_unjudged = "train_unverified"'
    )


def _find_group_verdict(group: Sequence[str], opinions: Mapping[str, Opinion]) -> Verdict | None:
    """Return the verdict of a group of judges that decide together.

    Measures alone never give a good verdict.
    """
    verdicts = [opinions[judge].verdict if judge in opinions else None for judge in group]
    if "unacceptable" in verdicts:
        return "unacceptable"
    others = set(group) - {"measures"}
    return "acceptable" if others and None not in verdicts else None


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
    comparison = _COMPARISON.fullmatch(rule)
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
    verdict = _find_group_verdict(list(opinions), opinions)
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
