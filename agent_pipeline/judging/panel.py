"""All judges on a stream of sessions: everything that costs nothing first, the language model only where it still matters."""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, field_validator

from agent_pipeline.judging import (
    library as library,
)  # registers the measures that the options name
from agent_pipeline.judging.agreement import Agreement
from agent_pipeline.judging.client import Limits
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import Labels
from agent_pipeline.judging.llm import LlmJudge
from agent_pipeline.judging.measures import (
    MEASURES,
    ConfiguredMeasure,
    MeasureResult,
    parse_measures,
)
from agent_pipeline.judging.policy import (
    JUDGES,
    OLD_WHEN_UNJUDGED,
    Judged,
    Opinion,
    Policy,
    WhenUnjudged,
    decide,
    how_to_judge,
    opinions_of,
)
from agent_pipeline.judging.turns import TurnFacts, true_facts, turn_facts
from agent_pipeline.keys import PartitionKey
from agent_pipeline.options import Options
from agent_pipeline.sessions.session import Session

AskLlm = Literal["undecided", "all"]


class JudgingOptions(Options):
    """How a verdict is reached."""

    measures: list[str] = Field(
        default=["ended_with_answer", "no_tool_error_at_end", "all_calls_answered"],
        description="Measures to take of every session, as at_most_steps(12), tool_success_rate >= 0.8 or my_package.measures.polite; "
        f"registered: {', '.join(sorted(MEASURES))}.",
    )
    turn_measures: list[str] = Field(
        default=[],
        description="Measures to take of each of the agent's turns on its own (its words, its calls, their results), written as measures; "
        "the column turns names those that a turn fails, and sft_dataset.untrained_turns leaves such turns out of training.",
    )
    decided_by: list[str] = Field(
        default=["label", "judgment", "score", "metrics"],
        description=f"Who decides, the first with an opinion first: {', '.join(JUDGES)}; measures+llm is both together.",
    )
    when_unjudged: WhenUnjudged = Field(
        default="exclude",
        description="Verdict of a session that no judge has an opinion of. exclude: none, so it is not trained on. train_unverified: "
        "acceptable unless a measure fails, although nobody checked it. acceptable, unacceptable: this verdict. The last three are marked: "
        "verdict_by is unverified.",
    )
    score_acceptable: float = Field(default=1.0, description="A score from here up is acceptable.")
    score_unacceptable: float = Field(
        default=0.0,
        description="A score from here down is unacceptable; between the two it says nothing.",
    )
    metrics: dict[str, str] = Field(
        default={},
        description="A platform's metrics that are opinions, each with its direction: higher, lower (with the two thresholds of scores), "
        "or a comparison ('>= 0.8', '<= 2'). A metric that is not named here decides nothing.",
    )
    ask_llm: AskLlm = Field(
        default="undecided",
        description="With llm in decided_by: ask it where its opinion can still change the verdict, or of all (to compare it with people).",
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Refuse labels that name a smaller share of the sessions that people had judged at the last run: a file of them may be "
        "missing. 0 accepts any.",
    )
    llm_max_requests: int = Field(
        default=1000, ge=0, description="Requests to the language model in one run; 0 is no limit."
    )
    llm_max_tokens: int = Field(
        default=5_000_000, ge=0, description="Tokens in one run, asked and answered; 0 is no limit."
    )
    llm_max_usd: float = Field(
        default=0.0,
        ge=0,
        description="US dollars in one run, by the prices of the settings; 0 is no limit.",
    )

    @field_validator("when_unjudged", mode="before")
    @classmethod
    def _refuse_the_old_name(cls, value: Any) -> Any:
        if value == "measures":
            raise ValueError(f"{OLD_WHEN_UNJUDGED}.")
        return value

    @property
    def policy(self) -> Policy:
        """Who decides; raises SettingsError where that contradicts itself."""
        return Policy(
            self.decided_by,
            self.when_unjudged,
            self.score_acceptable,
            self.score_unacceptable,
            self.metrics,
        )

    @property
    def limits(self) -> Limits:
        """What the language model may cost."""
        return Limits(self.llm_max_requests, self.llm_max_tokens, self.llm_max_usd)


_Reasoned = TypeVar("_Reasoned", MeasureResult, Opinion)


class _Heard(NamedTuple):
    key: Any
    session: Session
    results: dict[str, MeasureResult]
    opinions: dict[str, Opinion]
    llm: "Future[Opinion] | None"
    turns: list[TurnFacts]


