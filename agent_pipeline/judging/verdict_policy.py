"""One verdict per session: which judges decide, in which order, and what holds if none has decided.

Every judge (a person's label, the source's own judgment or score, metrics with a declared
direction, measures, a language model) has an opinion of a session, or none. The first judge in the
policy's order that has an opinion decides. Without an opinion there is no verdict, which is never a
bad verdict. How a single judge reaches an opinion belongs here only for judges that cost nothing;
the language model is in `llm_judge`.

Measures alone can show that a session is broken, and never that a session is good: a session
without an error may be wrong in every word.
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
"""A value of `verdict_by`: a judge, the policy, or `unverified` for verdicts of `when_unjudged`."""

VERIFIERS: tuple[VerdictSource, ...] = ("label", "judgment", "score", "metrics", "llm")
"""The judges that saw what a session achieved.

They are a person, the source, a score, a declared metric and a language model.
"""

WhenUnjudged = Literal["exclude", "train_unverified", "acceptable", "unacceptable"]

OLD_WHEN_UNJUDGED = (
    'when_unjudged = "measures" does not exist any more, because measures cannot show that a '
    "session is good: judge the sessions (`agent-pipeline review`, the setting labels, or a "
    '[judge]), or set when_unjudged = "train_unverified" to train on sessions that nobody verified'
)

_OVERRULING_SOURCES = ("label", "llm", "policy")
"""Sources whose verdict overrules the source's score.

