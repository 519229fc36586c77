"""Code that all trainers share: arguments, checkpoints, the adapter, memory, and progress.

One training method belongs to each of the other modules of `trainers`. Options and their defaults
belong to `training.config`.
"""

import json
import math
import shutil
import time
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline._compat.liger import supports_model_type
from agent_pipeline.errors import ModelError, SettingsError
from agent_pipeline.models.device import Device, Precision, fast_device
from agent_pipeline.models.threads import current_control, follow_load
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

STATE_FILE = "trainer_state.json"
CHECKPOINT_FILES = ("optimizer.pt", "scheduler.pt", "rng_state*.pth", STATE_FILE)
"""Files of a checkpoint besides its weights. transformers writes `trainer_state.json` last."""


def make_shared_arguments(
    config: Training,
    device: Device,
    work_dir: Path,
    row_count: int,
    pass_tokens: int,
    stored_tokens: int = STORED_TOKENS,
) -> dict[str, Any]:
    """Return the arguments that every trainer of transformers and TRL takes.

    Args:
        config: The options.
        device: Where the model trains.
        work_dir: Where checkpoints are written.
        row_count: The number of training rows.
        pass_tokens: Maximum number of tokens per forward pass.
        stored_tokens: The number of tokens whose activations fit into memory.
    """
    return {
        "output_dir": str(work_dir),
        "num_train_epochs": config.num_train_epochs,
        "max_steps": _limit_steps(row_count, config),
        "learning_rate": config.learning_rate,
        "lr_scheduler_type": config.lr_scheduler_type,
        "warmup_steps": config.warmup_ratio,  # below 1 it is a share of all steps
        "adam_beta2": config.adam_beta2,
        "max_grad_norm": config.max_grad_norm,
        "gradient_checkpointing": config.checkpoints_gradients(pass_tokens, stored_tokens),
        "bf16": device.bf16,
        "use_cpu": device.name == "cpu",
        "seed": config.seed,
        "data_seed": config.seed,
        "logging_steps": 1,
        "logging_nan_inf_filter": False,  # a run that diverges must be stopped
        "save_strategy": "steps",
        "save_total_limit": 2,  # the last may be half written when the process dies
        "dataloader_pin_memory": device.name != "cpu",
        "report_to": "none",
        "disable_tqdm": True,
    }


def _limit_steps(row_count: int, config: Training) -> int:
    """Return TRL's `max_steps`, which is −1 if the number of epochs ends the training.

    The option `max_steps` can only make a run shorter.
    """
    steps = math.ceil(math.ceil(row_count / config.step_rows) * config.num_train_epochs)
    return config.max_steps if 0 < config.max_steps < steps else -1


