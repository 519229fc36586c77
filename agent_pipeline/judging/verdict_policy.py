"""The rules that combine the opinions of judges into one verdict per session.

Every judge (a person's label, the source's own judgment or score, metrics with a declared
direction, measures, a language model) has an opinion of a session, or none. The first judge in the
policy's order that has an opinion decides. If no judge has an opinion, there is no verdict, which
never counts as a bad verdict. The opinions of judges that cost nothing are computed in
`free_opinions`; the language model is in `llm_judge`.

Measures alone can show that a session is broken. They show that a session is good only if their
precision on people's labels is high enough (`judge_checks`): a session without an error may still
be wrong in every word.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, get_args

from agent_pipeline.errors import SettingsError
from agent_pipeline.judging.labels import VERDICTS, Verdict
from agent_pipeline.judging.measures import MeasureResult
from agent_pipeline.judging.turn_facts import TurnFacts
from agent_pipeline.options import did_you_mean
from agent_pipeline.sessions.session import Session

JudgeName = Literal["label", "judgment", "score", "metrics", "measures", "llm"]
JUDGES: tuple[JudgeName, ...] = ("label", "judgment", "score", "metrics", "measures", "llm")

MACHINES: tuple[JudgeName, ...] = ("measures", "llm")
"""Judges whose verdicts need a check against people's labels (`judge_checks`)."""

VerdictSource = Literal[
    "label",
    "judgment",
    "score",
    "metrics",
    "measures",
    "llm",
    "checked_measures",
    "policy",
    "unverified",
]
"""Values of `verdict_by`.

- A judge: the judge that decided.
- `checked_measures`: measures alone, whose precision on people's labels is high enough.
- `policy`: the policy.
- `unverified`: `when_unjudged`, or a language model that failed the check, or was not checked.
"""

VERIFIERS: tuple[VerdictSource, ...] = (
    "label",
    "judgment",
    "score",
    "metrics",
    "llm",
    "checked_measures",
)
"""Judges that saw how a session ended.

They are a person, the source, a score, a declared metric, a language model, and measures whose
precision on people's labels is high enough.
"""

WhenUnjudged = Literal["exclude", "train_unverified", "acceptable", "unacceptable"]

OLD_WHEN_UNJUDGED = (
    'when_unjudged = "measures" does not exist any more, because measures cannot show that a '
    "session is good: judge the sessions (`agent-pipeline review`, the setting labels, or a "
    '[judge]), or set when_unjudged = "train_unverified" to train on sessions that nobody verified'
)

CHECKED: VerdictSource = "checked_measures"

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


class MachineVerdict(NamedTuple):
    """The verdict of a group of machine judges.

    Attributes:
        judge: The name of the group, such as `measures+llm`.
        verdict: The verdict.
    """

    judge: str
    verdict: Verdict


def name_group(group: Sequence[str]) -> str:
    """Return the name of a group of judges that decide together, as in `decided_by`."""
    return "+".join(group)


def is_machine(group: Sequence[str]) -> bool:
    """Return whether all judges of a group are machine judges."""
    return set(group) <= set(MACHINES)


def _is_pending(opinions: Mapping[str, Opinion]) -> bool:
    return "llm" in opinions and opinions["llm"].pending


