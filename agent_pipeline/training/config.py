"""The options of every training step.

Every number that changes what is trained is here. Options have the names of TRL, transformers and
PEFT. How an option becomes an argument of a trainer belongs to `trainers`. Defaults that depend on
the base model and the rows belong to `size_defaults`.

The defaults suit small models and a few hundred rows of tool calls on a CPU:

- The learning rate is one for LoRA. A full fine-tune needs about a tenth of it.
- A training run of a hundred steps begins with gradients many times larger than those at its end,
  where decisions are learned. Adam's usual memory of a thousand steps (`adam_beta2` 0.999) would
  keep the last steps small.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from agent_pipeline.models.device import Precision
from agent_pipeline.options import Options

Scheduler = Literal[
    "linear",
    "cosine",
    "cosine_with_restarts",
    "polynomial",
    "constant",
    "constant_with_warmup",
    "inverse_sqrt",
]
"""The learning rate schedules of transformers that do not need another number."""


STORED_TOKENS = 900
"""Number of tokens per pass above which `gradient_checkpointing="auto"` recomputes activations on a
CPU.

On a GPU the free memory decides (`trainers.common.stored_tokens`). Measured with SmolLM2-135M in
float32 on 2 cores: kept activations take 3.1 MB per token, so 900 tokens peak at about 4.1 GB. The
attention of a tree adds up to 0.5 GB (`engine.tree_attention.KEPT_BYTES`). Recomputing costs a
fifth of the speed (125 → 99 tokens/s at batch 1 × 300 tokens) and saves 1.5 of 5.1 GB (batch 4 ×
300).
"""

RATE_BY_SIZE = (
    "Peak learning rate. 0 means that the rate depends on the size of the base model and on the "
    "training step. docs/reference/settings.md lists the rates."
)

_NOT_HASHED = {"gradient_checkpointing", "save_steps", "processes", "most_dropped"}
"""Options that change how a model is trained, but not which model results."""


class Training(Options):
    """The options that all trainers share. An optimizer step processes `step_rows` rows."""

    other_names = {
        # SAGE and omniagents
        "num_epochs": "num_train_epochs",
        "max_seq_length": "max_length",
        "per_device_batch_size": "per_device_train_batch_size",
    }
    earlier_names = {
        "epochs": "num_train_epochs",
        "lr_scheduler": "lr_scheduler_type",
        "batch_size": "per_device_train_batch_size",
    }

    num_train_epochs: float = Field(
        default=1.0, gt=0, description="Number of passes over the selected rows."
    )
    max_steps: int = Field(
        default=0,
        ge=0,
        description="Number of optimizer steps after which training stops. 0 trains all epochs.",
    )
    learning_rate: float = Field(
        default=1.5e-3,
        gt=0,
        description=(
            "Peak learning rate. LoRA needs about ten times the rate of a full fine-tune."
        ),
    )
    lr_scheduler_type: Scheduler = Field(
        default="linear",
        description="Curve of the learning rate after the warm-up, by the names of transformers.",
    )
    warmup_ratio: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the steps in which the learning rate rises to its peak.",
    )
    adam_beta2: float = Field(
        default=0.95,
        gt=0,
        lt=1,
        description=(
            "Decay of Adam's mean of squared gradients. A small value forgets the "
            "large first gradients of a short training run."
        ),
    )
    max_grad_norm: float = Field(
        default=1.0,
        gt=0,
        description="Maximum norm of the gradients. Gradients with a larger norm are clipped.",
    )
    per_device_train_batch_size: int = Field(
        default=1,
        ge=1,
        description=(
            "Number of rows per forward pass and device. An optimizer step has "
            "gradient_accumulation_steps times as many rows."
        ),
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = Field(
        default="auto",
        description=(
            "Whether activations are recomputed to save memory. auto recomputes them if the rows "
            "are long. The setting does not change the trained model."
        ),
    )
    max_length: int = Field(
        default=2048,
        ge=16,
        description=(
            "Maximum length of a row, in tokens. A longer row loses its oldest messages, but "
            "never a part of an answer."
        ),
    )
    precision: Precision = Field(
        default="auto",
        description=(
            "Number type of the frozen weights and of matrix products. auto uses bfloat16 if "
            "matrix products are faster in bfloat16 on this machine."
        ),
    )
    seed: int = Field(
        default=42,
        ge=0,
        description="Seed for the order of the rows and for the adapter's initial values.",
    )

    def identity(self) -> dict[str, Any]:
        """Return the options that change the trained model, under the names that enter hashes.

        How memory is saved, how often a checkpoint is written and how many processes compute do
        not change the trained model.
        """
        return self.with_hashed_names(self.model_dump(exclude=_NOT_HASHED))

    @property
    def step_rows(self) -> int:
        """Return the number of rows per optimizer step."""
        return self.per_device_train_batch_size

    def checkpoints_gradients(self, tokens: int, stored: int = STORED_TOKENS) -> bool:
        """Return whether the backward pass recomputes activations.

        Args:
            tokens: Tokens per forward pass.
            stored: Tokens whose activations fit into memory.
        """
        if self.gradient_checkpointing == "auto":
            return tokens > stored
        return self.gradient_checkpointing == "on"


_REMOVED_DEFAULTS = {"decision_weight": 1.0, "balance_classes": False}
"""Removed options, each with the value that had no effect.

