"""Every number that has an effect on what is trained, with defaults for small models on few tool-call rows on a CPU.

The learning rate is the one of LoRA, not of full fine-tuning (A4's 2e-5): tried on 100 rows of 424 tokens, one epoch at
1e-3 takes the loss from 0.56 to 0.004 (05).
"""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from agent_pipeline.errors import SettingsError

if TYPE_CHECKING:
    import torch


STORED_TOKENS = 900
"""Above so many tokens a batch, `gradient_checkpointing="auto"` recomputes activations instead of keeping them.

Measured for SmolLM2-135M in float32 on 2 cores: 3.1 MB a token when kept, so 900 tokens peak at about 4.1 GB. Recomputing
takes a fifth of the speed (125 → 99 tokens/s at batch 1 × 300 tokens), and gives back 1.5 of 5.1 GB (batch 4 × 300 tokens).
"""


@dataclass(frozen=True)
class TrainingConfig:
    """How an adapter is trained. Raises SettingsError at construction for a value that cannot work.

    `epochs` passes over the rows, or `max_steps` optimiser steps if that is not 0 and fewer; `max_length` tokens a row;
    `warmup_ratio` of all steps; a checkpoint every `checkpoint_steps` optimiser steps. One step sees `batch_size` ×
    `gradient_accumulation` rows: on a CPU one row at a time is the fastest way to see four (125 tokens/s against 111 for a
    batch of 4, and 2.3 GB against 5.1), and nothing is padding.

    `use_lora=False` trains every weight of the model. `use_dora`: the adapter learns direction and magnitude apart (DoRA, Liu et al.
    2024). `use_lora_plus`: matrix B learns at `lora_plus_lr_ratio` times the learning rate of A (LoRA+, Hayou et al. 2024). `in_order`:
    rows are seen in the order given, not shuffled.
    """

    epochs: float = 1.0
    max_steps: int = 0
    learning_rate: float = 1e-3
    lr_scheduler: str = "linear"
    warmup_ratio: float = 0.1
    max_grad_norm: float = 1.0
    batch_size: int = 1
    gradient_accumulation: int = 2
    max_length: int = 2048
    lora_r: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.0
    target_modules: str = "all-linear"
    use_lora: bool = True
    use_dora: bool = False
    use_lora_plus: bool = False
    lora_plus_lr_ratio: float = 16.0
    in_order: bool = False
    gradient_checkpointing: Literal["auto", "on", "off"] = "auto"
    seed: int = 42
    checkpoint_steps: int = 10

    def __post_init__(self) -> None:
        at_least = {
            "batch_size": 1,
            "gradient_accumulation": 1,
            "max_length": 16,
            "lora_r": 1,
            "lora_alpha": 1,
            "lora_plus_lr_ratio": 1,
            "checkpoint_steps": 1,
        }
        for field, least in {**at_least, "max_steps": 0, "seed": 0}.items():
            if getattr(self, field) < least:
                raise SettingsError(f"The training setting {field} is {getattr(self, field)}: give {least} or more.")
        for field in ("epochs", "learning_rate", "max_grad_norm"):
            if getattr(self, field) <= 0:
                raise SettingsError(f"The training setting {field} is {getattr(self, field)}: give a number above 0.")
        for field in ("warmup_ratio", "lora_dropout"):
            if not 0 <= getattr(self, field) < 1:
                raise SettingsError(f"The training setting {field} is {getattr(self, field)}: give a share from 0 up to, not with, 1.")
        if self.gradient_checkpointing not in ("auto", "on", "off"):
            raise SettingsError(f"The training setting gradient_checkpointing is {self.gradient_checkpointing!r}: give auto, on or off.")
        for field in ("use_dora", "use_lora_plus"):
            if getattr(self, field) and not self.use_lora:
                raise SettingsError(f"The training setting {field} is a way to train an adapter, and use_lora is off: turn that on.")

    def identity(self) -> dict[str, Any]:
        """The fields that change the adapter: how often a checkpoint is written, and how memory is saved, do not."""
        return {name: value for name, value in asdict(self).items() if name not in ("checkpoint_steps", "gradient_checkpointing")}

    @property
    def modules(self) -> str | list[str]:
        """`target_modules` as PEFT wants it: `all-linear`, or the names between commas."""
        names = [name.strip() for name in self.target_modules.split(",") if name.strip()]
        return names[0] if names == ["all-linear"] else names

    def checkpoints_gradients(self, longest: int) -> bool:
        """Whether to recompute activations on the way back; `longest` is the longest row in tokens."""
        if self.gradient_checkpointing == "auto":
            return self.batch_size * longest > STORED_TOKENS
        return self.gradient_checkpointing == "on"


@dataclass(frozen=True)
class Device:
    """Where the model runs, and whether bfloat16 is fast there."""

    name: str
    bf16: bool

    @property
    def dtype(self) -> "torch.dtype":
        """The type of the base model's weights; LoRA's own are float32 always."""
        import torch

        return torch.bfloat16 if self.bf16 else torch.float32


EXACT = Device("cpu", False)
"""Where models are merged and compared: float32, the same on every machine."""


def probe_device() -> Device:
    """CUDA with bfloat16 where the GPU has units for it, else float32.

    On a CPU always float32: without AMX or AVX512-BF16 bfloat16 is emulated, 12 times slower (05), and TRL's own default.
    """
    import torch

    if torch.cuda.is_available():
        return Device("cuda", torch.cuda.get_device_capability()[0] >= 8)
    return Device("cpu", False)
