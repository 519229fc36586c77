"""The promotion policy: the gain that is required, and the limits for other figures.

The settings of the asset `champion` extend this policy. The rules that apply it are in `rules`.
"""

from pydantic import Field

from agent_pipeline.options import Options


class PromotionPolicy(Options):
    """The limits that the decision rules apply."""

    earlier_names = {"guard_margin": "regression_margin"}

    year_error: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description=(
            "Maximum probability, per year, that a model is promoted although it is not better."
        ),
    )
    gain_sought: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description=(
            "Minimum gain in the share of right turns that the test must be able to detect. If "
            "there are too few tasks to detect this gain, the outcome of the decision is 'cannot "
            "decide'."
        ),
    )
    regression_margin: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Amount by which some shares may get worse, for example 0.05 for 5 points. It "
            "applies to call recall (calls at turns that need a call), over-call (calls at turns "
            "that need no call), each capability, and the tasks done."
        ),
    )
    loss_margin: float = Field(
        default=0.1,
        ge=0,
        description="Maximum increase in the held-out loss, as a share of the champion's loss.",
    )
    harm_margin: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description=(
            "Maximum increase in the share of episodes with harm, compared with the champion."
        ),
    )
    most_harm: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Maximum share of episodes with harm. A candidate with a larger share is rejected. "
            "If there is no champion yet, the candidate must show that its share of harm is "
            "below this limit."
        ),
    )
    least_separation: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description=(
            "Minimum difference between call recall (calls at turns that need a call) and "
            "over-call (calls at turns that need no call). The difference is 0 for a model that "
            "calls a tool at every turn, and for a model that never calls a tool."
        ),
    )
    confirm_tasks: int = Field(
        default=20,
        ge=2,
        description=(
            "Minimum number of newer tasks for a test on the newer tasks alone. If there are "
            "enough newer tasks, a gain must also be seen on them. A task of the split `select` "
            "is newer if all its sessions began after the champion was trained."
        ),
    )

    def rules(self) -> dict[str, object]:
        """Return the policy values that enter the identity of a decision.

        `ChampionConfig` has more values.
        """
        values = self.model_dump(include=set(PromotionPolicy.model_fields))
        return self.with_hashed_names(values)
