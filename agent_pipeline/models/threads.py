"""The number of threads that compute a model on a CPU. The number follows the load of the machine.

The threads of a product wait for each other. If another process takes the core of one thread, all
threads wait until the core is free again: two threads then take several times as long as one. So
one short product is timed with several numbers of threads, and the measurement is repeated while
the machine works.

Only a process that belongs to this package changes the number, because PyTorch's number of threads
is a setting of the whole process. The number format and the library belong to `device`, which
prefers a library whose products do not depend on the number of threads.
"""

import os
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import torch

ENOUGH = 0.9
"""Share of the highest speed that is enough for a smaller number of threads.

The other cores are then left to other processes.
"""

TURNS = 5
"""Number of times that each number of threads is timed. The median counts."""

TURN_SECONDS = 0.02
"""Duration of one timing in seconds, which is several time slices of a loaded machine."""

PAUSE_SECONDS = 15.0
"""Minimum time between two measurements in seconds."""

MEASURING_SHARE = 0.02
"""Maximum share of the time that measurements take."""

SLOW_STEP = 2.0
"""Ratio of a step's time to the median, from which the speed is measured before the pause ends."""

_ROWS, _INPUTS, _OUTPUTS = 64, 576, 1536
_PRODUCT_FLOPS = 2 * _ROWS * _INPUTS * _OUTPUTS
_STEPS_FOR_MEDIAN = 3

MeasureRates = Callable[[Sequence[int], bool], dict[int, float]]
"""A function that takes numbers of threads and whether products are bfloat16. It returns the
floating-point operations per second for each number of threads.
"""


class ThreadUse(msgspec.Struct, frozen=True):
    """The threads that a process computed with, and the speed that was measured meanwhile.

    Attributes:
        limit: The maximum number of threads.
        mean: The mean number of threads over time.
        flops: The mean measured rate of matrix products, in floating-point operations per second.
    """

    limit: int
    mean: float
    flops: float


def thread_limit() -> int:
    """Return the maximum number of threads: the cores that this process may use.

    The affinity of the process and the quota of its container count. `OMP_NUM_THREADS` can only
    lower the number.
    """
    from joblib import cpu_count

    cores = int(cpu_count())
    return min(cores, environment_limit() or cores)


def environment_limit() -> int:
    """Return the number in `OMP_NUM_THREADS`, or 0 if the variable names no number."""
    first_level = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(first_level) if first_level.isdecimal() else 0


def choose_threads(rates: dict[int, float]) -> int:
    """Return the smallest number of threads whose rate is almost the highest rate."""
    highest = max(rates.values())
    return min(count for count, rate in rates.items() if rate >= ENOUGH * highest)


def list_thread_counts(limit: int) -> list[int]:
    """Return the numbers of threads that are tried: powers of two, and the limit itself."""
    powers = [1 << exponent for exponent in range(limit.bit_length())]
    return sorted({*powers, limit})