COMPARISON = re.compile(r"\s*(>=|<=|>|<)\s*(-?\d+(?:\.\d+)?)\s*")


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
        is_acceptable_set: Whether a user set `score_acceptable`, even to the value of the default.

    Raises:
        SettingsError: A judge is unknown or repeated, the thresholds overlap, or a metric's rule
            is neither a direction nor a comparison.
    """

    decided_by: Sequence[str] = ("label", "judgment", "score", "metrics")
    when_unjudged: WhenUnjudged = "exclude"
    score_acceptable: float = 1.0
    score_unacceptable: float = 0.0
    metrics: Mapping[str, str] = field(default_factory=dict)
    is_acceptable_set: bool = False

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
            if rule not in ("higher", "lower") and not COMPARISON.fullmatch(rule):
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
                f"The setting `decided_by` contains a judge twice ({', '.join(self.decided_by)}): "
                "list each judge once.",
                setting="decided_by",
            )

    @property
    def has_default_acceptable(self) -> bool:
        """Return whether nobody set `score_acceptable`. The default fits a scale from 0 to 1."""
        return not self.is_acceptable_set and self.score_acceptable == 1.0

    @property
    def has_limits_below_1(self) -> bool:
        """Return whether a user set thresholds that fit only a scale from 0 to 1."""
        return 0 <= self.score_unacceptable < self.score_acceptable < 1

    @property
    def groups(self) -> list[list[str]]:
        """Return the judges in the order in which they decide, as groups.

        Judges that decide together are in the same list.
        """
        return [[name.strip() for name in entry.split("+")] for entry in self.decided_by]

    @property
    def machine_groups(self) -> list[list[str]]:
        """Return the groups of judges that need a check against people's labels."""
        return [group for group in self.groups if is_machine(group)]

    def find_machine_verdict(self, opinions: Mapping[str, Opinion]) -> MachineVerdict | None:
        """Return the verdict of the group of machine judges that decides, if people do not label.

        Args:
            opinions: The judges' opinions. A person's label is ignored.

        Returns:
            The verdict, or `None` if another judge decides, or no judge does.
        """
        heard = {judge: opinion for judge, opinion in opinions.items() if judge != "label"}
        for group in self.groups:
            verdict = find_group_verdict(group, heard, may_be_measures=True)
            if verdict and not is_machine(group):
                return None
            # Measures alone decide against a session without a check.
            if verdict and not (group == ["measures"] and verdict == "unacceptable"):
                return MachineVerdict(name_group(group), verdict)
            if verdict or ("llm" in group and _is_pending(heard)):
                return None
        return None

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
            if find_group_verdict(group, opinions):
                return False
        return False


@dataclass(frozen=True)
class MachineTrust:
    """What is known about the machine judges when a session is decided.

    Attributes:
        trusted: The names of the groups of machine judges whose verdicts count as verified. `None`
            trusts every language model without a check, and never measures alone.
        addresses_judge: Whether a text in the session tries to instruct a judge. A person has to
            judge such a session.
    """

    trusted: Collection[str] | None = None
    addresses_judge: bool = False


LEFT_TO_PERSON = "a text in the session addresses the judge, so a person has to judge the session"

_TRUST_LLM = MachineTrust()


@dataclass(frozen=True)
class _Ruling:
    """A verdict and its source, before the score is computed."""

    verdict: Verdict | None = None
    source: VerdictSource | None = None
    name: str = ""
    reasons: str | None = None
    overrules_score: bool = False


def decide_verdict(
    session: Session,
    policy: VerdictPolicy,
    results: dict[str, MeasureResult],
    opinions: dict[str, Opinion],
    trust: MachineTrust = _TRUST_LLM,
) -> JudgedSession:
    """Return the verdict on a session that follows from the judges' opinions.

    An infrastructure failure says nothing about the agent. A run that obeyed an injection is never
    good, whatever a judge decides. If the language model has not yet judged a session, the session
    has no verdict until then, unless a judge that ranks above the model has decided.
    `when_unjudged` applies only if all judges were asked. It does not apply to sessions that the
    model was not or could not be asked about, or whose text addresses the judge.

    The verdict of a language model that is not trusted is kept, but counts as `unverified`.
    Measures alone find a session good only if they are trusted.

    Args:
        session: The session.
        policy: The rules that define which judge decides.
        results: The results of the measures, by name.
        opinions: The opinions of the judges, by judge.
        trust: What is known about the machine judges.
    """
    ruling = _rule(session, policy, opinions, trust)
    return JudgedSession(
        verdict=ruling.verdict,
        verdict_by=ruling.source,
        verdict_name=ruling.name or None,
        verdict_reasons=ruling.reasons,
        verdict_score=_score_ruling(ruling, session, policy, opinions),
        measures=results,
        opinions=opinions,
    )


