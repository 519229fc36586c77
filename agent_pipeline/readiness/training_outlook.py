"""The memory and the time that training on an agent's sessions is expected to need.

The forecast is that of `training.forecast`, from the lengths of sampled sessions instead of encoded
rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil

from agent_pipeline.config.assets import AdapterConfig
from agent_pipeline.models.device import EXACT, Device
from agent_pipeline.readiness.report import TokenCounts, TrainingOutlook
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import (
    GIGABYTE,
    ModelShape,
    TrainingPlan,
    measure_available_memory,
    measure_flops,
)
from agent_pipeline.training.size_defaults import fill_row_defaults, fill_size_defaults

_SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class TrainingMachine:
    """The device on which models are trained.

    Attributes:
        device: The device and its number format.
        available: The free memory in bytes.
        flops: The operations per second of a matrix product.
    """

    device: Device
    available: float
    flops: float

    @classmethod
    def measure(cls) -> "TrainingMachine":
        """Return this machine. A CPU is measured in float32, which needs the most memory."""
        import torch

        device = Device("cuda", True) if torch.cuda.is_available() else EXACT
        return cls(device, measure_available_memory(device), measure_flops(device))


def foresee_training(
    adapter: AdapterConfig,
    shape: ModelShape,
    counts: TokenCounts,
    rows: int,
    machine: TrainingMachine,
) -> TrainingOutlook:
    """Return the expected training run of an agent.

    Args:
        adapter: The options of the step sft. Options of 0 are filled in as in training.
        shape: The sizes of the base model, with the adapter weights of rank 1.
        counts: The lengths of the sessions in tokens.
        rows: Number of training rows.
        machine: The device, its free memory and its speed.
    """
    lengths = spread_lengths(counts, rows)
    options: Mapping[str, object] = fill_row_defaults(
        fill_size_defaults(adapter.model_dump(), "sft", shape.weights),
        shape.weights,
        lengths,
        counts.context,
    )
    config = TrainingConfig.model_validate(
        {name: options[name] for name in TrainingConfig.model_fields if name in options}
    )
    adapter_weights = config.lora_r * shape.adapter_weights
    plan = TrainingPlan(
        replace(shape, adapter_weights=adapter_weights),
        config,
        [min(length, config.max_length) for length in lengths],
        machine.device,
    )
    forecast = plan.forecast(machine.available, machine.flops)
    return TrainingOutlook(
        rows=rows,
        max_length=config.max_length,
        step_rows=config.step_rows,
        steps=forecast.steps,
        memory_gb=round(forecast.total / GIGABYTE, 1),
        free_gb=round(forecast.available / GIGABYTE, 1),
        missing_gb=round(forecast.missing / GIGABYTE, 1),
        hours=forecast.seconds / _SECONDS_PER_HOUR,
        device=machine.device.name,
        warning=plan.warn(forecast),
    )


def spread_lengths(counts: TokenCounts, rows: int) -> list[int]:
    """Return a length per row: half of the rows have the median, and a tenth is longest.

    So long rows are rather counted as too long than as too short.

    Example:
        >>> counts = TokenCounts(base_model="b", median=2, p90=5, longest=9, sampled=10)
        >>> spread_lengths(counts, 10)
        [2, 2, 2, 2, 2, 5, 5, 5, 5, 9]
    """
    count = max(1, rows)
    shares = ((0.5, counts.median), (0.4, counts.p90), (0.1, counts.longest))
    lengths = [length for share, length in shares for _ in range(ceil(share * count))]
    return lengths[-count:]
