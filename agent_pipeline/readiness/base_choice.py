"""The base model that fits the machine."""

import msgspec

from agent_pipeline.models.base_model import EMBEDDED
from agent_pipeline.readiness.report import Machine

GPU_BASE, GPU_BASE_GB = "Qwen/Qwen3-1.7B", 24
"""The base model that is proposed for a GPU, and the memory of the GPU that it needs in GB."""


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