def _rule(
    session: Session,
    policy: VerdictPolicy,
    opinions: Mapping[str, Opinion],
    trust: MachineTrust,
) -> _Ruling:
    if session.error is not None:
        return _Ruling(reasons="infrastructure error: neither good nor bad")
    if session.attack_succeeded:
        return _Ruling(
            "unacceptable",
            "policy",
            "attack_succeeded",
            ("policy: the agent obeyed a prompt injection"),
        )
    llm_opinion = opinions.get("llm") if policy.has_judge("llm") else None
    for group in policy.groups:
        if trust.addresses_judge and is_machine(group):
            continue
        is_trusted = trust.trusted is not None and name_group(group) in trust.trusted
        verdict = find_group_verdict(group, opinions, may_be_measures=is_trusted)
        if verdict:
            is_trusted = is_trusted or trust.trusted is None or not is_machine(group)
            return _rule_by_group(verdict, group, opinions, is_trusted)
        # Judges that rank below the language model may not decide before the model has answered.
        if "llm" in group and llm_opinion is not None and llm_opinion.pending:
            return _Ruling(reasons="the language model has not answered yet")
    if trust.addresses_judge:
        return _Ruling(reasons=LEFT_TO_PERSON)
    if llm_opinion is not None and llm_opinion.verdict is None and not llm_opinion.name:
        return _Ruling(reasons=f"the language model could not be asked: {llm_opinion.reason}")
    return _rule_unjudged(policy, opinions.get("measures", _NO_OPINION))


def _rule_by_group(
    verdict: Verdict, group: Sequence[str], opinions: Mapping[str, Opinion], is_trusted: bool
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
    name = opinions[source].name
    if source == "measures":
        # Measures show that a session is broken. They show that it is good only after a check.
        return _Ruling(verdict, source if verdict == "unacceptable" else CHECKED, name, reasons)
    if not is_trusted:
        return _Ruling(verdict, "unverified", name, reasons, overrules_score=True)
    return _Ruling(verdict, source, name, reasons)


def _rule_unjudged(policy: VerdictPolicy, measured: Opinion) -> _Ruling:
    """Return the ruling on a session that no judge has judged."""
    if policy.when_unjudged in ("acceptable", "unacceptable"):
        verdict = VERDICTS[policy.when_unjudged]
        return _Ruling(verdict, "unverified", "when_unjudged", "nobody judged it")
    if policy.when_unjudged == "exclude":
        return _Ruling()
    if measured.verdict == "unacceptable":
        # The session may still be a success, so it is neither a good nor a bad example.
        return _Ruling(reasons=f"nobody judged it, and a measure failed: {measured.reason}")
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
    if ruling.overrules_score:
        return verdict_score
    if "score" in opinions and opinions["score"].verdict not in (None, ruling.verdict):
        return verdict_score
    if session.score is not None and 0 <= session.score <= 1:
        return session.score
    return verdict_score


def advise_on_judging(key: object) -> str:
    """Return advice for an agent without verdicts. The safest way to get verdicts comes first."""
    return (
        f"judge a sample with `agent-pipeline review {key}`, set labels to a file of your "
        "judgments, or let a language model judge (set [judge], and add llm to "
        "judged_sessions.decided_by); to train on sessions that nobody verified, set "
        'when_unjudged = "train_unverified"'
    )


def find_group_verdict(
    group: Sequence[str], opinions: Mapping[str, Opinion], may_be_measures: bool = False
) -> Verdict | None:
    """Return the verdict of a group of judges that decide together.

    Args:
        group: The judges.
        opinions: The opinions, by judge.
        may_be_measures: Whether measures alone may give a good verdict.
    """
    verdicts = [opinions[judge].verdict if judge in opinions else None for judge in group]
    if "unacceptable" in verdicts:
        return "unacceptable"
    others = set(group) - {"measures"}
    return "acceptable" if (others or may_be_measures) and None not in verdicts else None
