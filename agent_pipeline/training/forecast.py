"""The memory and the time that a training run needs, estimated before a weight is loaded.

The memory is the sum of four parts:

- the weights of the base model, in the type of `precision`;
- the trained weights with their gradients and Adam's two means, 16 bytes per weight;
- the activations that the backward pass needs, or only the inputs of each layer if they are
  recomputed;
- the logits, which are float32 whatever the precision is.

The estimate of the activations is that of `trainers.common.estimate_stored_tokens`. Choosing the
options belongs to `size_defaults`.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.prefix_tree import MAX_NODES
from agent_pipeline.engine.tree_loss import HEAD_ROWS, trains_as_trees
from agent_pipeline.errors import ModelError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.device import Device
from agent_pipeline.progress import duration
from agent_pipeline.training.config import STORED_TOKENS, TrainingConfig
from agent_pipeline.training.size_defaults import build_meta_model

if TYPE_CHECKING:
    from agent_pipeline.tokenization.loss_masks import Encoded

GIGABYTE = 1e9
TRAINED_BYTES = 16
"""Bytes per trained weight: the float32 weight, its gradient, and Adam's two means."""

_FLOPS_PER_WEIGHT = 4
"""Operations per frozen weight and token: two in the forward pass, and two for the gradients that
go through the layer. The gradients of the frozen weights are not computed.
"""

_UTILIZATION = 0.4
"""Share of the speed of a plain matrix product that training reaches. It is a rule of thumb."""

_MEASURED_PRODUCTS = 20
"""Number of products of which the fastest counts. The first products are slower."""

