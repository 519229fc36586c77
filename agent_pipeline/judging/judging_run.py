"""A run of all judges over a stream of sessions.

Judges that cost nothing come first. The language model judges only sessions whose verdict it can
still change. Turning opinions into a verdict belongs to `verdict_policy`, and the tables belong to
`tables`.
"""

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.free_opinions import (
    UNKNOWN_SCALES,
    ScoreScales,
    collect_opinions,
    describe_scales,
)
from agent_pipeline.judging.judge_checks import JudgeCheck
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.llm_judge import LlmJudge
from agent_pipeline.judging.measures import ConfiguredMeasure, MeasureResult, parse_measures
from agent_pipeline.judging.options import AskLlm, JudgingOptions
from agent_pipeline.judging.turn_facts import TurnFacts, find_turn_facts, list_true_facts
from agent_pipeline.judging.verdict_policy import (
    JudgedSession,
    MachineTrust,
    Opinion,
    VerdictPolicy,
    advise_on_judging,
    decide_verdict,
)
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session

_Item = TypeVar("_Item")
_WithReason = TypeVar("_WithReason", MeasureResult, Opinion)

_SESSIONS_PER_THREAD = 4
"""Number of sessions per thread that may wait for the language model. It keeps the model busy."""


@dataclass(frozen=True)
class _WaitingSession(Generic[_Item]):
    """A session that only the language model has not judged yet."""

    item: _Item
    session: Session
    results: dict[str, MeasureResult]
    opinions: dict[str, Opinion]
    llm_opinion: "Future[Opinion] | None"
    turns: list[TurnFacts]


