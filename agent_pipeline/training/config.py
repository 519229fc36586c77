"""Every number that has an effect on what is trained, with defaults for small models on few tool-call rows on a CPU.

The learning rate is one for LoRA, not for full fine-tuning (2e-5 is usual there). A training of a hundred steps begins with gradients many
times as large as those of its end, where decisions are learned: Adam's usual memory of a thousand steps (`adam_beta2` 0.999) would make the
last steps small.
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
"""The schedules of transformers that need no further number."""


STORED_TOKENS = 900
"""Above so many tokens a batch, `gradient_checkpointing="auto"` recomputes activations instead of keeping them; on a CPU (on a GPU, its
memory decides: `trainers.common.stored_tokens`).

Measured for SmolLM2-135M in float32 on 2 cores: 3.1 MB a token when kept, so 900 tokens peak at about 4.1 GB (to which a tree's attention
adds up to 0.5 GB, `trainers.tree_attention.KEPT_BYTES`). Recomputing
takes a fifth of the speed (125 → 99 tokens/s at batch 1 × 300 tokens), and gives back 1.5 of 5.1 GB (batch 4 × 300 tokens).
"""


BY_SIZE = (
    "Peak learning rate; 0: by the size of the base model ({}; see training/size_defaults.py)."
)


class Training(Options):
    """What every trainer needs to know. An optimizer step sees `step_rows` rows."""

    other_names = {
        # TRL and transformers
        "num_train_epochs": "epochs",
        "per_device_train_batch_size": "batch_size",
        "lr_scheduler_type": "lr_scheduler",
        # SAGE and omniagents
        "num_epochs": "epochs",
        "max_seq_length": "max_length",
        "per_device_batch_size": "batch_size",
    }

    epochs: float = Field(default=1.0, gt=0, description="Passes over the chosen rows.")
    max_steps: int = Field(
        default=0, ge=0, description="Stop after so many optimizer steps; 0 trains all epochs."
    )
    learning_rate: float = Field(
        default=1.5e-3,
        gt=0,
        description="Peak learning rate; LoRA needs ten times that of a full fine-tune.",
    )
    lr_scheduler: Scheduler = Field(
        default="linear", description="How the learning rate falls after the warm-up."
    )
    warmup_ratio: float = Field(
        default=0.1,
        ge=0,
        lt=1,
        description="Share of the steps over which the learning rate rises.",
    )
    adam_beta2: float = Field(
        default=0.95,
        gt=0,
        lt=1,
        description="Decay of Adam's mean of squared gradients; a small one forgets a short training's large first gradients.",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients are clipped to this norm."
    )
    batch_size: int = Field(
        default=1,
        ge=1,
        description="Rows in a forward pass; on a CPU, a tree of prefixes holds the tokens of two such passes.",
    )
    gradient_checkpointing: Literal["auto", "on", "off"] = Field(
        default="auto",
        description="Recompute activations to save memory; auto does so for long rows. It does not change what is trained.",
    )
    max_length: int = Field(
        default=2048,
        ge=16,
        description="Tokens of a row; longer rows lose their oldest exchanges, never part of an answer.",
    )
    precision: Precision = Field(
        default="auto",
        description="Type of the frozen weights and of products; auto takes bfloat16 where the machine multiplies faster in it.",
    )
    seed: int = Field(
        default=42,
        ge=0,
        description="Seed of the order of rows and of the adapter's initial values.",
    )

    def identity(self) -> dict[str, Any]:
        """The options that change what is trained: how memory is saved, how often a checkpoint is written and who computes, do not."""
        return self.model_dump(
            exclude={"gradient_checkpointing", "checkpoint_steps", "processes", "most_dropped"}
        )

    @property
    def step_rows(self) -> int:
        """Rows of an optimizer step."""
        return self.batch_size

    def checkpoints_gradients(self, tokens: int, stored: int = STORED_TOKENS) -> bool:
        """Whether to recompute activations on the way back; `tokens` are those of a pass, `stored` those that memory holds."""
        return (
            tokens > stored
            if self.gradient_checkpointing == "auto"
            else self.gradient_checkpointing == "on"
        )


_REMOVED_DEFAULTS = {"decision_weight": 1.0, "balance_classes": False}
"""Options that were removed, with the values that had no effect.

