"""The number of threads, which follows the load of the machine."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.models import threads
from agent_pipeline.models.threads import (
    PAUSE_SECONDS,
    ThreadControl,
    choose_threads,
    list_thread_counts,
    measure_rates,
    thread_limit,
)


class Machine:
    """A machine of two cores with a clock, on which a measurement takes 0.2 seconds.

    With `busy`, another process takes one of the cores.
    """

    def __init__(self) -> None:
        self.seconds, self.busy, self.measurements = 1000.0, False, 0

    def clock(self) -> float:
        return self.seconds

    def measure(self, counts, bf16):
        self.seconds += 0.2
        self.measurements += 1
        return {count: 1e9 * (0.1 if self.busy else count) for count in counts} | {1: 1e9}


@pytest.fixture
def machine(monkeypatch) -> Machine:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    return Machine()


def control_of(machine: Machine) -> ThreadControl:
    return ThreadControl(lambda: 2, machine.measure, machine.clock)


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1, 1e12), min_size=1),
)
def test_choice(rates: dict[int, float]) -> None:
    """The number is almost the fastest, and no smaller number is."""
    chosen = choose_threads(rates)
    enough = threads.ENOUGH * max(rates.values())
    assert rates[chosen] >= enough
    assert all(rate < enough for count, rate in rates.items() if count < chosen)


@given(st.integers(1, 300))
def test_counts(limit: int) -> None:
    counts = list_thread_counts(limit)
    assert counts[0] == 1 and counts[-1] == limit and counts == sorted(set(counts))
    assert all(more <= 2 * fewer for fewer, more in pairwise(counts))


def test_load(machine: Machine) -> None:
    """The number falls when another process comes, and rises again when that process has gone."""
    control = control_of(machine)
    numbers = []
    for busy in (False, True, False):
        machine.busy = busy
        control.follow_load(bf16=False)
        numbers.append(control.threads)
        machine.seconds += PAUSE_SECONDS
    assert numbers == [2, 1, 2]


def test_a_slow_step_is_not_waited_for(machine: Machine) -> None:
    """A step that takes much longer than the others shows the load before the pause ends."""
    control = control_of(machine)
    for seconds in (1.0, 1.0, 1.0, 1.0):
        control.follow_load(bf16=False, is_step=True)
        machine.seconds += seconds
    assert machine.measurements == 1
    machine.busy = True
    control.follow_load(bf16=False, is_step=True)
    machine.seconds += 5.0
    control.follow_load(bf16=False, is_step=True)
    assert (machine.measurements, control.threads) == (2, 1)


@pytest.mark.parametrize("step_seconds", [0.01, 3.0, 40.0])
def test_measurements_take_little_time(machine: Machine, step_seconds: float) -> None:
    """Steps of equal length are measured for at most a fiftieth of the time."""
    control = control_of(machine)
    began = machine.seconds
    while machine.seconds - began < 600:
        control.follow_load(bf16=False, is_step=True)
        machine.seconds += step_seconds
    assert machine.measurements * 0.2 <= 0.02 * (machine.seconds - began)


def test_use(machine: Machine) -> None:
    """The means weigh each number of threads by the time for which it was used."""
    control = control_of(machine)
    assert control.use() is None
    control.follow_load(bf16=False)
    machine.seconds += 30
    machine.busy = True
    control.follow_load(bf16=False)
    machine.seconds += 10
    use = control.use()
    assert (use.limit, use.mean, use.flops) == (2, 1.75, 1.75e9)
    control.forget_use()
    machine.seconds += 10
    assert control.use().mean == 1


def test_another_number_format_is_measured_anew(machine: Machine) -> None:
    control = control_of(machine)
    control.follow_load(bf16=False)
    control.follow_load(bf16=True)
    control.follow_load(bf16=True)
    assert machine.measurements == 2


@pytest.mark.parametrize(
    ("variable", "cores", "limit"),
    [("", 8, 8), ("3", 8, 3), ("16", 8, 8), ("4,2", 8, 4), ("many", 8, 8), ("0", 8, 8)],
)
def test_limit(variable: str, cores: int, limit: int, monkeypatch) -> None:
    """OMP_NUM_THREADS can lower the number of cores of a container, and cannot raise it."""
    monkeypatch.setenv("OMP_NUM_THREADS", variable)
    monkeypatch.setattr("joblib.cpu_count", lambda: cores)
    assert thread_limit() == limit


def test_rates() -> None:
    """The rates are those of this machine, and PyTorch's number of threads stays."""
    before = torch.get_num_threads()
    rates = measure_rates([1, 2], bf16=False)
    assert set(rates) == {1, 2} and all(1e6 < rate < 1e14 for rate in rates.values())
    assert torch.get_num_threads() == before


def test_a_process_that_does_not_ask_keeps_its_threads(monkeypatch) -> None:
    """PyTorch's number of threads belongs to the user, but for the worker process."""
    monkeypatch.setattr(torch, "set_num_threads", lambda count: pytest.fail("was changed"))
    threads.follow_load("cpu", torch.float32)
    assert threads.current_control() is None


@pytest.mark.parametrize("run", ["first", "second"])
def test_tests_do_not_share_threads(run: str) -> None:
    """A test that runs the program in this process leaves nothing to the next test."""
    assert threads.current_control() is None and torch.get_num_threads() == 1
    threads.control_threads()
    torch.set_num_threads(2)


def test_a_gpu_is_not_measured(monkeypatch, machine: Machine) -> None:
    monkeypatch.setattr(threads, "_CONTROLS", [control_of(machine)])
    threads.follow_load("cuda", torch.bfloat16)
    assert not machine.measurements
    threads.follow_load("cpu", torch.bfloat16)
    assert machine.measurements == 1