@dataclass
class JudgingRun:
    """One run of the judges, with counts of their verdicts.

    Archived sessions, empty sessions and infrastructure failures are never sent to the language
    model.

    Attributes:
        measures: The measures to take of every session.
        policy: The rules that define which judge decides.
        labels: People's labels.
        llm: The language model.
        ask_llm: `undecided` asks the model only if its opinion can still change the verdict. `all`
            asks the model about every session that can be judged, to measure its agreement with
            people.
        turn_measures: The measures to take of every turn.
        redact: Replaces private data in the reasons of measures and of the model.
        checks: The checks of the machine judges against people's labels. `None` trusts a language
            model without a check.
        checked_sessions: Sessions about which the model is asked although a person labelled them.
        scales: The scales of the agent's scores and metrics.
        verdicts: Number of sessions by verdict and judge (`acceptable by label`), or `none`.
        pending: Number of sessions that the model could not judge (a limit, an outage, an answer
            that could not be parsed).
        failed: Number of failures, by measure.
        not_taken: Number of times that a measure could not be taken, by name and reason.
        undeclared: Number of sessions with a metric whose direction is not declared, by metric.
        addressing_judge: Number of sessions with a text that tries to instruct a judge.
        turns: Number of turns, and number of turns with each fact.
        agreement: The agreement of each judge with people.
    """

    measures: list[ConfiguredMeasure]
    policy: VerdictPolicy
    labels: Labels
    llm: LlmJudge | None = None
    ask_llm: AskLlm = "undecided"
    turn_measures: Sequence[ConfiguredMeasure] = ()
    redact: Callable[[str], str] = str
    checks: Sequence[JudgeCheck] | None = None
    checked_sessions: Collection[str] = ()
    scales: ScoreScales = UNKNOWN_SCALES
    verdicts: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    not_taken: Counter[str] = field(default_factory=Counter)
    undeclared: Counter[str] = field(default_factory=Counter)
    addressing_judge: int = 0
    turns: Counter[str] = field(default_factory=Counter)
    agreement: Agreement = field(default_factory=Agreement)

    @classmethod
    def from_options(cls, options: JudgingOptions, labels: Labels | None = None) -> "JudgingRun":
        """Create a run with the given options and without a language model.

        Raises:
            SettingsError: An option is wrong.
        """
        return cls(
            parse_measures(options.measures),
            options.policy,
            labels or Labels(),
            ask_llm=options.ask_llm,
            turn_measures=parse_measures(options.turn_measures),
        )

    def judge(
        self, sessions: Iterable[tuple[_Item, Session]]
    ) -> Iterator[tuple[_Item, JudgedSession]]:
        """Yield every item with the verdict on its session, in order.

        Raises:
            SettingsError: The language model's endpoint cannot be used at all.
        """
        unseen_labels = set(self.labels.by_id)
        waiting: deque[_WaitingSession[_Item]] = deque()
        # Without a language model, no session has to wait.
        max_waiting = _SESSIONS_PER_THREAD * self.llm.client.endpoint.concurrency if self.llm else 0
        for item, session in sessions:
            unseen_labels.discard(session.session_id)
            waiting.append(self._start(item, session))
            while len(waiting) > max_waiting:
                first = waiting.popleft()
                yield first.item, self._finish(first)
        while waiting:
            first = waiting.popleft()
            yield first.item, self._finish(first)
        if self.llm:
            self.llm.check_refusals()
        note = self.labels.describe_unknown(unseen_labels)
        if note:
            self.labels.notes.append(note)

    @property
    def trusted(self) -> Collection[str] | None:
        """Return the groups of machine judges that passed their check; `None` without checks."""
        if self.checks is None:
            return None
        return {check.judge for check in self.checks if check.passed}

    def describe(self, key: PartitionKey) -> Iterator[str]:
        """Yield sentences about the run that a user should read."""
        yield from self.labels.notes
        for check in self.checks or ():
            if not check.passed:
                yield (
                    f"The judge {check.describe()}. Until then, its verdicts on sessions of {key} "
                    f"are unverified. To label sessions, run `agent-pipeline review {key}`."
                )
        yield from describe_scales(self.scales, self.policy, key)
        if self.addressing_judge:
            yield (
                f"{self.addressing_judge} sessions of {key} contain a text that addresses a "
                "judge, so measures and the language model do not judge them: judge these "
                f"sessions with `agent-pipeline review {key}`."
            )
        if self.pending:
            yield (
                f"The language model has not judged {self.pending} sessions of {key} yet, and "
                "nobody else judged them: the next run asks the model again."
            )
        judged_count = self.verdicts.total() - self.verdicts["none"]
        if self.verdicts and not judged_count:
            yield (
                f"No session of {key} has a verdict, so none is used for training: "
                f"{advise_on_judging(key)}."
            )
            if self.undeclared:
                names = ", ".join(sorted(self.undeclared)[:5])
                yield (
                    f"The metrics of these sessions ({names}) give no verdicts until the setting "
                    "`metrics` says whether a higher or a lower value is better."
                )
        unverified_count = sum(
            count for verdict, count in self.verdicts.items() if verdict.endswith(" by unverified")
        )
        if unverified_count:
            yield (
                f"{unverified_count} of {judged_count} verdicts of {key} are unverified, because "
                "of when_unjudged or because the judge is not trusted. A model may learn from "
                f"failures: judge a sample with `agent-pipeline review {key}`."
            )

    def _start(self, item: _Item, session: Session) -> _WaitingSession[_Item]:
        """Collect the opinions of all judges on a session, except for the language model's answer.

        The question is sent to the language model, but the function does not wait for the answer.
        """
        context = EvaluationContext.from_session(session)
        self.undeclared.update(session.scores.keys() - self.policy.metrics.keys())
        results = {
            measure.name: self._redact_reason(measure.take(context)) for measure in self.measures
        }
        label = self.labels.by_id.get(session.session_id)
        opinions = collect_opinions(session, results, self.policy, label, self.scales)
        turns = find_turn_facts(context, self.turn_measures)
        llm_opinion = None
        if self.llm and not _addresses_judge(turns) and self._needs_llm(session, opinions):
            llm_opinion = self.llm.ask_opinion(context)
        return _WaitingSession(item, session, results, opinions, llm_opinion, turns)

    def _redact_reason(self, judged: _WithReason) -> _WithReason:
        reason = self.redact(judged.reason)
        return judged if reason is judged.reason else judged._replace(reason=reason)

    def _needs_llm(self, session: Session, opinions: dict[str, Opinion]) -> bool:
        if session.archived or session.error is not None or session.attack_succeeded:
            return False
        if all(message["role"] == "system" for message in session.messages):
            return False
        if session.session_id in self.checked_sessions:
            opinions = {judge: opinions[judge] for judge in opinions if judge != "label"}
        return self.ask_llm == "all" or self.policy.needs_opinion("llm", opinions)

    def _finish(self, waiting: _WaitingSession[_Item]) -> JudgedSession:
        """Wait for the language model's answer, then return and count the verdict on a session."""
        opinions = dict(waiting.opinions)
        if waiting.llm_opinion:
            opinions["llm"] = self._redact_reason(waiting.llm_opinion.result())
        addresses_judge = _addresses_judge(waiting.turns)
        self.addressing_judge += addresses_judge
        trust = MachineTrust(self.trusted, addresses_judge)
        judged = decide_verdict(waiting.session, self.policy, waiting.results, opinions, trust)
        judged = judged._replace(turns=waiting.turns)
        for turn in waiting.turns:
            self.turns.update(["turns", *list_true_facts(turn._asdict())])
        is_pending = any(opinion.pending for opinion in opinions.values())
        if is_pending and self.policy.needs_opinion("llm", waiting.opinions):
            self.pending += 1
        self.verdicts[f"{judged.verdict} by {judged.verdict_by}" if judged.verdict else "none"] += 1
        for name, result in judged.measures.items():
            if result.passed is False:
                self.failed[name] += 1
            elif result.passed is None and result.score is None:
                self.not_taken[f"{name} {result.reason}"] += 1
        self.agreement.add(judged)
        return judged


def _addresses_judge(turns: Sequence[TurnFacts]) -> bool:
    return any(turn.addresses_judge for turn in turns)
