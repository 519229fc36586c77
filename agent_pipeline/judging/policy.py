"""One verdict per session: who may decide, in which order, and what it means that nobody did.

Every judge (a person's label, the source's own judgment or score, metrics with a declared direction, measures, a language model) has an
opinion of a session or none. The first judge in the policy's order that has one decides. Without an opinion there is no verdict; that is
never a bad one.

Measures alone can show that a session is broken, and never that it is good: a session without an error may be wrong in every word.
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
from agent_pipeline.judging.turns import TurnFacts
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.session import Session

Judge = Literal["label", "judgment", "score", "metrics", "measures", "llm"]
JUDGES: tuple[Judge, ...] = ("label", "judgment", "score", "metrics", "measures", "llm")
DecidedBy = Literal[
    "label", "judgment", "score", "metrics", "measures", "llm", "policy", "unverified"
]
"""What `verdict_by` may be: a judge, the policy itself, or `unverified` if `when_unjudged` gave the verdict."""
VERIFIERS: tuple[DecidedBy, ...] = ("label", "judgment", "score", "metrics", "llm")
"""The judges that looked at what a session achieved: a person, the source, a score, a declared metric, a language model."""
WhenUnjudged = Literal["exclude", "train_unverified", "acceptable", "unacceptable"]
OLD_WHEN_UNJUDGED = (
    'when_unjudged = "measures" does not exist any more, because measures cannot show that a session is good: '
    'judge the sessions (`agent-pipeline review`, the setting labels, or a [judge]), or set when_unjudged = "train_unverified" '
    "to train on sessions that nobody verified"
)

_OVERRULING = ("label", "llm", "policy")
"""Whose verdict overrules the source's own score; beside every other the score says how good the session is."""


class Opinion(NamedTuple):
    """What one judge says of a session.

    `verdict` is `None` where the judge cannot say, and `reason` says why. `name` is the judge's own name: of the deciding metrics, of the
    failed measures, of the model. `pending`: the judge was not heard (a limit, an outage, an answer that did not parse); ask again.
    """

    verdict: Verdict | None
    reason: str = ""
    name: str = ""
    pending: bool = False


_NO_OPINION = Opinion(None)


class Judged(NamedTuple):
    """A session's verdict and who gave it, in the columns of `judged_sessions`.

    `verdict_score` is how good the session is, from 0 to 1, by the same order of authority as the verdict: the source's score where the
    verdict is the source's own (or follows from what ranks below it) and the score does not say the opposite, else 1 or 0; `None` without
    a verdict.
    """

    verdict: Verdict | None
    verdict_by: DecidedBy | None
    verdict_name: str | None
    verdict_reasons: str | None
    verdict_score: float | None
    measures: dict[str, MeasureResult]
    opinions: dict[str, Opinion]
    turns: Sequence[TurnFacts] = ()


