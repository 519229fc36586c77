"""What the worker process does around its task."""

import os

import pytest
import torch

from agent_pipeline import worker


@pytest.fixture
def gpus(monkeypatch):
    """A machine whose torch would see so many GPUs."""

    def see(count: int, visible: str | None = None) -> None:
        monkeypatch.setattr(worker, "version", lambda package: torch.__version__.partition("+")[0])
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible or "")
        if visible is None:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")

    return see


@pytest.mark.parametrize(
    ("visible", "used"),
    [
        (None, ["0", "1", "2", "0"]),
        ("2,5,7", ["2", "5", "7", "2"]),
        ("GPU-a,GPU-b,GPU-c", ["GPU-a", "GPU-b", "GPU-c", "GPU-a"]),
    ],
)
def test_of_several_gpus_each_task_uses_one_and_tasks_at_once_use_others(gpus, visible, used):
    for place, gpu in enumerate(used):
        gpus(3, visible)
        worker._use_gpus(place, 1)
        assert os.environ["CUDA_VISIBLE_DEVICES"] == gpu


@pytest.mark.parametrize(("place", "used"), [(0, "4,5"), (1, "6,7"), (2, "4,5")])
def test_a_training_of_several_processes_uses_as_many_gpus(gpus, place, used):
    gpus(4, "4,5,6,7")
    worker._use_gpus(place, 2)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == used


@pytest.mark.parametrize("count", [0, 1])
def test_one_gpu_or_none_stays_as_it_is_shown(gpus, count):
    gpus(count)
    worker._use_gpus(1, 1)
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_tasks_that_run_at_once_have_places_of_their_own(tmp_path):
    with worker._turn(tmp_path, 2, print) as first, worker._turn(tmp_path, 2, print) as second:
        assert [first, second] == [0, 1]
    with worker._turn(tmp_path, 0, print) as unlimited:
        assert unlimited == 0