They stay in the identity of a training, so that an adapter of an earlier version is found again.
"""


class AdapterTraining(Training):
    """How an adapter is trained. An optimizer step sees `batch_size` × `gradient_accumulation` rows.

    On a few hundred rows, steps teach more than large batches: with 2 rows a step instead of 4, the same tokens give twice the steps.
    Where a model takes trees of prefixes (`trainers.tree`), the rows of a step are packed, and the two numbers matter by their product
    and, on a CPU, by the memory of a tree. Elsewhere one row at a time is the fastest on a CPU, since nothing is padding.
    """

    other_names = {
        **Training.other_names,
        "gradient_accumulation_steps": "gradient_accumulation",
        # PEFT
        "r": "lora_r",
        "loraplus_lr_ratio": "lora_plus_lr_ratio",
    }
    removed_options = dict.fromkeys(
        _REMOVED_DEFAULTS, "loss weights made models that did far fewer of their tasks"
    )

    gradient_accumulation: int = Field(
        default=2, ge=1, description="An optimizer step has batch_size times so many rows."
    )
    lora_r: int = Field(default=16, ge=1, description="Rank of the adapter's matrices.")
    lora_alpha: int = Field(
        default=32, ge=1, description="Scale of the adapter: alpha / r multiplies its output."
    )
    lora_dropout: float = Field(
        default=0.0, ge=0, lt=1, description="Dropout before the adapter's first matrix."
    )
    target_modules: str = Field(
        default="all-linear",
        description="Modules that get an adapter: all-linear, or names separated by commas, such as q_proj, v_proj.",
    )
    use_dora: bool = Field(
        default=False, description="Train direction and magnitude apart (DoRA, Liu et al. 2024)."
    )
    use_lora_plus: bool = Field(
        default=False,
        description="Train the adapter's second matrices faster than the first ones (LoRA+, Hayou et al. 2024).",
    )
    lora_plus_lr_ratio: float = Field(
        default=16.0, ge=1, description="LoRA+: how many times as fast."
    )

    most_dropped: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of the rows that may be dropped, or lose their beginning, because of max_length or the chat template. If it is "
        "more, nothing is trained, and the error proposes a max_length.",
    )
    processes: int = Field(
        default=1,
        ge=1,
        description="Processes that share the rows of a step, each with a GPU; the model is that of one process.",
    )

    @property
    def step_rows(self) -> int:
        return self.batch_size * self.gradient_accumulation


class TrainingConfig(AdapterTraining):
    """How a model is trained: an adapter, or with `use_lora=False` every weight.

    Raises:
        SettingsError: a value is out of range, or two contradict each other.
    """

    use_lora: bool = Field(
        default=True, description="Train an adapter; false trains every weight of the model."
    )
    in_order: bool = Field(
        default=False, description="See the rows in the order given, not shuffled."
    )
    checkpoint_steps: int = Field(
        default=10, ge=1, description="Write a checkpoint every so many optimizer steps."
    )

    @model_validator(mode="after")
    def _adapter_options_need_an_adapter(self) -> Self:
        for name in ("use_dora", "use_lora_plus"):
            if getattr(self, name) and not self.use_lora:
                raise ValueError(
                    f"{name} is a way to train an adapter, and use_lora is off: turn that on."
                )
        return self

    def identity(self) -> dict[str, Any]:
        """Return the options that change what is trained, and the defaults of removed options."""
        return super().identity() | _REMOVED_DEFAULTS

    @property
    def modules(self) -> str | list[str]:
        """`target_modules` as PEFT wants it: `all-linear`, or the names between commas."""
        names = [name.strip() for name in self.target_modules.split(",") if name.strip()]
        return names[0] if names == ["all-linear"] else names


class FurtherTraining(Training):
    """How an adapter that imitates is trained on. It keeps its rank and modules."""

    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=BY_SIZE.format("2e-4 below 0.3 billion weights, 2e-5 from 1 billion on"),
    )
    adam_beta2: float = Field(
        default=0.999, gt=0, lt=1, description="Decay of Adam's mean of squared gradients."
    )
    batch_size: int = Field(default=4, ge=1, description="Rows of an optimizer step.")
    min_rows: int = Field(default=8, ge=1, description="Train nothing from fewer rows.")
    stop_steps: int = Field(
        default=5,
        ge=1,
        description="Measure the kinds of decision on the split select, and write a checkpoint, every so many steps.",
    )
    stop_fall: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Stop where the mean probability of the right decision falls so much for one kind.",
    )
    stop_turns: int = Field(
        default=16, ge=0, description="Turns of each kind that are measured; 0 never stops."
    )


class PreferenceTraining(FurtherTraining):
    """How an adapter that imitates is trained on from preferences; it is the reference itself."""

    other_names = {**Training.other_names, "kl_coef": "beta"}

    beta: float = Field(
        default=0.1,
        gt=0,
        description="How strongly the adapter is held near the one that it starts from.",
    )


class DpoTraining(PreferenceTraining):
    """How an adapter is trained from pairs (DPO, Rafailov et al. 2023), a turn a side."""

    sft_weight: float = Field(
        default=0.2,
        ge=0,
        description="Weight of the chosen turns' own loss, which anchors their probability (RPO, Pang et al. 2024).",
    )


class KtoTraining(PreferenceTraining):
    """How an adapter is trained from sessions that are each good or bad (KTO, Ethayarajh et al. 2024)."""


class OnPolicyTraining(FurtherTraining):
    """How an adapter is trained on what it writes itself."""

    temperature: float = Field(default=1.0, gt=0, description="Temperature at which it writes.")
    max_new_tokens: int = Field(
        default=96, ge=1, description="Longest message that it writes, in tokens."
    )


class GrpoTraining(OnPolicyTraining):
    """How an adapter is trained from rewards (GRPO, Shao et al. 2024): what earned more than the other trials of its row gains.

    An optimizer step sees `batch_size` rows, `generations` trials of each.
    """

    other_names = {
        **Training.other_names,
        "kl_coef": "beta",
        "num_generations": "generations",
        "max_completion_length": "max_new_tokens",
    }

    learning_rate: float = Field(
        default=0.0,
        ge=0,
        description=BY_SIZE.format("5e-5 below 0.3 billion weights, 1e-5 from 1 billion on"),
    )
    beta: float = Field(
        default=0.04,
        ge=0,
        description="How strongly the adapter is held near the one that it starts from.",
    )
    generations: int = Field(
        default=4, ge=2, description="Trials of a row, which are compared with each other."
    )
    use_world: bool = Field(
        default=True,
        description="Play the tasks in the agent's world, where it has one; false rewards single turns by the logged ones.",
    )
    max_turns: int = Field(
        default=12, ge=1, description="The assistant's messages after which an episode is given up."
    )
    harm_penalty: float = Field(
        default=1.0,
        ge=0,
        description="Taken off the reward of an episode that changes the world wrongly; what a call costs where none was due.",
    )


class SdftTraining(OnPolicyTraining):
    """How an adapter learns from itself (SDFT, Shenfeld et al. 2026): the teacher is the same adapter, shown what the agent did."""


class DistillTraining(OnPolicyTraining):
    """How an adapter learns from a larger model: it writes, the teacher says how (on-policy distillation, Agarwal et al. 2024)."""

    teacher_model: str = Field(
        default="",
        description="Hugging Face id or local path of the teacher; it needs the same vocabulary.",
    )
    teacher_revision: str = Field(
        default="",
        description="Commit, tag or branch of the teacher on the hub; empty: its main branch.",
    )
    beta: float = Field(
        default=1.0,
        ge=0,
        le=1,
        description="The divergence: 0 is the forward one, 1 the reverse one.",
    )


Step = Literal["sft", "sdft", "distill", "dpo", "kto", "grpo"]
"""The trainings of an agent's chain, in order."""

FURTHER: dict[Step, type[Any]] = {
    "sdft": SdftTraining,
    "distill": DistillTraining,
    "dpo": DpoTraining,
    "kto": KtoTraining,
    "grpo": GrpoTraining,
}
"""The options of each step after imitation, a `FurtherTraining`."""

PREFERENCES = {"dpo": "preference_dataset", "kto": "kto_dataset"}
"""The steps that train from preferences, with their data sets; the others train from `sft_dataset`."""

NO_TEACHER = "distill has no teacher: set distill_adapter.teacher_model to a larger model with the same vocabulary."