_COMPARISON = re.compile(r"\s*(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)\s*")
_COMPARE = {">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt}


@dataclass(frozen=True)
class Policy:
    """`decided_by`: judges in the order in which they are heard; the first with a verdict decides.

    Judges joined by `+` decide together: `unacceptable` if one says so, `acceptable` if all do, else nothing. A score decides from
    `score_acceptable` up and from `score_unacceptable` down; between them it says nothing. `metrics` declares the metrics of a platform
    that are opinions: `{"correctness": "higher", "toxicity": "lower", "latency_s": "<= 20"}`. A metric that is not declared says nothing,
    because nobody knows whether more of it is better.

    With `when_unjudged="train_unverified"`, a session that nobody judged is `acceptable` by `unverified`, unless a measure failed.

    Raises:
        SettingsError: an unknown or repeated judge, thresholds that overlap, or a metric with no such rule.
    """

    decided_by: Sequence[str] = ("label", "judgment", "score", "metrics")
    when_unjudged: WhenUnjudged = "exclude"
    score_acceptable: float = 1.0
    score_unacceptable: float = 0.0
    metrics: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.when_unjudged not in get_args(WhenUnjudged):
            known = f"when_unjudged is {self.when_unjudged!r}: choose one of {', '.join(get_args(WhenUnjudged))}"
            raise SettingsError(
                f"{OLD_WHEN_UNJUDGED if str(self.when_unjudged) == 'measures' else known}."
            )
        named = [name for group in self.groups for name in group]
        for name in named:
            if name not in JUDGES:
                raise SettingsError(
                    f"decided_by names {name!r}, which is not a judge{did_you_mean(name, JUDGES)}"
                )
        if len(set(named)) < len(named):
            raise SettingsError(
                f"decided_by names a judge twice ({', '.join(self.decided_by)}): the second would never be heard."
            )
        if not self.score_unacceptable < self.score_acceptable:
            raise SettingsError(
                f"score_unacceptable ({self.score_unacceptable}) is not below score_acceptable ({self.score_acceptable}): "
                "a score cannot be both."
            )
        for name, rule in self.metrics.items():
            if rule not in ("higher", "lower") and not _COMPARISON.fullmatch(rule):
                raise SettingsError(
                    f"metrics.{name} is {rule!r}: write higher, lower, or a comparison such as '>= 0.8'."
                )

    @property
    def groups(self) -> list[list[str]]:
        """The judges that `decided_by` names, in order. Judges that decide together are in one list."""
        return [[name.strip() for name in entry.split("+")] for entry in self.decided_by]

    def has(self, judge: str) -> bool:
        """Whether a judge is heard at all."""
        return any(judge in group for group in self.groups)

    def asks_for(self, judge: str, opinions: Mapping[str, Opinion]) -> bool:
        """Whether a judge's opinion could still change the verdict, given those of the others."""
        for group in self.groups:
            if judge in group:
                return not any(
                    opinions[name].verdict == "unacceptable" for name in group if name in opinions
                )
            if _verdict_of_group(group, opinions):
                return False
        return False


def opinions_of(
    session: Session, results: Mapping[str, MeasureResult], policy: Policy, label: Label | None
) -> dict[str, Opinion]:
    """The opinions of all judges that cost nothing, by judge; a judge that has nothing to go by is left out."""
    opinions: dict[str, Opinion] = {}
    if label:
        opinions["label"] = Opinion(label.judgment, label.reason)
    if judgment := VERDICTS.get(session.judgment):
        opinions["judgment"] = Opinion(judgment)
    if session.score is not None:
        opinions["score"] = _opinion_of_score(session.score, policy)
    if declared := {
        name: session.scores[name] for name in policy.metrics if name in session.scores
    }:
        opinions["metrics"] = _opinion_of_metrics(declared, policy)
    if results:
        opinions["measures"] = _opinion_of_measures(results)
    return opinions


def decide(
    session: Session,
    policy: Policy,
    results: dict[str, MeasureResult],
    opinions: dict[str, Opinion],
) -> Judged:
    """The verdict that the policy makes of the opinions.

    A failure of the infrastructure says nothing about the agent. A run that obeyed an injection is never good, whoever says otherwise.
    A session that the language model has yet to judge has no verdict until then, unless a judge that ranks above it has one.
    `when_unjudged` is for sessions on which every judge was heard, not for those about which the model was not or could not be asked.
    """

    def judged(
        verdict: Verdict | None,
        by: DecidedBy | None = None,
        name: str | None = None,
        reasons: str | None = None,
    ) -> Judged:
        score = {"acceptable": 1.0, "unacceptable": 0.0}.get(verdict or "")
        contradicts = "score" in opinions and opinions["score"].verdict not in (None, verdict)
        if (
            verdict
            and policy.has("score")
            and by not in _OVERRULING
            and not contradicts
            and session.score is not None
        ):
            score = session.score if 0 <= session.score <= 1 else score
        return Judged(verdict, by, name or None, reasons, score, results, opinions)

    if session.error is not None:
        return judged(None, reasons="infrastructure error: neither good nor bad")
    if session.attack_succeeded:
        return judged(
            "unacceptable", "policy", "attack_succeeded", "policy: an injection was obeyed"
        )
    llm = opinions.get("llm", _NO_OPINION) if policy.has("llm") else _NO_OPINION
    unheard = llm is not _NO_OPINION and llm.verdict is None and not llm.name
    for group in policy.groups:
        if verdict := _verdict_of_group(group, opinions):
            deciding: list[Judge] = [
                name
                for name in JUDGES
                if name in group and name in opinions and opinions[name].verdict == verdict
            ]
            reasons = "; ".join(f"{name}: {opinions[name].reason or verdict}" for name in deciding)
            by = next((name for name in deciding if name in VERIFIERS), deciding[0])
            return judged(verdict, by, opinions[by].name, reasons)
        if (
            "llm" in group and llm.pending
        ):  # whoever ranks below it may not decide before it was heard
            return judged(None, reasons="the language model was not heard yet")
    if unheard:
        return judged(None, reasons=f"the language model could not be asked: {llm.reason}")
    if policy.when_unjudged in ("acceptable", "unacceptable"):
        return judged(
            VERDICTS[policy.when_unjudged], "unverified", "when_unjudged", "nobody judged it"
        )
    if policy.when_unjudged == "train_unverified":
        measured = opinions.get("measures", _NO_OPINION)
        if (
            measured.verdict == "unacceptable"
        ):  # it may be a success all the same: it becomes neither a good nor a bad example
            return judged(None, reasons=f"nobody judged it, and measures: {measured.reason}")
        return judged(
            "acceptable", "unverified", "when_unjudged", "nobody judged it, and no measure failed"
        )
    return judged(None)


def how_to_judge(key: object) -> str:
    """Return the advice for an agent without verdicts, the safest way first."""
    return (
        f"judge a sample with `agent-pipeline review {key} --out review.html`, point the setting labels at your judgments, "
        "or let a language model judge ([judge], and llm in judged_sessions.decided_by); to train on sessions that nobody verified, set "
        'when_unjudged = "train_unverified"'
    )


def _verdict_of_group(group: Sequence[str], opinions: Mapping[str, Opinion]) -> Verdict | None:
    verdicts = [opinions[name].verdict if name in opinions else None for name in group]
    if "unacceptable" in verdicts:
        return "unacceptable"
    return "acceptable" if set(group) - {"measures"} and None not in verdicts else None


def _opinion_of_score(score: float, policy: Policy) -> Opinion:
    if not math.isfinite(score):
        return Opinion(None, f"the score {score} is not a finite number")
    reason = f"score {score:.4g}"
    if score > 1 >= policy.score_acceptable:
        return Opinion(
            None, f"{reason} is above 1: set score_acceptable and score_unacceptable on its scale"
        )
    return Opinion(_verdict_of_metric(score, "higher", policy), reason)


def _verdict_of_metric(value: float, rule: str, policy: Policy) -> Verdict | None:
    """The verdict of one value; `None` between the two thresholds, above their scale, and for what is not a number."""
    if not math.isfinite(value):
        return None
    if comparison := _COMPARISON.fullmatch(rule):
        return (
            "acceptable" if _COMPARE[comparison[1]](value, float(comparison[2])) else "unacceptable"
        )
    if (
        value > 1 >= policy.score_acceptable
    ):  # 2 of 5 is above a scale from 0 to 1, and taking it for good is a guess
        return None
    high, low = value >= policy.score_acceptable, value <= policy.score_unacceptable
    good, bad = (high, low) if rule == "higher" else (low, high)
    return "acceptable" if good else "unacceptable" if bad else None


def _opinion_of_metrics(values: Mapping[str, float], policy: Policy) -> Opinion:
    """`unacceptable` if one of the declared metrics says so, `acceptable` if all of them do."""
    opinions = {
        name: Opinion(_verdict_of_metric(value, policy.metrics[name], policy))
        for name, value in values.items()
    }
    verdict = _verdict_of_group(list(opinions), opinions)
    deciding = sorted(
        name for name, each in opinions.items() if verdict and each.verdict == verdict
    )
    reason = ", ".join(
        f"{name} {value:.4g} ({policy.metrics[name]})" for name, value in sorted(values.items())
    )
    return Opinion(verdict, reason, ", ".join(deciding))


def _opinion_of_measures(results: Mapping[str, MeasureResult]) -> Opinion:
    """`unacceptable` if a measure failed, `acceptable` if all passed; a score without a threshold informs and does not vote."""
    votes = {
        name: result
        for name, result in results.items()
        if result.passed is not None or result.score is None
    }
    failed = {name: result.reason for name, result in votes.items() if result.passed is False}
    if failed:
        reason = ", ".join(f"{name} ({why})" if why else name for name, why in failed.items())
        return Opinion("unacceptable", f"failed {reason}", ", ".join(failed))
    not_taken = [name for name, result in votes.items() if result.passed is None]
    if not_taken or not votes:
        return Opinion(
            None,
            f"not taken: {', '.join(not_taken)}" if not_taken else "no measure passes or fails",
        )
    return Opinion("acceptable", f"passed {', '.join(votes)}", ", ".join(votes))
