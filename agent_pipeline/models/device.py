"""The device, the number format and the library with which models are computed.

This is measured when a process starts. How a model gets to its device belongs in `loading`.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from agent_pipeline.models.threads import current_control

if TYPE_CHECKING:
    import torch

Precision = Literal["auto", "float32", "bfloat16"]


@dataclass(frozen=True)
class Device:
    """A device, and the number format and the library of its matrix products.

    Attributes:
        name: PyTorch's name of the device.
        bf16: Whether the base model's weights are bfloat16.
        onednn: Whether oneDNN instead of MKL multiplies float32 matrices on a CPU.
    """

    name: str
    bf16: bool
    onednn: bool = False

    def __str__(self) -> str:
        library = " (oneDNN)" if self.onednn else ""
        return f"{self.number_format}{library}"

    @property
    def number_format(self) -> str:
        """Return the device and the number format of the weights.

        The device and the number format determine the results up to rounding.
        """
        return f"{self.name} {'bfloat16' if self.bf16 else 'float32'}"

    @property
    def dtype(self) -> "torch.dtype":
        """Return the number format of the base model's weights. LoRA weights are always float32."""
        import torch

        return torch.bfloat16 if self.bf16 else torch.float32


NVIDIA_DRIVER_FILE = Path("/proc/driver/nvidia/version")
"""A file that the driver of an NVIDIA GPU creates."""

MIN_BF16_SPEEDUP = 1.5
"""Minimum speedup of bfloat16 over float32 that is worth the coarser rounding."""

MIN_ONEDNN_SPEEDUP = 1.2
"""Minimum speedup of oneDNN over MKL that is worth its different rounding."""

MIN_ONEDNN_SPEED = 0.95
"""Minimum speed of oneDNN, relative to MKL, if the number of threads follows the load.

A product of oneDNN has the same bits for every number of threads. A product of MKL may be rounded
differently.
"""

MAX_FLOAT32_ERROR = 2e-6
"""Maximum relative error of a float32 matrix product.

Products of float32 matrices of 576 columns are off by 3e-7 to 6e-7. Products of matrices that were
rounded to bfloat16 are off by 2e-3.
"""

_REPEATS = 12
"""Number of times that each matrix product is timed. The shortest time counts, because other
programs in the core's cache can only make a product slower.
"""

EXACT = Device("cpu", False)
"""The CPU with float32 numbers and PyTorch's default libraries."""


def exact_device() -> Device:
    """Return the device on which models are merged and compared, which computes in float32.

    This is the CPU in float32, with the library that multiplies faster. If the number of threads
    follows the load, it is oneDNN, unless MKL is faster: results then do not depend on the load. On
    a machine with a GPU it is PyTorch's choice of library: the switch to oneDNN would let the GPU
    round.
    """
    import torch

    if torch.cuda.is_available():
        return EXACT
    least = MIN_ONEDNN_SPEED if current_control() else MIN_ONEDNN_SPEEDUP
    return replace(EXACT, onednn=measure_product_speeds()["oneDNN"] >= least)


def probe_device() -> Device:
    """Return the device on which rows are scored when rows are selected.

    This is CUDA if there is a GPU, with bfloat16 if the GPU has units for it, else the CPU in
    float32.
    """
    import torch

    if torch.cuda.is_available():
        return Device("cuda", torch.cuda.get_device_capability()[0] >= 8)
    return exact_device()


def fast_device(precision: Precision = "auto") -> Device:
    """Return the fastest device, on which models are trained and prompted.

    The type is `precision`. For `auto`, a GPU uses the type of `probe_device`, and a CPU uses
    bfloat16 if it is measurably faster.
    """
    device = probe_device()
    if precision != "auto":
        return replace(device, bf16=precision == "bfloat16")
    if device.name != "cpu":
        return device
    return replace(device, bf16=measure_bf16_speedup() >= MIN_BF16_SPEEDUP)


def describe_unused_gpu() -> str:
    """Return a sentence if this machine has a GPU that the installed PyTorch cannot use.

    The sentence is empty if there is no NVIDIA GPU, or if PyTorch was built with CUDA.
    """
    if not NVIDIA_DRIVER_FILE.exists():
        return ""
    import torch

    if torch.version.cuda is not None:
        return ""
    release = torch.__version__.partition("+")[0]
    return (
        f"This machine has an NVIDIA GPU, and the installed PyTorch {torch.__version__} uses the "
        f"CPU only: install a CUDA build (pip install --upgrade 'torch=={release}' --index-url "
        "https://download.pytorch.org/whl/cu130)."
    )


def measure_bf16_speedup() -> float:
    """Return the speedup of bfloat16 products over float32 products on this CPU.

    It is about 2 to 2.4 with AVX512-BF16, more with AMX, and 0.1 if bfloat16 is emulated.
    """
    speeds = measure_product_speeds()
    return speeds["bfloat16"] / max(1.0, speeds["oneDNN"])


@contextmanager
def float32_products(precision: str) -> Iterator[None]:
    """Temporarily multiply float32 matrices on a CPU by MKL (`highest`) or by oneDNN (`medium`)."""
    import torch

    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


@contextmanager
def one_thread() -> Iterator[None]:
    """Temporarily compute with one thread of PyTorch."""
    import torch

    previous = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


@cache
def measure_product_speeds() -> dict[str, float]:
    """Measure the speed of matrix products on this CPU, relative to PyTorch's default.

    MKL has no AVX-512 for AMD's CPUs, and oneDNN has: a factor of 2.3 on Zen 5. The measurement
    takes 0.3 seconds, once per process.

    The product is computed by one thread, and only the processor time of this thread counts. Other
    load on the machine therefore does not change the result.

    Returns:
        How many times faster products are by `oneDNN` (0 if oneDNN rounds them), and in `bfloat16`.
    """
    import torch

    def time_product(left: torch.Tensor, right: torch.Tensor) -> float:
        start = time.thread_time()
        left @ right
        return time.thread_time() - start

    generator = torch.Generator().manual_seed(0)
    left = torch.randn(256, 576, generator=generator)
    right = torch.randn(576, 1536, generator=generator)
    rounded_left, rounded_right = left.bfloat16(), right.bfloat16()
    seconds: dict[str, list[float]] = {"MKL": [], "oneDNN": [], "bfloat16": []}
    # The three take turns, because another process in the core's cache slows all of them.
    with one_thread():
        for _ in range(_REPEATS):
            with float32_products("highest"):
                seconds["MKL"].append(time_product(left, right))
            with float32_products("medium"):
                seconds["oneDNN"].append(time_product(left, right))
            seconds["bfloat16"].append(time_product(rounded_left, rounded_right))
    with float32_products("medium"):
        exact_product = left.double() @ right.double()
        error = float((left @ right - exact_product).norm() / exact_product.norm())
    shortest_mkl = min(seconds["MKL"])
    speeds = {name: shortest_mkl / min(times) for name, times in seconds.items()}
    if error >= MAX_FLOAT32_ERROR:
        speeds["oneDNN"] = 0.0
    return speeds