_MEMORY_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Files with the memory limit of a container, of both versions of Linux's control groups."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a base model on which memory depends.

    Attributes:
        weights: The number of weights.
        adapter_weights: The number of weights of the adapter. 0 if all weights are trained.
        layers: The number of layers.
        hidden_size: The size of a hidden state.
        inner_size: The size of the inner layer, times the number of experts per token.
        vocabulary: The number of tokens.
        is_packed: Whether rows are trained as trees, which compute few logits at a time.
    """

    weights: int
    adapter_weights: int
    layers: int
    hidden_size: int
    inner_size: int
    vocabulary: int
    is_packed: bool = True

    @property
    def token_numbers(self) -> int:
        """Return the numbers that the backward pass needs per token, in all layers."""
        return self.layers * (16 * self.hidden_size + 5 * self.inner_size)


@dataclass(frozen=True)
class Forecast:
    """The memory and the time that a training run is expected to need. Sizes are in bytes.

    Attributes:
        weights: The weights of the base model.
        trained: The trained weights with their gradients and Adam's means.
        activations: The activations of a forward pass.
        logits: The logits of a forward pass.
        available: The memory that is free on the device.
        device: The name of the device, such as `cuda`.
        seconds: The time of all steps, without reading the model.
        steps: The number of optimizer steps.
    """

    weights: float
    trained: float
    activations: float
    logits: float
    available: float
    device: str
    seconds: float = 0.0
    steps: int = 0

    @property
    def total(self) -> float:
        """Return the memory that the run needs."""
        return self.weights + self.trained + self.activations + self.logits

    @property
    def missing(self) -> float:
        """Return the memory that the run needs and the device does not have, or 0."""
        return max(0.0, self.total - self.available)

    def describe(self) -> str:
        """Return the expected memory and time as sentences."""
        parts = ", ".join(
            f"{name} {_gigabytes(size)}"
            for name, size in (
                ("weights", self.weights),
                ("adapter and optimizer", self.trained),
                ("activations", self.activations),
                ("logits", self.logits),
            )
        )
        return (
            f"Expected memory on {self.device}: {_gigabytes(self.total)} of "
            f"{_gigabytes(self.available)} free ({parts}). Expected time: about "
            f"{duration(self.seconds)} for {self.steps:,} steps."
        )


@dataclass(frozen=True)
class TrainingPlan:
    """What a training run computes: the model, the options, the rows and the device.

    Attributes:
        shape: The sizes of the base model.
        config: The options.
        lengths: The length of each row in tokens.
        device: The device and its number format.
    """

    shape: ModelShape
    config: TrainingConfig
    lengths: Sequence[int]
    device: Device

    def forecast(self, available: float, flops: float = 1e12) -> Forecast:
        """Return the memory and the time that the run needs.

        Args:
            available: The free memory of the device, in bytes.
            flops: The operations per second of a matrix product on the device.
        """
        shape, config = self.shape, self.config
        number_bytes = 2 if self.device.bf16 else 4
        trained_weights = shape.adapter_weights or shape.weights
        longest = max(self.lengths)
        pass_tokens = config.per_device_train_batch_size * longest
        token_bytes = shape.token_numbers * number_bytes
        stored = STORED_TOKENS
        if self.device.name != "cpu":
            stored = int(available // (3 * token_bytes))
        recomputes = config.checkpoints_gradients(pass_tokens, stored)
        # A tree has at least two rows, so that they can share their beginning.
        nodes = min(max(2 * pass_tokens, STORED_TOKENS), config.step_rows * longest)
        if not shape.is_packed:
            nodes = pass_tokens
        elif recomputes:
            nodes = min(nodes, MAX_NODES)
        activations = float(nodes * token_bytes)
        if recomputes:
            inputs = shape.layers * shape.hidden_size * number_bytes
            activations = nodes * (inputs + token_bytes / shape.layers)
        logit_rows = min(nodes, HEAD_ROWS) if shape.is_packed else nodes
        tokens = sum(self.lengths) * config.num_train_epochs
        steps = -(-len(self.lengths) // config.step_rows) * config.num_train_epochs
        if 0 < config.max_steps < steps:
            tokens *= config.max_steps / steps
            steps = config.max_steps
        operations = _FLOPS_PER_WEIGHT * shape.weights * tokens * (1.5 if recomputes else 1)
        return Forecast(
            weights=shape.weights * number_bytes,
            trained=trained_weights * TRAINED_BYTES,
            activations=activations,
            logits=3 * logit_rows * shape.vocabulary * 4,
            available=available,
            device=self.device.name,
            seconds=operations / (_UTILIZATION * flops),
            steps=int(steps),
        )

    def list_remedies(self, available: float) -> list[str]:
        """Return the settings that reduce the memory, each with the memory that it saves.

        The largest saving comes first.
        """
        total = self.forecast(available).total
        longest = max(self.lengths)
        shorter = max(16, longest // 2)
        changes: dict[str, TrainingPlan] = {}
        if self.config.gradient_checkpointing != "on":
            changes["`gradient_checkpointing` = on"] = self._change(gradient_checkpointing="on")
        changes[f"`max_length` = {shorter}"] = replace(
            self, lengths=[min(length, shorter) for length in self.lengths]
        )
        if not self.device.bf16:
            rounded = replace(self.device, bf16=True)
            changes["`precision` = bfloat16"] = replace(self, device=rounded)
        if self.config.per_device_train_batch_size > 1:
            changes["`per_device_train_batch_size` = 1"] = self._change(
                per_device_train_batch_size=1
            )
        saved = {name: total - plan.forecast(available).total for name, plan in changes.items()}
        return [
            f"{name} (saves {_gigabytes(size)})"
            for name, size in sorted(saved.items(), key=lambda pair: -pair[1])
            if size > 0
        ]

    def warn(self, forecast: Forecast) -> str:
        """Return a sentence about memory that is short, or an empty text."""
        if not forecast.missing:
            return ""
        remedies = self.list_remedies(forecast.available)[:3] or ["a smaller `base_model`"]
        return (
            f"The training is expected to need {_gigabytes(forecast.missing)} more memory than "
            f"is free on {forecast.device}: set {', '.join(remedies)}."
        )

    def check(self, forecast: Forecast) -> None:
        """Check that at least the weights and the state of the optimizer fit into the memory.

        Raises:
            ModelError: They do not fit, so the run cannot work with any length of rows.
        """
        if forecast.weights + forecast.trained > forecast.available:
            raise ModelError(
                f"The base model does not fit: {self.warn(forecast)} {forecast.describe()} If "
                "the settings do not save enough, choose a smaller `base_model`.",
                setting="sft_adapter.base_model",
            )

    def _change(self, **options: Any) -> "TrainingPlan":
        return replace(self, config=self.config.changed(**options))


def plan_training(
    base: BaseModel, config: TrainingConfig, rows: "Sequence[Encoded]", device: Device
) -> TrainingPlan | None:
    """Return the plan of a training run, without loading a weight.

    Args:
        base: The base model.
        config: The options.
        rows: The encoded rows.
        device: The device and its number format.

    Returns:
        The plan, or `None` if the model cannot be built from its configuration.
    """
    model = build_meta_model(base)
    if model is None:
        return None
    is_packed = trains_as_trees(model, rows, config.processes)
    shape = measure_shape(model, config, is_packed)
    return TrainingPlan(shape, config, [len(row.input_ids) for row in rows], device)


def measure_shape(model: Any, config: TrainingConfig, is_packed: bool = True) -> ModelShape:
    """Return the sizes of a model, which can be on the meta device.

    Args:
        model: The model.
        config: The options, which decide on the size of the adapter.
        is_packed: Whether rows are trained as trees.
    """
    text_config = model.config.get_text_config()
    inner = getattr(text_config, "intermediate_size", None) or 4 * text_config.hidden_size
    experts = getattr(text_config, "num_experts_per_tok", None) or 1
    return ModelShape(
        weights=sum(parameter.numel() for parameter in model.parameters()),
        adapter_weights=count_adapter_weights(model, config),
        layers=text_config.num_hidden_layers,
        hidden_size=text_config.hidden_size,
        inner_size=experts * (max(inner) if isinstance(inner, list) else inner),
        vocabulary=text_config.vocab_size,
        is_packed=is_packed,
    )


def count_adapter_weights(model: Any, config: TrainingConfig) -> int:
    """Return the number of weights of the adapter of a model; 0 if all weights are trained."""
    if not config.use_lora:
        return 0
    head = model.get_output_embeddings()
    targets = config.modules if isinstance(config.modules, list) else None
    count = 0
    for name, module in model.named_modules():
        if type(module).__name__ != "Linear" or module is head:
            continue
        if targets is None or any(f".{name}".endswith(f".{target}") for target in targets):
            count += config.lora_r * (module.in_features + module.out_features)
    return count


def measure_available_memory(device: Device) -> float:
    """Return the free memory of a device in bytes, within the limit of a container."""
    import psutil
    import torch

    if device.name != "cpu":
        return float(torch.cuda.mem_get_info(device.name)[0])
    available = float(psutil.virtual_memory().available)
    used = psutil.Process().memory_info().rss
    return min([available, *(float(max(0, limit - used)) for limit in read_memory_limits())])


def read_memory_limits() -> list[int]:
    """Return the memory limits of the container in bytes. Without a limit, the list is empty."""
    limits = []
    for path in _MEMORY_LIMITS:
        with suppress(OSError, ValueError):  # no container, or the text "max"
            limits.append(int(path.read_text(encoding="ascii")))
    return limits


def measure_flops(device: Device) -> float:
    """Return the operations per second of one matrix product on a device.

    On a CPU, the processor time is measured, because other programs on a shared machine would make
    the product look slower than the training will be. The measurement takes less than a second.
    """
    import torch

    is_cpu = device.name == "cpu"
    rows, columns = (256, 1024) if is_cpu else (4096, 4096)
    left = torch.ones(rows, columns, dtype=device.dtype, device=device.name)
    right = torch.ones(columns, columns, dtype=device.dtype, device=device.name)
    clock = time.process_time if is_cpu else time.perf_counter
    threads = torch.get_num_threads() if is_cpu else 1
    fastest = float("inf")
    for _ in range(_MEASURED_PRODUCTS):
        began = clock()
        float((left @ right)[0, 0])  # waits for the device
        fastest = min(fastest, max(clock() - began, 1e-6) / threads)
    return 2.0 * rows * columns * columns / fastest


def _gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:.1f} GB"
