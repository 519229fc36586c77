"""Where models are computed, in which type, and by which library."""

from pathlib import Path

import pytest
import torch

from agent_pipeline.models import device
from agent_pipeline.models.device import (
    MIN_BF16_SPEEDUP,
    MIN_ONEDNN_SPEEDUP,
    Device,
    fast_device,
    probe_device,
)
from agent_pipeline.models.loading import load_model
from agent_pipeline.training.trainers.common import choose_device


def speeds(onednn, bfloat16):
    return lambda: {"MKL": 1.0, "oneDNN": onednn, "bfloat16": bfloat16}


@pytest.mark.parametrize(
    ("onednn", "bfloat16", "measures", "trains"),
    [
        (1.1, 2.4, "cpu float32", "cpu bfloat16"),
        (1.1, 0.1, "cpu float32", "cpu float32"),
        (2.2, 4.2, "cpu float32 (oneDNN)", "cpu bfloat16 (oneDNN)"),
        (
            2.2,
            2.8,
            "cpu float32 (oneDNN)",
            "cpu float32 (oneDNN)",
        ),  # bfloat16 has to beat the faster float32
    ],
)
def test_a_cpu_takes_the_library_and_the_type_in_which_it_multiplies_faster(
    monkeypatch, onednn, bfloat16, measures, trains
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(device, "measure_product_speeds", speeds(onednn, bfloat16))
    assert (str(probe_device()), str(fast_device("auto"))) == (measures, trains)
    asked = [fast_device(precision) for precision in ("float32", "bfloat16")]
    assert [each.bf16 for each in asked] == [False, True] and {each.onednn for each in asked} == {
        probe_device().onednn
    }


@pytest.mark.parametrize("bfloat16", [0.1, 4.2])
def test_number_format(monkeypatch, bfloat16):
    """A busy CPU may choose another library, and computes in the same number format."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    number_formats = set()
    for onednn in (1.1, 2.2):
        monkeypatch.setattr(device, "measure_product_speeds", speeds(onednn, bfloat16))
        number_formats.add(fast_device().number_format)
    assert number_formats == {"cpu bfloat16" if bfloat16 > 1 else "cpu float32"}


def test_onednn_does_not_multiply_beside_a_gpu_which_would_round(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(device, "measure_product_speeds", speeds(2.2, 4.2))
    assert not device.exact_device().onednn


def test_the_speed_of_products_is_measured_and_a_library_that_rounds_them_is_not_taken(monkeypatch):
    before = torch.get_float32_matmul_precision()
    measured = device.measure_product_speeds.__wrapped__()
    assert 0 < measured["bfloat16"] < 100 and 0 <= measured["oneDNN"] < 100
    assert torch.get_float32_matmul_precision() == before
    monkeypatch.setattr(device, "MAX_FLOAT32_ERROR", 1e-9)
    assert device.measure_product_speeds.__wrapped__()["oneDNN"] == 0


def test_a_model_is_computed_by_the_library_of_its_device(tiny_base):
    for onednn, precision in ((True, "medium"), (False, "highest")):
        load_model(tiny_base, Device("cpu", False, onednn))
        assert torch.get_float32_matmul_precision() == precision


def test_a_training_goes_on_in_the_precision_that_it_began_in(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(
        device,
        "measure_product_speeds",
        speeds(2 * MIN_ONEDNN_SPEEDUP, 4 * MIN_BF16_SPEEDUP * MIN_ONEDNN_SPEEDUP),
    )
    begun = choose_device(tmp_path, "auto")
    monkeypatch.setattr(
        device, "measure_product_speeds", speeds(1.0, 0.1)
    )  # as another process measures on a busy machine
    assert str(fast_device("auto")) != str(begun) == str(choose_device(tmp_path, "auto"))


@pytest.mark.parametrize(
    ("has_gpu", "cuda", "says"), [(True, None, True), (True, "13.0", False), (False, None, False)]
)
def test_unused_gpu(
    has_gpu: bool, cuda: str | None, says: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU beside a PyTorch that was built without CUDA is named, with the command that mends it."""
    driver = tmp_path / "version"
    if has_gpu:
        driver.touch()
    monkeypatch.setattr(device, "NVIDIA_DRIVER_FILE", driver)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    assert ("pip install" in device.describe_unused_gpu()) is says
