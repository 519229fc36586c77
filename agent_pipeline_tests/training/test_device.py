"""Where models are computed, in which type, and by which library."""

import torch

from agent_pipeline.training import checkpoints, device
from agent_pipeline.training.device import BF16_SPEEDUP, ONEDNN_SPEEDUP, Device, probe_device, training_device
from agent_pipeline.training.loading import load_model


def speeds(onednn, bfloat16):
    return lambda: {"MKL": 1.0, "oneDNN": onednn, "bfloat16": bfloat16}


def test_a_cpu_measures_in_float32_and_trains_in_the_type_that_it_multiplies_faster(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for bfloat16, chosen in ((2.4, "bfloat16"), (0.1, "float32")):
        monkeypatch.setattr(device, "product_speeds", speeds(1.1, bfloat16))
        assert str(probe_device()) == "cpu float32"
        assert str(training_device("auto")) == f"cpu {chosen}"
    assert str(training_device("float32")) == "cpu float32" and str(training_device("bfloat16")) == "cpu bfloat16"


def test_onednn_multiplies_where_it_is_faster_and_bfloat16_has_to_beat_it(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for bfloat16, chosen in ((4.2, "bfloat16"), (2.8, "float32")):
        monkeypatch.setattr(device, "product_speeds", speeds(2.2, bfloat16))
        assert str(probe_device()) == "cpu float32 (oneDNN)"
        assert str(training_device("auto")) == f"cpu {chosen} (oneDNN)"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)  # it would let a GPU round
    assert not device.exact_device().onednn


def test_the_speed_of_products_is_measured_and_a_library_that_rounds_them_is_not_taken(monkeypatch):
    before = torch.get_float32_matmul_precision()
    measured = device.product_speeds.__wrapped__()
    assert 0 < measured["bfloat16"] < 100 and 0 <= measured["oneDNN"] < 100
    assert torch.get_float32_matmul_precision() == before
    monkeypatch.setattr(device, "FLOAT32_ERROR", 1e-9)
    assert device.product_speeds.__wrapped__()["oneDNN"] == 0


def test_a_model_is_computed_by_the_library_of_its_device(tiny_base):
    for onednn, precision in ((True, "medium"), (False, "highest")):
        load_model(tiny_base, Device("cpu", False, onednn))
        assert torch.get_float32_matmul_precision() == precision


def test_a_training_goes_on_in_the_precision_that_it_began_in(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(device, "product_speeds", speeds(2 * ONEDNN_SPEEDUP, 4 * BF16_SPEEDUP * ONEDNN_SPEEDUP))
    begun = checkpoints.device(tmp_path, "auto")
    monkeypatch.setattr(device, "product_speeds", speeds(1.0, 0.1))  # as another process measures on a busy machine
    assert str(training_device("auto")) != str(begun) == str(checkpoints.device(tmp_path, "auto"))