They stay in the identity of a training run, so that an adapter of an earlier version is found
again.
"""


class AdapterTraining(Training):
    """The options of imitation learning with an adapter.

    An optimizer step sees `per_device_train_batch_size` × `gradient_accumulation_steps` rows. On a
    few hundred rows, steps teach more than large batches: with 2 rows per step instead of 4, the
    same tokens give twice the steps.

    If a model is trained over trees of prefixes (`trainers.sft`), the rows of a step are packed.
    Then only the product of the two numbers matters and, on a CPU, the memory of a tree. For other
    models one row at a time is fastest on a CPU, because there is no padding.
    """

    other_names = {**Training.other_names, "r": "lora_r"}
    earlier_names = {
        **Training.earlier_names,
        "gradient_accumulation": "gradient_accumulation_steps",
        "lora_plus_lr_ratio": "loraplus_lr_ratio",
    }
    removed_options = dict.fromkeys(
        _REMOVED_DEFAULTS, "loss weights made models that did far fewer of their tasks"
    )

    gradient_accumulation_steps: int = Field(
        default=2,
        ge=1,
        description="Number of forward passes per optimizer step.",
    )
    lora_r: int = Field(default=16, ge=1, description="Rank of the adapter's matrices.")
    lora_alpha: int = Field(
        default=32,
        ge=1,
        description=(
            "Scale of the adapter. The output of the adapter is multiplied by lora_alpha / lora_r."
        ),
    )
    lora_dropout: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Probability of dropout on the input of the adapter.",
    )
    target_modules: str = Field(
        default="all-linear",
        description=(
            "Modules of the base model that get an adapter: all-linear, or a list of names with "
            "commas, such as q_proj, v_proj."
        ),
    )
    use_dora: bool = Field(
        default=False,
        description=(
            "Whether the direction and the magnitude of the weights are trained separately "
            "(DoRA, Liu et al. 2024)."
        ),
    )
    use_lora_plus: bool = Field(
        default=False,
        description=(
            "Whether matrix B of the adapter has a higher learning rate than "
            "matrix A (LoRA+, Hayou et al. 2024)."
        ),
    )
    loraplus_lr_ratio: float = Field(
        default=16.0,
        ge=1,
        description=(
            "Learning rate of matrix B divided by the learning rate of matrix A, for use_lora_plus."
        ),
    )

    masked_names: float = Field(
        default=0.3,
        ge=0,
        le=1,
        description=(
            "Share of the optimizer steps in which the tools and parameters of the rows are "
            "renamed (Hammer, Lin et al. 2024). The model then learns to read the tool schemas "
            "instead of memorizing names."
        ),
    )
    extra_tools: float = Field(
        default=0.2,
        ge=0,
        le=1,
        description=(
            "Share of the optimizer steps in which each row gets up to three additional tools "
            "that the agent did not need."
        ),
    )
    joined_sessions: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description=(
            "Maximum share of the rows that are joined with other rows into one conversation of "
            "two or three requests. Rows are joined only if their sessions cannot contradict "
            "each other."
        ),
    )
    most_dropped: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description=(
            "Maximum share of rows that are dropped or shortened because of max_length or the "
            "chat template. If the share is larger, training fails, and the error proposes a "
            "max_length."
        ),
    )
    processes: int = Field(
        default=1,
        ge=1,
        description=(
            "Number of processes that share the rows of a step. Each process has its own GPU. "
            "The setting does not change the trained model."
        ),
    )

    @property
    def step_rows(self) -> int:
        return self.per_device_train_batch_size * self.gradient_accumulation_steps


class TrainingConfig(AdapterTraining):
    """The options of imitation learning, with an adapter or, if `use_lora=False`, of all weights.

    Raises:
        SettingsError: a value is out of range, or two values contradict each other.
    """

    earlier_names = {**AdapterTraining.earlier_names, "checkpoint_steps": "save_steps"}

    use_lora: bool = Field(
        default=True,
        description="Whether an adapter is trained; false trains every weight of the model.",
    )
    in_order: bool = Field(
        default=False, description="Whether the rows keep their order instead of being shuffled."
    )
    save_steps: int = Field(
        default=10, ge=1, description="Optimizer steps between two checkpoints."
    )

    @model_validator(mode="after")
    def _adapter_options_need_an_adapter(self) -> Self:
        for name in ("use_dora", "use_lora_plus"):
            if getattr(self, name) and not self.use_lora:
                raise ValueError(
                    f"`{name}` trains an adapter, but `use_lora` is off: turn `use_lora` on."
                )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the options that change the trained model, and the defaults of removed options."""
        return super().identity() | _REMOVED_DEFAULTS

    @property
    def modules(self) -> str | list[str]:
        """Return the value of `target_modules` for PEFT: `all-linear`, or a list of names."""
        names = [name.strip() for name in self.target_modules.split(",") if name.strip()]
        return names[0] if names == ["all-linear"] else names


