"""Settings of methods to compare. A method is a name and the settings that distinguish it."""

from typing import Annotated, Any

from pydantic import AfterValidator, Field, field_validator

from agent_pipeline.options import Section, did_you_mean
from agent_pipeline.training.chain import STEPS, check_chain, name_adapter_asset
from agent_pipeline.training.config import Step

AssetValues = dict[str, dict[str, Any]]
Chain = Annotated[list[Step], AfterValidator(check_chain)]

TRAINING = ("sft_coreset", *map(name_adapter_asset, STEPS))
"""The assets whose settings define a method."""
ALL_ROWS = 10**9
QUICK = ("A_baseline", "B3_coreset_hybrid", "D_combined")


class MethodSettings(Section):
    """One training method of `method_comparison` (`[methods.ID]`)."""

    name: str = Field(default="", description="Name of the method in reports.")
    description: str = Field(default="", description="Description of the method in one sentence.")
    train: Chain | None = Field(
        default=None,
        description=(
            "Training steps of the method. These steps replace the training steps of the agent."
        ),
    )
    mix: bool = Field(
        default=False,
        description=(
            "Whether the method trains on multi_task_dataset, which contains rows of several "
            "agents."
        ),
    )
    assets: AssetValues = Field(
        default={},
        description=(
            f"Settings of {', '.join(TRAINING)}. All other settings are the settings of the agent."
        ),
    )

    @field_validator("assets")
    @classmethod
    def _of_a_training(cls, assets: AssetValues) -> AssetValues:
        if other := next((name for name in assets if name not in TRAINING), ""):
            raise ValueError(
                f"a method cannot set options of {other!r}{did_you_mean(other, TRAINING)}"
            )
        return assets


def _method(
    name: str, description: str, strategy: str = "", mix: bool = False, **adapter: object
) -> MethodSettings:
    """Return a method that trains on all rows, or on a coreset if a strategy is given.

    Features that the method does not name are switched off.
    """
    plain = {"replay_ratio": 0.0, "use_dora": False, "use_lora_plus": False}
    coreset = (
        {"strategy": strategy} if strategy else {"target_size": ALL_ROWS, "near_duplicates": 0.0}
    )
    assets = {"sft_coreset": coreset, "sft_adapter": plain | adapter}
    return MethodSettings(name=name, description=description, train=["sft"], mix=mix, assets=assets)


METHODS = {
    "A_baseline": _method("Baseline", "Standard supervised fine-tuning."),
    "B1_coreset_loss": _method(
        "Coreset (loss)", "The rows on which the base model has the highest loss.", "loss_topk"
    ),
    "B2_coreset_diversity": _method(
        "Coreset (diversity)", "The rows that differ most from each other.", "diversity"
    ),
    "B3_coreset_hybrid": _method(
        "Coreset (hybrid)", "60 % of the rows by loss, 40 % by diversity.", "hybrid"
    ),
    "C_continual": _method(
        "Continual", "Replay of rows of earlier batches and training runs.", replay_ratio=0.25
    ),
    "D_combined": _method("Combined", "A hybrid coreset with replay.", "hybrid", replay_ratio=0.25),
    "E_fireact": _method(
        "FireAct", "Fine-tuning on an agent's own trajectories (Chen et al. 2023)."
    ),
    "F_agenttuning": _method("AgentTuning", "Several tasks mixed (Zeng et al. 2023).", mix=True),
    "G_dora": _method(
        "DoRA", "Weight-decomposed low-rank adaptation (Liu et al. 2024).", use_dora=True
    ),
    "H_lora_plus": _method(
        "LoRA+", "A higher learning rate for matrix B (Hayou et al. 2024).", use_lora_plus=True
    ),
}
"""Methods by id. In the graph, method E trains on the same data as A, because an agent's curated
sessions are its trajectories.
"""
