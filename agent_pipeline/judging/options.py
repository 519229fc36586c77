"""The options of judging: which measures are taken, who decides, and what the model may cost."""

from typing import Any, Literal

from pydantic import Field, field_validator

from agent_pipeline.judging import (
    builtin_measures as builtin_measures,  # registers the measures that the options name
)
from agent_pipeline.judging.llm_client import SpendLimits
from agent_pipeline.judging.measures import MEASURES
from agent_pipeline.judging.verdict_policy import (
    JUDGES,
    OLD_WHEN_UNJUDGED,
    VerdictPolicy,
    WhenUnjudged,
)
from agent_pipeline.options import Options

AskLlm = Literal["undecided", "all"]


class JudgingOptions(Options):
    """How a verdict is reached."""

    measures: list[str] = Field(
        default=["ended_with_answer", "no_tool_error_at_end", "all_calls_answered"],
        description="Measures to take of every session, as at_most_steps(12), "
        "tool_success_rate >= 0.8 or my_package.measures.polite; "
        f"registered: {', '.join(sorted(MEASURES))}.",
    )
    turn_measures: list[str] = Field(
        default=[],
        description="Measures to take of each of the agent's turns on its own (its words, its "
        "calls, their results), written as measures; the column turns names those that a turn "
        "fails, and sft_dataset.untrained_turns leaves such turns out of training.",
    )
    decided_by: list[str] = Field(
        default=["label", "judgment", "score", "metrics"],
        description=f"Who decides, the first with an opinion first: {', '.join(JUDGES)}; "
        "measures+llm is both together.",
    )
    when_unjudged: WhenUnjudged = Field(
        default="exclude",
        description="Verdict of a session that no judge has an opinion of. exclude: none, so it "
        "is not trained on. train_unverified: acceptable unless a measure fails, although nobody "
        "checked it. acceptable, unacceptable: this verdict. The last three are marked: "
        "verdict_by is unverified.",
    )
    score_acceptable: float = Field(default=1.0, description="A score from here up is acceptable.")
    score_unacceptable: float = Field(
        default=0.0,
        description="A score from here down is unacceptable; between the two it says nothing.",
    )
    metrics: dict[str, str] = Field(
        default={},
        description="A platform's metrics that are opinions, each with its direction: higher, "
        "lower (with the two thresholds of scores), or a comparison ('>= 0.8', '<= 2'). A metric "
        "that is not named here decides nothing.",
    )
    ask_llm: AskLlm = Field(
        default="undecided",
        description="With llm in decided_by: ask it where its opinion can still change the "
        "verdict, or of all (to compare it with people).",
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Refuse labels that name a smaller share of the sessions that people had "
        "judged at the last run: a file of them may be missing. 0 accepts any.",
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
    def _refuse_old_name(cls, value: Any) -> Any:
        if value == "measures":
            raise ValueError(f"{OLD_WHEN_UNJUDGED}.")
        return value

    @property
    def policy(self) -> VerdictPolicy:
        """The rules of who decides; raises SettingsError if they contradict each other."""
        return VerdictPolicy(
            self.decided_by,
            self.when_unjudged,
            self.score_acceptable,
            self.score_unacceptable,
            self.metrics,
        )

    @property
    def limits(self) -> SpendLimits:
        """What the language model may cost."""
        return SpendLimits(self.llm_max_requests, self.llm_max_tokens, self.llm_max_usd)