Next to a verdict of any other source, the score tells how good the session is.
"""


class Opinion(NamedTuple):
    """An opinion of one judge on a session.

    Attributes:
        verdict: The verdict; `None` if the judge cannot decide.
        reason: Why the judge decided so, or cannot decide.
        name: The judge's own name: the deciding metrics, the failed measures, or the model.
        pending: Whether the judge could not answer yet (a limit, an outage, an answer that did not
            parse), so that the next run asks again.
    """

    verdict: Verdict | None
    reason: str = ""
    name: str = ""
    pending: bool = False


_NO_OPINION = Opinion(None)


class JudgedSession(NamedTuple):
    """The verdict on a session, with the columns of `judged_sessions` as attributes.

    Attributes:
        verdict: The verdict; `None` if nobody decided.
        verdict_by: Who decided.
        verdict_name: The own name of who decided.
        verdict_reasons: Why the verdict is so.
        verdict_score: How good the session is, 0 to 1; `None` without a verdict. It is the
            source's score if the verdict is the source's own, or follows from what ranks below
            the source, and the score does not contradict the verdict. Otherwise it is 1 or 0.
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
    """The rules of who decides on a session.

    Attributes:
        decided_by: The judges in their order; the first with a verdict decides. Judges joined by
            `+` decide in common: `unacceptable` if one of them says so, `acceptable` if all do.
        when_unjudged: The verdict of a session that nobody judged. With `train_unverified`, the
            session is `acceptable` by `unverified`, unless a measure failed.
        score_acceptable: The least score that is acceptable.
        score_unacceptable: The greatest score that is unacceptable; a score between the two
            thresholds decides nothing.
        metrics: The metrics of a platform that are opinions, each with its direction or a
            comparison: `{"correctness": "higher", "toxicity": "lower", "latency_s": "<= 20"}`. A
            metric that is not declared decides nothing, because its direction is unknown.

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
                f"score_unacceptable ({self.score_unacceptable}) is not below score_acceptable "
                f"({self.score_acceptable}): a score cannot be both.",
                setting="score_unacceptable",
            )
        for name, rule in self.metrics.items():
            if rule not in ("higher", "lower") and not _COMPARISON.fullmatch(rule):
                raise SettingsError(
                    f"metrics.{name} is {rule!r}: write higher, lower, or a comparison such as "
                    "'>= 0.8'.",
                    setting=f"metrics.{name}",
                )

    def _check_when_unjudged(self) -> None:
        values = get_args(WhenUnjudged)
        if str(self.when_unjudged) == "measures":
            raise SettingsError(f"{OLD_WHEN_UNJUDGED}.", setting="when_unjudged")
        if self.when_unjudged not in values:
            raise SettingsError(
                f"when_unjudged is {self.when_unjudged!r}: choose one of {', '.join(values)}.",
                setting="when_unjudged",
            )

    def _check_judges(self) -> None:
        names = [name for group in self.groups for name in group]
        for name in names:
            if name not in JUDGES:
                raise SettingsError(
                    f"decided_by names {name!r}, which is not a judge{did_you_mean(name, JUDGES)}",
                    setting="decided_by",
                )
        if len(set(names)) < len(names):
            raise SettingsError(
                f"decided_by names a judge twice ({', '.join(self.decided_by)}): the second would "
                "never be heard.",
                setting="decided_by",
            )

    @property
    def groups(self) -> list[list[str]]:
        """The judges in their order; judges that decide in common are in one list."""
        return [[name.strip() for name in entry.split("+")] for entry in self.decided_by]

    def has_judge(self, judge: str) -> bool:
        """Return whether a judge is among those who decide."""
        return any(judge in group for group in self.groups)

    def needs_opinion(self, judge: str, opinions: Mapping[str, Opinion]) -> bool:
        """Return whether a judge could still change the verdict that other opinions give."""
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
    """Return the opinions of all judges that cost nothing, by judge.

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
    """A verdict with its source, before the score is known."""

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
    """Return the verdict that the policy makes of the opinions.

    A failure of the infrastructure tells nothing about the agent. A run that obeyed an injection is
    never good, whatever any judge decides. A session that the language model has yet to judge has
    no verdict until then, unless a judge that ranks above the model has one. `when_unjudged` is
    for sessions on which every judge was heard, and not for sessions about which the model was not
    or could not be asked.

    Args:
        session: The session.
        policy: The rules of who decides.
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
        # Judges that rank below the language model may not decide before the model was heard.
        if "llm" in group and llm_opinion is not None and llm_opinion.pending:
            return _Ruling(reasons="the language model was not heard yet")
    if llm_opinion is not None and llm_opinion.verdict is None and not llm_opinion.name:
        return _Ruling(reasons=f"the language model could not be asked: {llm_opinion.reason}")
    return _rule_unjudged(policy, opinions.get("measures", _NO_OPINION))


def _rule_by_group(
    verdict: Verdict, group: Sequence[str], opinions: Mapping[str, Opinion]
) -> _Ruling:
    """Return the ruling of judges that decided in common."""
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
    """Return the ruling on a session that nobody judged."""
    if policy.when_unjudged in ("acceptable", "unacceptable"):
        verdict = VERDICTS[policy.when_unjudged]
        return _Ruling(verdict, "unverified", "when_unjudged", "nobody judged it")
    if policy.when_unjudged == "exclude":
        return _Ruling()
    if measured.verdict == "unacceptable":
        # The session may be a success all the same, so it is neither a good nor a bad example.
        return _Ruling(reasons=f"nobody judged it, and measures: {measured.reason}")
    return _Ruling(
        "acceptable", "unverified", "when_unjudged", "nobody judged it, and no measure failed"
    )


def _score_ruling(
    ruling: _Ruling, session: Session, policy: VerdictPolicy, opinions: Mapping[str, Opinion]
) -> float | None:
    """Return how good a session is, 0 to 1 (`JudgedSession.verdict_score`)."""
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
    """Return the advice for an agent without verdicts, the safest way first."""
    return (
        f"judge a sample with `agent-pipeline review {key} --out review.html`, point the setting "
        "labels at your judgments, or let a language model judge ([judge], and llm in "
        "judged_sessions.decided_by); to train on sessions that nobody verified, set "
        'when_unjudged = "train_unverified"'
    )


def _find_group_verdict(group: Sequence[str], opinions: Mapping[str, Opinion]) -> Verdict | None:
    """Return the verdict of judges that decide in common; measures alone find nothing good."""
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
    """Return the verdict of one value by a direction or a comparison.

    There is no verdict between the two thresholds, above their scale, and for a value that is not
    a number.
    """
    if not math.isfinite(value):
        return None
    comparison = _COMPARISON.fullmatch(rule)
    if comparison:
        holds = _OPERATORS[comparison[1]](value, float(comparison[2]))
        return "acceptable" if holds else "unacceptable"
    if value > 1 >= policy.score_acceptable:
        return None  # 2 of 5 is above a scale from 0 to 1, and to find 2 good would be a guess
    is_high = value >= policy.score_acceptable
    is_low = value <= policy.score_unacceptable
    is_good, is_bad = (is_high, is_low) if rule == "higher" else (is_low, is_high)
    if is_good:
        return "acceptable"
    return "unacceptable" if is_bad else None


def _judge_metrics(values: Mapping[str, float], policy: VerdictPolicy) -> Opinion:
    """Return `unacceptable` if a declared metric says so, and `acceptable` if all of them do."""
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
    """Return `unacceptable` if a measure failed, and `acceptable` if all measures passed.

    A score without a threshold informs and does not vote.
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
