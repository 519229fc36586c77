"""Learning rates and epochs that depend on how large the base model is."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.config.assets import ASSETS, AdapterConfig
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.training.config import (
    TrainingConfig,
    count_weights,
    describe_size_defaults,
    fill_size_defaults,
    resolve_size_defaults,
)

LEFT = {"learning_rate": 0.0, "num_train_epochs": 0.0}


@pytest.mark.parametrize(
    ("weights", "rate", "epochs"),
    [
        (134_515_008, 1.5e-3, 1.0),
        (0.6e9, 5e-4, 2.0),
        (1.7e9, 2e-4, 2.0),
        (8e9, 2e-4, 2.0),
        (32e9, 1e-4, 2.0),
        (None, 2e-4, 2.0),
    ],
)
def test_a_larger_base_is_trained_at_a_lower_rate(weights, rate, epochs):
    """Qwen3-1.7B was trained at the rate that was tuned for 135 million weights."""
    made = fill_size_defaults(LEFT, "sft", weights)
    assert (made["learning_rate"], made["num_train_epochs"]) == (rate, epochs)


@given(
    st.sampled_from(["sft", "dpo", "kto", "sdft", "distill", "grpo"]),
    st.lists(st.floats(1e6, 1e12), min_size=2, max_size=2),
)
def test_rates_never_rise_with_size(method, sizes):
    small, large = (
        fill_size_defaults(LEFT, method, weights)["learning_rate"] for weights in sorted(sizes)
    )
    assert small >= large > 0


def test_what_was_set_stays():
    assert fill_size_defaults({"learning_rate": 3e-3, "num_train_epochs": 4.0}, "sft", 7e9) == {
        "learning_rate": 3e-3,
        "num_train_epochs": 4.0,
    }
    assert fill_size_defaults(LEFT | {"use_lora": False}, "sft", 7e9)[
        "learning_rate"
    ] == pytest.approx(2e-5)


def test_weights_are_counted_in_the_headers_of_the_files(tmp_path):
    header = json.dumps({"w": {"dtype": "BF16", "shape": [3, 4], "data_offsets": [0, 24]}}).encode()
    for name in ("model-1.safetensors", "model-2.safetensors"):
        (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + bytes(24))
    base = BaseModel("org/model", tmp_path, "r")
    assert count_weights(tmp_path) == 24
    assert resolve_size_defaults(LEFT, "sft", base)["learning_rate"] == 1.5e-3
    assert "org/model" in describe_size_defaults(
        LEFT, resolve_size_defaults(LEFT, "sft", base), base
    )
    assert describe_size_defaults({"learning_rate": 1e-3, "num_train_epochs": 1.0}, {}, base) == ""


def test_the_sample_is_trained_as_before(tiny_base):
    """A small base gets the values that were the defaults, so that its models keep their identities."""
    config = AdapterConfig().model_dump(include=set(TrainingConfig.model_fields))
    assert (
        TrainingConfig(**resolve_size_defaults(config, "sft", tiny_base)).identity()
        == TrainingConfig().identity()
    )
    assert TrainingConfig().learning_rate == 1.5e-3
    assert TrainingConfig().num_train_epochs == 1.0
    further = {
        name: ASSETS[f"{name}_adapter"]().model_dump()
        for name in ("dpo", "kto", "sdft", "distill", "grpo")
    }
    rates = {
        name: resolve_size_defaults(values, name, tiny_base)["learning_rate"]
        for name, values in further.items()
    }
    assert rates == dict.fromkeys(("dpo", "kto", "sdft", "distill"), 2e-4) | {"grpo": 5e-5}