def is_complete(checkpoint: Path) -> bool:
    """Return whether a checkpoint was written completely."""
    try:
        json.loads((checkpoint / STATE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    names = ("*.safetensors", *CHECKPOINT_FILES)
    return all(any(checkpoint.glob(name)) for name in names)


def prepare_work_dir(work_dir: Path, identity: str) -> Path | None:
    """Prepare the folder of checkpoints for a training run.

    Checkpoints of another run (other rows, model or options) and half-written checkpoints are
    removed.

    Args:
        work_dir: The folder.
        identity: The identity of the run.

    Returns:
        The last complete checkpoint of the same run, or None.
    """
    identity_file = work_dir / "identity"
    if not (identity_file.is_file() and identity_file.read_text(encoding="utf-8") == identity):
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir(parents=True)
        identity_file.write_text(identity, encoding="utf-8")
    complete = []
    for checkpoint in work_dir.glob("checkpoint-*"):
        if is_complete(checkpoint):
            complete.append(checkpoint)
        else:
            shutil.rmtree(checkpoint)
    return max(complete, key=checkpoint_step, default=None)


def checkpoint_step(checkpoint: Path | None) -> int:
    """Return the optimizer step of a checkpoint, or 0 if there is no checkpoint."""
    return int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0


def choose_device(work_dir: Path, precision: Precision) -> Device:
    """Choose the device, precision and library for training, as at the beginning of the run.

    Both are measured in every process, and a busy CPU may give another result. A resumed run would
    then end with other weights.
    """
    device_file = work_dir / "precision"
    device = fast_device(precision)
    if device_file.is_file():
        text = device_file.read_text(encoding="utf-8")
        uses_onednn = "oneDNN" in text and device.name == "cpu"
        device = Device(device.name, "bfloat16" in text, uses_onednn)
    device_file.write_text(str(device), encoding="utf-8")
    return device


def apply_liger(model: "PreTrainedModel") -> str:
    """Replace layers of a model on a GPU by the layers of Liger Kernel (Hsu et al. 2024).

    The replaced layers are norms, rotations and gated layers. Liger's fused loss is not used,
    because it reads numbers from the GPU, which a CUDA graph cannot do (`engine.cuda_graphs`).

    Returns:
        The name and version of the package; empty if it is missing or does not support the model.
    """
    from transformers.integrations.liger import apply_liger_kernel
    from transformers.utils import is_liger_kernel_available

    if model.device.type != "cuda" or not is_liger_kernel_available():
        return ""
    if not supports_model_type(model.config.model_type):
        return ""
    apply_liger_kernel(model, {"fused_linear_cross_entropy": False})
    return f"liger-kernel {version('liger-kernel')}"


def estimate_stored_tokens(model: "PreTrainedModel", trains_all_weights: bool = False) -> int:
    """Estimate how many nodes of a tree have activations that are kept in memory.

    On a GPU, they may take a third of its free memory, by an estimate. The graph of a tree is up to
    half as large again, and a tree that is computed without a graph needs memory at the same time.

    A token is assumed to keep 16 vectors of the hidden size and 5 of the inner size in each layer.
    The measured value is 0.6 of that (the shapes of Qwen2.5-0.5B and 7B in bfloat16).

    Args:
        model: The model.
        trains_all_weights: Whether gradients and Adam's means of all weights need room, too.
    """
    import torch

    if model.device.type == "cpu":
        return STORED_TOKENS
    free_bytes = torch.cuda.mem_get_info(model.device)[0]
    if trains_all_weights:
        free_bytes -= 3 * sum(parameter.nbytes for parameter in model.parameters())
    config = model.config.get_text_config()
    inner_sizes = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    inner_size = max(inner_sizes) if isinstance(inner_sizes, list) else inner_sizes
    experts_per_token = getattr(config, "num_experts_per_tok", None) or 1
    numbers_per_layer = 16 * config.hidden_size + 5 * inner_size * experts_per_token
    token_bytes = config.num_hidden_layers * numbers_per_layer * model.dtype.itemsize
    return int(max(0, free_bytes // (3 * token_bytes)))


def limit_warmup(trainer: "Trainer") -> None:
    """Limit the warm-up so that at least one step comes after it.

    transformers rounds the warm-up's share up, so a single step would train at rate 0.
    """
    loader = trainer.get_train_dataloader()
    steps = trainer.set_initial_training_values(trainer.args, loader)[-1]
    trainer.args.warmup_steps = min(trainer.args.get_warmup_steps(steps), steps - 1)


def make_lora_config(config: TrainingConfig, model: "PreTrainedModel") -> "LoraConfig | None":
    """Return PEFT's configuration of the adapter, or None if all weights are trained.

    Raises:
        SettingsError: `target_modules` names a module that the model does not have.
    """
    from peft import LoraConfig

    if not config.use_lora:
        return None
    if isinstance(config.modules, list):
        _check_target_modules(config.modules, model)
    return LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.modules,
        use_dora=config.use_dora,
        task_type="CAUSAL_LM",
    )


def _check_target_modules(target_modules: list[str], model: "PreTrainedModel") -> None:
    modules = dict(model.named_modules())
    for target in target_modules:
        if any(f".{name}".endswith(f".{target}") for name in modules):
            continue
        linear_names = {
            name.rpartition(".")[2]
            for name, module in modules.items()
            if type(module).__name__ == "Linear"
        }
        raise SettingsError(
            f"The setting `target_modules` names {target!r}, but the base model has no such "
            f"module{did_you_mean(target, linear_names)}"
        )


def use_lora_plus(trainer: "Trainer", ratio: float) -> None:
    """Give a trainer its usual optimizer, with the parameter groups of LoRA+.

    The matrices B are trained at `ratio` times the learning rate of the matrices A.
    """
    from peft.optimizers import create_loraplus_optimizer

    optimizer_class, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    trainer.optimizer = create_loraplus_optimizer(
        trainer.model, optimizer_class, loraplus_lr_ratio=ratio, **options
    )


def count_row_token_flops(model: "PreTrainedModel") -> int:
    """Return the floating-point operations of one row token in a training step.

    The linear layers count, without the output head: 4 operations per frozen weight (forward, and
    the gradient of the input), and 6 per trained weight.
    """
    import torch

    head = model.get_output_embeddings()
    weights = [
        module.weight
        for module in model.modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    ]
    return sum(weight.numel() * (6 if weight.requires_grad else 4) for weight in weights)


def make_progress_callback(progress: Progress) -> "TrainerCallback":
    """Return a callback that reports the steps, the loss and the tokens per second.

    Before each step, the number of threads follows the load. The callback raises a ModelError if
    the training diverges.
    """
    from transformers import TrainerCallback

    class ProgressCallback(TrainerCallback):
        """A callback that calls `progress` after each logged step."""

        def on_train_begin(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            **kwargs: object,
        ) -> None:
            self.began = time.monotonic()
            if thread_control := current_control():
                thread_control.forget_use()
            text = "training, resumed" if state.global_step else "training"
            progress(state.global_step, state.max_steps, text)

        def on_step_begin(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            **kwargs: Any,
        ) -> None:
            model = kwargs["model"]
            follow_load(model.device.type, model.dtype, is_step=True)

        def on_log(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            logs: dict[str, float] | None = None,
            **kwargs: object,
        ) -> None:
            if not logs or "loss" not in logs:
                return
            loss = logs["loss"]
            if not math.isfinite(loss):
                raise ModelError(
                    f"The training diverged at step {state.global_step} (loss {loss}): lower "
                    "`learning_rate`."
                )
            speed = logs.get("num_tokens", 0) / max(time.monotonic() - self.began, 1e-9)
            text = f"training, loss {loss:.3f}, {speed:.0f} tokens/s"
            progress(state.global_step, state.max_steps, text)

    return ProgressCallback()