class FurtherTraining(Training):
    """The options of every step that continues to train an SFT adapter.

    The adapter keeps its rank and modules.
    """

    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=RATE_BY_SIZE,
    )
    adam_beta2: float = Field(
        default=0.999,
        gt=0,
        lt=1,
        description=(
            "Decay of Adam's mean of squared gradients. A small value forgets the "
            "large first gradients of a short training run."
        ),
    )
    per_device_train_batch_size: int = Field(
        default=4, ge=1, description="Number of rows per optimizer step."
    )
    min_rows: int = Field(
        default=8,
        ge=1,
        description=(
            "Minimum number of rows for a training step. With fewer rows, the step trains nothing."
        ),
    )
    stop_steps: int = Field(
        default=5,
        ge=1,
        description=(
            "Number of optimizer steps between two tests of the model's decisions on the split "
            "`select`. A decision is which tool a turn calls, or that it calls no tool. Each "
            "test also writes a checkpoint."
        ),
    )
    stop_fall: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description=(
            "Drop in the mean probability of the right decision at which training stops. The "
            "drop is measured separately for each kind of decision: each tool, and an answer "
            "without a tool call."
        ),
    )
    stop_turns: int = Field(
        default=16,
        ge=0,
        description=(
            "Number of turns per kind of decision in each test of stop_steps. 0 means that "
            "training never stops early."
        ),
    )


class PreferenceTraining(FurtherTraining):
    """The options of training an SFT adapter from preferences.

    The SFT adapter is also the reference.
    """

    other_names = {**Training.other_names, "kl_coef": "beta"}

    beta: float = Field(
        default=0.1,
        gt=0,
        description="Strength of the penalty for moving away from the SFT adapter.",
    )