def measure_rates(counts: Sequence[int], bf16: bool) -> dict[int, float]:
    """Measure the rate of a short matrix product for several numbers of threads.

    The numbers take turns, so that all of them meet the same load. Afterwards, PyTorch's number of
    threads is the same as before.

    Args:
        counts: The numbers of threads.
        bf16: Whether the matrices are bfloat16.

    Returns:
        The floating-point operations per second, by number of threads.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    number_format = torch.bfloat16 if bf16 else torch.float32
    left = torch.randn(_ROWS, _INPUTS, generator=generator).to(number_format)
    right = torch.randn(_INPUTS, _OUTPUTS, generator=generator).to(number_format)
    previous = torch.get_num_threads()
    rates: dict[int, list[float]] = {count: [] for count in counts}
    try:
        with torch.inference_mode():
            for _ in range(TURNS):
                for count in counts:
                    torch.set_num_threads(count)
                    _multiply(left, right)  # starts the threads
                    rates[count].append(_measure_rate(left, right))
    finally:
        torch.set_num_threads(previous)
    return {count: median(turns) for count, turns in rates.items()}


def _multiply(left: "torch.Tensor", right: "torch.Tensor") -> None:
    """Compute what a layer of a model computes: a product, and a function of its elements."""
    import torch

    torch.nn.functional.silu(left @ right)


def _measure_rate(left: "torch.Tensor", right: "torch.Tensor") -> float:
    products = 0
    start = now = time.perf_counter()
    while now - start < TURN_SECONDS:
        _multiply(left, right)
        products += 1
        now = time.perf_counter()
    return products * _PRODUCT_FLOPS / (now - start)


class ThreadControl:
    """The control of PyTorch's number of threads.

    Args:
        limit: Returns the maximum number of threads. It is called at the first measurement.
        measure: Measures the rates.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        limit: Callable[[], int] = thread_limit,
        measure: MeasureRates = measure_rates,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find_limit, self._measure, self._clock = limit, measure, clock
        self.limit = self.threads = 0
        self._rate = 0.0
        self._bf16: bool | None = None
        self._measured_at = self._measuring_seconds = 0.0
        self._step_began: float | None = None
        self._step_seconds: list[float] = []
        self._counted_until = self._seconds = self._thread_seconds = self._operations = 0.0

    def follow_load(self, bf16: bool, is_step: bool = False) -> None:
        """Measure the speed if it is time to, and set PyTorch's number of threads.

        Args:
            bf16: Whether the model computes in bfloat16.
            is_step: Whether a step begins. All steps should take about the same time, so that a
                slow step shows another load.
        """
        now = self._clock()
        self._count(now)
        if is_step and self._step_began is not None:
            self._step_seconds.append(now - self._step_began)
        if self._is_due(now, bf16):
            self._adjust(bf16)
        if is_step:
            self._step_began = self._clock()

    def use(self) -> ThreadUse | None:
        """Return the threads and the rate since the last call of `forget_use`.

        Return None if nothing was measured.
        """
        self._count(self._clock())
        if not self._seconds:
            return None
        return ThreadUse(
            self.limit, self._thread_seconds / self._seconds, self._operations / self._seconds
        )

    def forget_use(self) -> None:
        """Begin new means for `use`. The usual time of a step is also forgotten."""
        self._seconds = self._thread_seconds = self._operations = 0.0
        self._counted_until = self._clock()
        self._step_began, self._step_seconds = None, []

    def _count(self, now: float) -> None:
        if self._rate:
            seconds = now - self._counted_until
            self._seconds += seconds
            self._thread_seconds += seconds * self.threads
            self._operations += seconds * self._rate
        self._counted_until = now

    def _is_due(self, now: float, bf16: bool) -> bool:
        if bf16 != self._bf16:
            return True
        elapsed = now - self._measured_at
        if elapsed >= max(PAUSE_SECONDS, self._measuring_seconds / MEASURING_SHARE):
            return True
        if len(self._step_seconds) <= _STEPS_FOR_MEDIAN or elapsed < self._measuring_seconds * 5:
            return False
        return self._step_seconds[-1] > SLOW_STEP * median(self._step_seconds[:-1])

    def _adjust(self, bf16: bool) -> None:
        import torch

        began = self._clock()
        self.limit = self.limit or self._find_limit()
        rates = self._measure(list_thread_counts(self.limit), bf16)
        self.threads = choose_threads(rates)
        self._rate, self._bf16, self._step_seconds = rates[self.threads], bf16, []
        torch.set_num_threads(self.threads)
        self._measured_at = self._counted_until = self._clock()
        self._measuring_seconds = self._measured_at - began


def let_idle_threads_sleep() -> None:
    """Let threads that wait for each other sleep soon. Call this before PyTorch is imported.

    Waiting threads that spin take cores from other processes. For example, training was ten times
    slower next to a second process of PyTorch. But a step of a small model has thousands of
    products, and a token of llama.cpp hundreds of barriers. Sleep at each barrier took two thirds
    of a token's time. So threads spin for a moment first. With a count of 2000 instead of 1000, a
    training alone is a tenth faster, and two trainings side by side have 0.8 of the speed. With
    5000 they have 0.55, and with 30000 they have 0.15.

    Variables that the user has set are kept.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")


_CONTROLS: list[ThreadControl] = []
"""The control of this process, if the process controls its threads."""


def control_threads() -> ThreadControl:
    """Let the number of threads follow the load in this process, from the next `follow_load` on."""
    if not _CONTROLS:
        _CONTROLS.append(ThreadControl())
    return _CONTROLS[0]


def current_control() -> ThreadControl | None:
    """Return the control of this process, or None if the process keeps PyTorch's number."""
    return _CONTROLS[0] if _CONTROLS else None


def current_thread_use() -> ThreadUse | None:
    """Return the threads since the last `forget_use`, or None if nothing was measured."""
    control = current_control()
    return control.use() if control else None


def threads_for_load() -> int:
    """Return the number of threads for a program that keeps its number, such as llama.cpp.

    It is the number that the load allows now, or `thread_limit` if this process keeps PyTorch's
    number.
    """
    control = current_control()
    if control is None:
        return thread_limit()
    control.follow_load(bf16=False)
    return control.threads


def follow_load(device_type: str, dtype: "torch.dtype", is_step: bool = False) -> None:
    """Let the number of threads follow the load, if this process controls its threads.

    The function is called often, between forward passes. Most calls only look at the clock.

    Args:
        device_type: The kind of device of the model. Only a CPU has threads.
        dtype: The number format of the model's weights.
        is_step: As in `ThreadControl.follow_load`.
    """
    if _CONTROLS and device_type == "cpu":
        import torch

        _CONTROLS[0].follow_load(dtype == torch.bfloat16, is_step)
