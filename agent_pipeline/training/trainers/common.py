"""What all trainers of TRL have in common here: their arguments, the adapter they train, how far they are."""

import math
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import ModelError, SettingsError
from agent_pipeline.models.device import Device
from agent_pipeline.options import did_you_mean
from agent_pipeline.progress import Progress
from agent_pipeline.training.config import STORED_TOKENS, Training, TrainingConfig

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import (
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )


def shared_arguments(
    config: Training,
    device: Device,
    work_dir: Path,
    rows: int,
    tokens: int,
    stored: int = STORED_TOKENS,
) -> dict[str, Any]:
    """The arguments of any trainer over `rows` rows, with at most `tokens` in a forward pass; checkpoints go to `work_dir`. The activations
    of `stored` tokens fit into memory."""
    return {
        "output_dir": str(work_dir),
        "num_train_epochs": config.num_train_epochs,
        "max_steps": _max_steps(rows, config),
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_ratio,  # below 1 it is a share of all steps
        "adam_beta2": config.adam_beta2,
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.checkpoints_gradients(tokens, stored),
        "bf16": device.bf16,
        "use_cpu": device.name == "cpu",
        "seed": config.seed,
        "data_seed": config.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # a training that diverges must be seen to
        "save_strategy": "steps",
        "save_total_limit": 2,  # the last may be half written when the process dies
        "dataloader_pin_memory": device.name != "cpu",
        "report_to": "none",
        "disable_tqdm": True,
    }


def use_liger(model: "PreTrainedModel") -> str:
    """Give a model on a GPU the norms, rotations and gated layers of Liger Kernel (Hsu et al. 2024), where that package is installed and
    knows the model. Its name and version; empty where nothing was changed.

    Its fused loss is not taken: it asks the GPU for numbers on the way, which a CUDA graph cannot (`trainers.graphs`).
    """
    from transformers.integrations.liger import apply_liger_kernel
    from transformers.utils import is_liger_kernel_available

    if model.device.type != "cuda" or not is_liger_kernel_available():
        return ""
    from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN

    if model.config.model_type not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        return ""
    apply_liger_kernel(model, {"fused_linear_cross_entropy": False})
    return f"liger-kernel {version('liger-kernel')}"


def stored_tokens(model: "PreTrainedModel", trains_all: bool = False) -> int:
    """The nodes of a tree whose activations are kept: on a GPU those that take a third of its free memory, by an estimate.

    The graph of a tree is up to half as large again, and lies beside a tree that is computed without. With `trains_all`, gradients and
    Adam's means of all weights need room, too.
    A token is taken to keep 16 vectors of the hidden size and 5 of the inner one in each layer. 0.6 of that was measured, of Qwen2.5-0.5B's
    and 7B's shape in bfloat16.
    """
    import torch

    if model.device.type == "cpu":
        return STORED_TOKENS
    free = torch.cuda.mem_get_info(model.device)[0]
    if trains_all:
        free -= 3 * sum(parameter.nbytes for parameter in model.parameters())
    config = model.config.get_text_config()
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    widest = max(inner) if isinstance(inner, list) else inner
    at_once = getattr(config, "num_experts_per_tok", None) or 1
    token = (
        config.num_hidden_layers
        * (16 * config.hidden_size + 5 * widest * at_once)
        * model.dtype.itemsize
    )
    return max(0, free // (3 * token))


def _max_steps(rows: int, config: Training) -> int:
    """TRL's `max_steps`: −1 where `epochs` decides, so that `max_steps` can only make a training shorter."""
    by_epochs = math.ceil(math.ceil(rows / config.step_rows) * config.num_train_epochs)
    return config.max_steps if 0 < config.max_steps < by_epochs else -1


def let_a_step_train(trainer: "Trainer") -> None:
    """Leave at least one step after the warm-up. transformers rounds the warm-up's share up, so a single step would train at rate 0."""
    steps = trainer.set_initial_training_values(trainer.args, trainer.get_train_dataloader())[-1]
    trainer.args.warmup_steps = min(trainer.args.get_warmup_steps(steps), steps - 1)


def lora_of(config: TrainingConfig, model: "PreTrainedModel") -> "LoraConfig | None":
    """PEFT's configuration of the adapter; None where every weight is trained.

    Raises:
        SettingsError: the model has no module of a name in `target_modules`.
    """
    from peft import LoraConfig

    if not config.use_lora:
        return None
    if isinstance(config.modules, list):
        modules = [name for name, _ in model.named_modules()]
        for wanted in config.modules:
            if not any(f".{name}".endswith(f".{wanted}") for name in modules):
                leaves = {
                    name.rpartition(".")[2]
                    for name, module in model.named_modules()
                    if type(module).__name__ == "Linear"
                }
                raise SettingsError(
                    f"target_modules names {wanted!r}, and the base model has no such module{did_you_mean(wanted, leaves)}"
                )
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.modules,
        use_dora=config.use_dora,
        task_type="CAUSAL_LM",
    )


def use_lora_plus(trainer: "Trainer", ratio: float) -> None:
    """Give the trainer the optimiser that it would have made, with LoRA+'s groups: matrices B at `ratio` times the learning rate of A."""
    from peft.optimizers import create_loraplus_optimizer

    cls, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    trainer.optimizer = create_loraplus_optimizer(
        trainer.model, cls, loraplus_lr_ratio=ratio, **options
    )


def reporting(progress: Progress) -> "TrainerCallback":
    """A callback that reports steps, loss and tokens/s, and stops a training that diverges (ModelError)."""
    from transformers import TrainerCallback

    class Reporting(TrainerCallback):
        def on_train_begin(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            **kwargs: Any,
        ) -> None:
            self.began = time.monotonic()
            progress(
                state.global_step,
                state.max_steps,
                "training" if not state.global_step else "training, resumed",
            )

        def on_log(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            logs: dict[str, float] | None = None,
            **kwargs: Any,
        ) -> None:
            if not logs or "loss" not in logs:
                return
            if not math.isfinite(logs["loss"]):
                raise ModelError(
                    f"The training diverged at step {state.global_step} (loss {logs['loss']}): lower learning_rate."
                )
            speed = logs.get("num_tokens", 0) / max(time.monotonic() - self.began, 1e-9)
            progress(
                state.global_step,
                state.max_steps,
                f"training, loss {logs['loss']:.3f}, {speed:.0f} tokens/s",
            )

    return Reporting()
