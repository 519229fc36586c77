"""Where models are computed, in which type and by which library: measured when a process starts, not assumed."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Device:
    """Where the model runs, whether bfloat16 is fast there, and whether oneDNN multiplies its float32 matrices instead of MKL."""

    name: str
    bf16: bool
    onednn: bool = False

    def __str__(self) -> str:
        return f"{self.name} {'bfloat16' if self.bf16 else 'float32'}{' (oneDNN)' if self.onednn else ''}"

    @property
    def dtype(self) -> "torch.dtype":
        """The type of the base model's weights; LoRA's own are float32 always."""
        import torch

        return torch.bfloat16 if self.bf16 else torch.float32


NVIDIA = Path("/proc/driver/nvidia/version")
"""A file that the driver of an NVIDIA GPU makes."""

BF16_SPEEDUP = 1.5
"""From so many times on, bfloat16 is worth its rounding."""

ONEDNN_SPEEDUP = 1.2
"""From so many times on, oneDNN's float32 products are taken. They round otherwise than MKL's, so not for nothing."""

FLOAT32_ERROR = 2e-6
"""Relative. Products of float32 matrices of 576 columns are off by 3e-7 to 6e-7, and of matrices rounded to bfloat16 by 2e-3."""

EXACT = Device("cpu", False)
"""The CPU in float32, with PyTorch's own choice of libraries."""


def exact_device() -> Device:
    """Where models are merged and compared: the CPU in float32, by the library that multiplies faster. Beside a GPU it is PyTorch's own
    choice, since what makes PyTorch take oneDNN would let a GPU round."""
    import torch

    return replace(
        EXACT, onednn=not torch.cuda.is_available() and product_speeds()["oneDNN"] >= ONEDNN_SPEEDUP
    )


def probe_device() -> Device:
    """Where rows are scored to choose among them: CUDA, with bfloat16 where the GPU has units for it, else the CPU in float32."""
    import torch

    if torch.cuda.is_available():
        return Device("cuda", torch.cuda.get_device_capability()[0] >= 8)
    return exact_device()


def unused_gpu() -> str:
    """Return a sentence if this machine has an NVIDIA GPU and the installed PyTorch was built without CUDA; else an empty text."""
    if not NVIDIA.exists():
        return ""
    import torch

    if torch.version.cuda is not None:
        return ""
    return (
        f"This machine has an NVIDIA GPU, and the installed PyTorch {torch.__version__} uses the CPU only: install a CUDA build "
        f"(pip install 'torch=={torch.__version__.partition('+')[0]}' --index-url https://download.pytorch.org/whl/cu130)."
    )


def fast_device(precision: Precision = "auto") -> Device:
    """Where models are trained and asked, and in which type: as `precision` asks; for `auto` as `probe_device`, on a CPU as measured."""
    device = probe_device()
    if precision != "auto":
        return replace(device, bf16=precision == "bfloat16")
    return device if device.name != "cpu" else replace(device, bf16=bf16_speedup() >= BF16_SPEEDUP)


def bf16_speedup() -> float:
    """How many times as fast as in float32 this CPU multiplies matrices in bfloat16: about 2 to 2.4 with AVX512-BF16, more with AMX, and
    0.1 where it is emulated."""
    speeds = product_speeds()
    return speeds["bfloat16"] / max(1.0, speeds["oneDNN"])


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Multiply float32 matrices on a CPU by MKL (`highest`) or by oneDNN (`medium`) for a while."""
    import torch

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@cache
def product_speeds() -> dict[str, float]:
    """How many times as fast as in float32 by PyTorch's default (MKL) this CPU multiplies matrices by `oneDNN`, 0 where that rounds them,
    and in `bfloat16`. MKL has no AVX-512 for AMD's CPUs, and oneDNN has: 2.3 on Zen 5. Takes 0.3 seconds, once a process."""
    import torch

    def seconds(left: torch.Tensor, right: torch.Tensor) -> float:
        began = time.perf_counter()
        left @ right
        return time.perf_counter() - began

    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(256, 576, generator=generator), torch.randn(576, 1536, generator=generator)
    rounded = exact[0].bfloat16(), exact[1].bfloat16()
    times: dict[str, list[float]] = {"MKL": [], "oneDNN": [], "bfloat16": []}
    # In turn, and the least of many: another process on these cores must not decide how a model is trained.
    for _ in range(32):
        with float32_products("highest"):
            times["MKL"].append(seconds(*exact))
        with float32_products("medium"):
            times["oneDNN"].append(seconds(*exact))
        times["bfloat16"].append(seconds(*rounded))
    with float32_products("medium"):
        true = exact[0].double() @ exact[1].double()
        error = float((exact[0] @ exact[1] - true).norm() / true.norm())
    speeds = {name: min(times["MKL"]) / min(each) for name, each in times.items()}
    return speeds | ({} if error < FLOAT32_ERROR else {"oneDNN": 0.0})
