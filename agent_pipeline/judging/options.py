"""Options of judging: the measures, the judges that decide, and the cost limits of the model."""

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


_LIMITS = ("score_acceptable", "score_unacceptable")
"""The options that say on which scale the scores are."""


class JudgingOptions(Options):
    """The options of `judged_sessions`: measures, judges, and cost limits of the language model."""

    measures: list[str] = Field(
        default=["ended_with_answer", "no_tool_error_at_end", "all_calls_answered"],
        description=(
            "Measures (automatic tests) of whole sessions, such as at_most_steps(12), "
            "tool_success_rate >= 0.8 or my_package.measures.polite. These measures are built "
            f"in: {', '.join(sorted(MEASURES))}."
        ),
    )
    turn_measures: list[str] = Field(
        default=[],
        description=(
            "Measures of single turns of the agent. A turn is the agent's text, its tool calls "
            "and their results. The setting sft_dataset.untrained_turns can exclude turns that "
            "fail a measure."
        ),
    )
    decided_by: list[str] = Field(
        default=["label", "judgment", "score", "metrics"],
        description=(
            "Judges, in order of priority. The first judge that has an opinion about a session "
            f"decides its verdict. The judges are {', '.join(JUDGES)}. The entry measures+llm "
            "gives the verdict acceptable only if both judges agree."
        ),
    )
    when_unjudged: WhenUnjudged = Field(
        default="exclude",
        description=(
            "Verdict of a session about which no judge has an opinion. exclude gives no verdict, "
            "so the session is not used for training. train_unverified gives the verdict "
            "acceptable, unless a measure fails. acceptable and unacceptable give this verdict "
            "to every such session. With all values except exclude, the column verdict_by "
            "contains unverified."
        ),
    )
    score_acceptable: float = Field(
        default=1.0,
        description=(
            "Score at or above which a session is acceptable. If you do not set score_acceptable, "
            "scores above 1 give no verdict, and a score of 1 gives no verdict if the agent's "
            "scores are on a scale that goes above 1."
        ),
    )
    score_unacceptable: float = Field(
        default=0.0,
        description=(
            "Score at or below which a session is unacceptable. A score between the two limits "
            "gives no verdict."
        ),
    )
    metrics: dict[str, str] = Field(
        default={},
        description=(
            "Metrics of your logging platform that give a verdict. The value of each metric is "
            "its direction (higher or lower), or a comparison such as '>= 0.8'. higher and lower "
            "use the limits score_acceptable and score_unacceptable. A metric that is not listed "
            "gives no verdict."
        ),
    )
    ask_llm: AskLlm = Field(
        default="undecided",
        description=(
            "Sessions that the language model judges, if decided_by contains llm. undecided "
            "means only sessions whose verdict the model can change. all means every session, so "
            "that the model can be compared with people."
        ),
    )
    smallest_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description=(
            "Minimum number of labels from people, divided by the number of labels at the last "
            "run. If there are fewer labels, the run fails, because a file of labels may be "
            "missing. 0 means no limit."
        ),
    )
    llm_max_requests: int = Field(
        default=1000,
        ge=0,
        description="Maximum number of requests to the language model per run. 0 means no limit.",
    )
    llm_max_tokens: int = Field(
        default=5_000_000,
        ge=0,
        description=(
            "Maximum number of tokens in the prompts and answers of the language model per run. "
            "0 means no limit."
        ),
    )
    llm_max_usd: float = Field(
        default=0.0,
        ge=0,
        description=(
            "Maximum cost of the language model per run, in US dollars. The cost of the language "
            "model is computed from judge.input_price and judge.output_price. 0 means no limit."
        ),
    )

    @field_validator("when_unjudged", mode="before")
    @classmethod
    def _refuse_old_name(cls, value: Any) -> Any:
        if value == "measures":
            raise ValueError(f"{OLD_WHEN_UNJUDGED}.")
        return value

    @property
    def policy(self) -> VerdictPolicy:
        """Return the rules that define which judge decides on a session.

        SettingsError is raised if the rules contradict each other.
        """
        return VerdictPolicy(
            self.decided_by,
            self.when_unjudged,
            self.score_acceptable,
            self.score_unacceptable,
            self.metrics,
            is_acceptable_set=self._is_acceptable_set,
        )

    @property
    def _is_acceptable_set(self) -> bool:
        return "score_acceptable" in self.model_fields_set

    def hashed(self) -> dict[str, Any]:
        """Return all options as JSON under the names that enter hashes.

        A limit that a user set to the value of the default is hashed differently than a limit that
        nobody set, because it gives other verdicts on scores above 1.
        """
        hashed = super().hashed()
        default = type(self).model_fields["score_acceptable"].default
        if self._is_acceptable_set and self.score_acceptable == default:
            hashed["is_acceptable_set"] = True
        return hashed

    @property
    def limits(self) -> SpendLimits:
        """Return the spend limits of the language model."""
        return SpendLimits(self.llm_max_requests, self.llm_max_tokens, self.llm_max_usd)
