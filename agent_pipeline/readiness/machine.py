"""Facts about the machine: cores, memory, disk, PyTorch, GPUs and llama-server."""

import os
import shutil
from importlib.metadata import version
from pathlib import Path

from agent_pipeline.models.device import describe_unused_gpu
from agent_pipeline.readiness.report import GpuFacts, Machine
from agent_pipeline.training.forecast import GIGABYTE, read_memory_limits


def measure_machine(lake: Path | None) -> Machine:
    """Return facts about this machine.

    Args:
        lake: The folder of the lake, which need not exist; None for a lake in a bucket.
    """
    unused_gpu = describe_unused_gpu()
    return Machine(
        cores=count_cores(),
        memory_gb=measure_memory() / GIGABYTE,
        disk_gb=shutil.disk_usage(_find_existing(lake)).free / GIGABYTE if lake else None,
        torch=version("torch"),
        gpus=_list_gpus(),
        llama_server=shutil.which("llama-server") or "",
        errors=[unused_gpu] if unused_gpu else [],
    )


def count_cores() -> int:
    """Return the number of CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def measure_memory() -> int:
    """Return the main memory in bytes that this process may use."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *read_memory_limits()])


def _find_existing(folder: Path) -> Path:
    """Return a folder, or the nearest folder above it that exists."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _list_gpus() -> list[GpuFacts]:
    """Return the GPUs that PyTorch can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    gpus = []
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gpus.append(GpuFacts(properties.name, properties.total_memory / GIGABYTE))
    return gpus