class DpoTraining(PreferenceTraining):
    """The options of DPO: training from pairs of assistant turns (Rafailov et al. 2023)."""

    sft_weight: float = Field(
        default=0.2,
        ge=0,
        description=(
            "Weight of an additional SFT loss on the chosen turns. This loss keeps their "
            "probability high (RPO, Pang et al. 2024)."
        ),
    )


class KtoTraining(PreferenceTraining):
    """The options of KTO: training from good and bad sessions (Ethayarajh et al. 2024)."""


class OnPolicyTraining(FurtherTraining):
    """The options of training an adapter on texts that the adapter itself writes."""

    earlier_names = {**Training.earlier_names, "max_new_tokens": "max_completion_length"}

    temperature: float = Field(
        default=1.0,
        gt=0,
        description="Sampling temperature at which the adapter writes turns during training.",
    )
    max_completion_length: int = Field(
        default=96,
        ge=1,
        description=(
            "Maximum length of a message that the adapter writes during training, in tokens."
        ),
    )


class GrpoTraining(OnPolicyTraining):
    """The options of GRPO: training from rewards (Shao et al. 2024).

    A trial that earned more than the other trials of its row becomes more probable. An optimizer
    step sees `per_device_train_batch_size` rows, with `num_generations` trials of each.
    """

    other_names = {**Training.other_names, "kl_coef": "beta"}
    earlier_names = {**OnPolicyTraining.earlier_names, "generations": "num_generations"}

    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=RATE_BY_SIZE,
    )
    beta: float = Field(
        default=0.04,
        ge=0,
        description=(
            "Strength of the penalty for moving away from the adapter of the previous step."
        ),
    )
    num_generations: int = Field(
        default=4,
        ge=2,
        description=(
            "Number of trials per row. GRPO compares the rewards of these trials with each other."
        ),
    )
    use_world: bool = Field(
        default=True,
        description=(
            "Whether the model plays whole tasks in the agent's world, if the agent has a world. "
            "If this setting is false, or if there is no world, single turns are rewarded if "
            "they agree with the logged turns."
        ),
    )
    max_turns: int = Field(
        default=12,
        ge=1,
        description="Number of assistant messages after which an episode is cut off.",
    )
    harm_penalty: float = Field(
        default=1.0,
        ge=0,
        description=(
            "Penalty for harm. It is subtracted from the reward if an episode does harm, or if "
            "the model calls a tool at a turn at which the logged agent called no tool."
        ),
    )


class SdftTraining(OnPolicyTraining):
    """The options of self-distillation (SDFT, Shenfeld et al. 2026).

    The teacher is the same adapter with the logged turn in its prompt.
    """


class DistillTraining(OnPolicyTraining):
    """The options of on-policy distillation from a larger model (Agarwal et al. 2024).

    The adapter writes, and the teacher rates every token.
    """

    teacher_model: str = Field(
        default="",
        description=(
            "Hugging Face id or local path of the teacher model. The teacher must have the same "
            "vocabulary as the base model."
        ),
    )
    teacher_revision: str = Field(
        default="",
        description=(
            "Commit, tag or branch of the teacher model on the Hugging Face hub. If this setting "
            "is empty, the main branch is used."
        ),
    )
    beta: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description=(
            "Kind of divergence between the adapter and the teacher. 0 is the forward KL "
            "divergence, 1 is the reverse KL divergence, and values between them mix both."
        ),
    )


Step = Literal["sft", "sdft", "distill", "dpo", "kto", "grpo"]
"""The training steps of an agent's chain, in order."""

FURTHER: dict[Step, type[Any]] = {
    "sdft": SdftTraining,
    "distill": DistillTraining,
    "dpo": DpoTraining,
    "kto": KtoTraining,
    "grpo": GrpoTraining,
}
"""The options class of each step after SFT, which is a subclass of `FurtherTraining`."""

PREFERENCES = {"dpo": "preference_dataset", "kto": "kto_dataset"}
"""The training steps that learn from preferences, with their datasets. All other steps use
`sft_dataset`.
"""

NO_TEACHER = (
    "The step distill has no teacher: set `distill_adapter.teacher_model` to a larger model with "
    "the same vocabulary."
)
