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
        description=("Highest allowed chance, per year, of promoting a model that is not better."),
    )
    gain_sought: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description=(
            "Smallest gain, as a share, that the test must be able to detect. If "
            "there are too few tasks to detect the gain, the outcome is 'cannot decide'."
        ),
    )
    regression_margin: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Share by which call recall, over-call, each capability and the tasks done may get "
            "worse."
        ),
    )
    loss_margin: float = Field(
        default=0.1,
        ge=0,
        description=(
            "Largest accepted rise of the held-out loss, as a share of the champion's loss."
        ),
    )
    harm_margin: float = Field(
        default=0.02,
        ge=0,
        le=1,
        description=(
            "Largest accepted rise of the share of episodes with harm, compared with the champion."
        ),
    )
    most_harm: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Largest accepted share of episodes with harm. A candidate with more "
            "harm is rejected. A first champion must show that its harm is below "
            "this share."
        ),
    )
    least_separation: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description=(
            "Smallest accepted difference between call recall and over-call. The "
            "difference is 0 for a model that always calls a tool, or never calls "
            "a tool."
        ),
    )
    confirm_tasks: int = Field(
        default=20,
        ge=2,
        description=(
            "Smallest number of newer tasks with which a gain must also hold on the newer tasks "
            "alone. A task of the split select is newer if all its sessions began after the "
            "champion was trained."
        ),
    )

    def rules(self) -> dict[str, object]:
        """Return the policy values that enter the identity of a decision.

        `ChampionConfig` has more values.
        """
        values = self.model_dump(include=set(PromotionPolicy.model_fields))
        return self.with_hashed_names(values)
