"""Where models are computed, in which type, and by which library."""

import time
from pathlib import Path

import pytest
import torch

from agent_pipeline.models import device, threads
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


@pytest.mark.parametrize(
    ("onednn", "follows", "uses"),
    [(1.0, True, True), (1.0, False, False), (0.9, True, False), (1.3, False, True)],
)
def test_threads_that_follow_the_load(onednn, follows, uses, monkeypatch):
    """The library whose bits do not depend on the threads is taken if the threads may change."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(device, "measure_product_speeds", speeds(onednn, 0.1))
    monkeypatch.setattr(threads, "_CONTROLS", [threads.ThreadControl()] if follows else [])
    assert device.exact_device().onednn is uses


def test_products_of_onednn_have_the_same_bits_for_every_number_of_threads():
    """The shapes are those of layers, of adapters and of output heads, forward and backward."""
    before = torch.get_num_threads()
    if device.measure_product_speeds()["oneDNN"] == 0:
        pytest.skip("oneDNN rounds float32 products on this CPU")
    shapes = [(64, 576, 1536), (7, 1536, 576), (576, 1000, 16), (16, 1000, 576), (40, 64, 3000)]
    try:
        for rows, inner, columns in shapes:
            left, right = torch.randn(rows, inner), torch.randn(inner, columns)
            products = []
            with device.float32_products("medium"):
                for count in (1, 2, 3):
                    torch.set_num_threads(count)
                    products.append(
                        (left @ right, left.t().contiguous().t() @ right.t().contiguous().t())
                    )
            assert all(
                torch.equal(first, other)
                for product in products
                for first, other in zip(products[0], product, strict=True)
            )
    finally:
        torch.set_num_threads(before)


def test_other_load_does_not_change_the_measured_speeds(monkeypatch):
    """The time that other processes take from the measuring thread does not count."""
    seen, multiply = [], torch.Tensor.__matmul__
    monkeypatch.setattr(device, "_REPEATS", 3)

    def interrupted(left, right):
        seen.append(torch.get_num_threads())
        time.sleep(0.05 if left.dtype == torch.bfloat16 else 0)
        return multiply(left, right)

    quiet = device.measure_product_speeds.__wrapped__()
    monkeypatch.setattr(torch.Tensor, "__matmul__", interrupted)
    loaded = device.measure_product_speeds.__wrapped__()
    # A pause of 50 ms is more than ten times as long as the product.
    assert loaded["bfloat16"] > quiet["bfloat16"] / 4
    assert set(seen[:9]) == {1}


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