@dataclass
class Panel:
    """The judges of one run, and what they said, counted.

    `ask_llm`: `undecided` asks the model where its opinion can still change the verdict, `all` wherever there is something to judge (to see
    how far it agrees with people). `redact` replaces what is private in the reasons of measures and of the model. `pending` counts the sessions that it should have judged and did not (a limit, an outage, an answer that
    did not parse): they are not done. Archived and empty sessions and failures of the infrastructure are never asked about.
    """

    measures: list[ConfiguredMeasure]
    policy: Policy
    labels: Labels
    llm: LlmJudge | None = None
    ask_llm: AskLlm = "undecided"
    turn_measures: Sequence[ConfiguredMeasure] = ()
    redact: Callable[[str], str] = str
    verdicts: Counter[str] = field(default_factory=Counter)
    pending: int = 0
    failed: Counter[str] = field(default_factory=Counter)
    not_taken: Counter[str] = field(default_factory=Counter)
    undeclared: Counter[str] = field(default_factory=Counter)
    turns: Counter[str] = field(default_factory=Counter)
    agreement: Agreement = field(default_factory=Agreement)

    @classmethod
    def of(cls, options: JudgingOptions, labels: Labels | None = None) -> "Panel":
        """The judges of these options, but the language model. Raises SettingsError."""
        measures, of_turns = parse_measures(options.measures), parse_measures(options.turn_measures)
        return cls(
            measures,
            options.policy,
            labels or Labels(),
            ask_llm=options.ask_llm,
            turn_measures=of_turns,
        )

    def judge(self, sessions: Iterable[tuple[Any, Session]]) -> Iterator[tuple[Any, Judged]]:
        """Every session's verdict beside whatever came with it, in order.

        Raises:
            SettingsError: the language model's endpoint cannot be used at all.
        """
        unseen = set(self.labels.by_id)
        waiting: deque[_Heard] = deque()
        # As many sessions are held as keep the model busy: without one, none.
        ahead = 4 * self.llm.client.endpoint.concurrency if self.llm else 0
        for key, session in sessions:
            unseen.discard(session.session_id)
            waiting.append(self._hear(key, session))
            while len(waiting) > ahead:
                yield self._decided(waiting.popleft())
        while waiting:
            yield self._decided(waiting.popleft())
        if self.llm:
            self.llm.check_refusals()
        self.labels.notes.extend(filter(None, [self.labels.unknown(unseen)]))

    def notes(self, key: PartitionKey) -> Iterator[str]:
        """What a person should know of the run, in sentences."""
        yield from self.labels.notes
        if self.pending:
            yield f"The language model did not judge {self.pending} sessions of {key} that nobody else did: the next run asks again."
        if self.verdicts and not any(
            count for verdict, count in self.verdicts.items() if verdict != "none"
        ):
            yield f"No session of {key} has a verdict, so none is trained on: {how_to_judge(key)}."
            if self.undeclared:
                names = ", ".join(sorted(self.undeclared)[:5])
                yield f"Their metrics ({names}) are no verdict until the setting metrics says whether higher or lower is better."
        unverified = sum(
            count for verdict, count in self.verdicts.items() if verdict.endswith(" by unverified")
        )
        if unverified:
            judged = sum(count for verdict, count in self.verdicts.items() if verdict != "none")
            yield (
                f"{unverified} of {judged} verdicts of {key} are unverified (when_unjudged), so a model may learn from failures: judge a "
                f"sample with `agent-pipeline review {key} --out review.html`."
            )

    def _hear(self, key: Any, session: Session) -> _Heard:
        context = EvaluationContext.of(session)
        self.undeclared.update(session.scores.keys() - self.policy.metrics.keys())
        results = {measure.name: self._redacted(measure.take(context)) for measure in self.measures}
        opinions = opinions_of(
            session, results, self.policy, self.labels.by_id.get(session.session_id)
        )
        asked = self.llm.opinion(context) if self.llm and self._matters(session, opinions) else None
        return _Heard(
            key, session, results, opinions, asked, turn_facts(context, self.turn_measures)
        )

    def _redacted(self, judged: _Reasoned) -> _Reasoned:
        reason = self.redact(judged.reason)
        return judged if reason is judged.reason else judged._replace(reason=reason)

    def _matters(self, session: Session, opinions: dict[str, Opinion]) -> bool:
        if session.archived or session.error is not None or session.attack_succeeded:
            return False
        if not any(message["role"] != "system" for message in session.messages):
            return False
        return self.ask_llm == "all" or self.policy.asks_for("llm", opinions)

    def _decided(self, heard: _Heard) -> tuple[Any, Judged]:
        of_model = {"llm": self._redacted(heard.llm.result())} if heard.llm else {}
        opinions = heard.opinions | of_model
        judged = decide(heard.session, self.policy, heard.results, opinions)._replace(
            turns=heard.turns
        )
        self.turns.update(
            name for turn in heard.turns for name in ("turns", *true_facts(turn._asdict()))
        )
        self.pending += any(each.pending for each in opinions.values()) and self.policy.asks_for(
            "llm", heard.opinions
        )
        self.verdicts[f"{judged.verdict} by {judged.verdict_by}" if judged.verdict else "none"] += 1
        for name, result in judged.measures.items():
            if result.passed is False:
                self.failed[name] += 1
            elif result.passed is None and result.score is None:
                self.not_taken[f"{name} {result.reason}"] += 1
        self.agreement.add(judged)
        return heard.key, judged
