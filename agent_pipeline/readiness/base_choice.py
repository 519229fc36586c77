"""The base model that fits the machine, and rough estimates of its memory and training time."""

import time
from collections.abc import Mapping

import msgspec

from agent_pipeline.errors import ModelError
from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.readiness.report import AgentReport, Machine
from agent_pipeline.readiness.token_counts import BaseTokens
from agent_pipeline.training.config import count_weights, fill_size_defaults

GPU_BASE, GPU_BASE_GB = "Qwen/Qwen3-1.7B", 24
"""The base model that is proposed for a GPU, and the memory of the GPU that it needs in GB."""

OPERATIONS_PER_WEIGHT = 6
"""Number of floating-point operations per weight and trained token: 2 for the forward pass and 4
for the backward pass.
"""
USED_SHARE = 0.5
"""Share of the speed of one matrix product that a training run reaches (an estimate)."""
_PROBE_SECONDS = 0.2
_MINUTE = 60


class BaseChoice(msgspec.Struct, frozen=True):
    """A proposed base model.

    Attributes:
        base_model: The id of the model.
        preset: The preset of settings that goes with it.
        why: Why it is proposed.
    """

    base_model: str
    preset: str
    why: str


def choose_base(machine: Machine) -> BaseChoice:
    """Return the base model that is proposed for a machine."""
    for gpu in machine.gpus:
        if gpu.memory_gb >= GPU_BASE_GB:
            return BaseChoice(
                GPU_BASE, "gpu", f"it fits into the {gpu.memory_gb:.0f} GB of the {gpu.name}"
            )
    if machine.gpus:
        why = f"the GPU has less than the {GPU_BASE_GB} GB that {GPU_BASE} needs"
    else:
        why = "this machine has no GPU that PyTorch can use, and this model trains on a CPU"
    return BaseChoice(EMBEDDED, "", why)


def estimate_minutes(
    agent: AgentReport, tokens: BaseTokens, settings: Mapping[str, object], max_rows: int
) -> float | None:
    """Return a rough estimate of the minutes of a training run on the CPU of this machine.

    Args:
        agent: The report on the agent.
        tokens: The base model.
        settings: The settings of `sft_adapter`, by name.
        max_rows: The setting `sft_coreset.target_size`.

    Returns:
        The minutes, or None if there is nothing to train, or the size of the model is unknown.
    """
    counts, rows = agent.contents.tokens, agent.tasks.rows.get("train", 0)
    try:
        weights = count_weights(tokens.folder) if tokens.folder else None
    except ModelError:
        weights = None
    if not (counts and rows and weights):
        return None
    filled = fill_size_defaults(settings, "sft", weights)
    length = min(counts.median, int(filled["max_length"]))
    trained = min(rows, max_rows) * length * float(filled["num_train_epochs"])
    operations = OPERATIONS_PER_WEIGHT * weights * trained
    return operations / (measure_speed() * USED_SHARE) / _MINUTE


def measure_speed() -> float:
    """Return the floating-point operations per second of float32 matrix products on the CPU."""
    import torch

    left, right = torch.rand(256, 576), torch.rand(576, 1536)
    left @ right
    products, start = 0, time.perf_counter()
    while time.perf_counter() - start < _PROBE_SECONDS:
        left @ right
        products += 1
    seconds = time.perf_counter() - start
    return float(2 * products * left.numel() * right.shape[1] / seconds)
