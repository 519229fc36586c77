"""Learning rates and epochs that depend on how large the base model is."""

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.compute.tasks import fit_context
from agent_pipeline.config.assets import ASSETS, AdapterConfig
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.training.config import FURTHER, TrainingConfig
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.sft import resolve_sft_options
from agent_pipeline.training.size_defaults import (
    SIZED_OPTIONS,
    SMALL_BASE_OPTIONS,
    count_weights,
    describe_size_defaults,
    fill_row_defaults,
    fill_size_defaults,
    needs_lengths,
    resolve_size_defaults,
)

LEFT = {"learning_rate": 0.0, "num_train_epochs": 0.0}
OPEN = dict.fromkeys(SMALL_BASE_OPTIONS, 0)


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
    """A small base gets the values that were the defaults, and no length above its context."""
    config = AdapterConfig().model_dump(include=set(TrainingConfig.model_fields))
    assert (
        TrainingConfig(**resolve_sft_options(config, tiny_base, [])).identity()
        == TrainingConfig(max_length=1024).identity()
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


@pytest.mark.parametrize(
    ("weights", "lengths", "context", "max_length", "step_rows"),
    [
        (134_515_008, [9000] * 5000, 8192, 2048, 2),
        (134_515_008, [9000] * 5000, 1024, 1024, 2),
        (1.7e9, [500] * 100, 40960, 2048, 2),
        (1.7e9, [500] * 300, 40960, 2048, 4),
        (1.7e9, [500] * 100_000, 40960, 2048, 16),
        (1.7e9, [3000, 100], 40960, 3072, 2),
        (1.7e9, [30_000], 40960, 8192, 2),
        (1.7e9, [3000], 1024, 1024, 2),
        (None, [3000], None, 3072, 2),
        (1.7e9, [], None, 2048, 2),
    ],
)
def test_rows_define_the_length_and_the_batch(weights, lengths, context, max_length, step_rows):
    """A larger base fits its rows; the base of the demo keeps its values, whatever the rows are."""
    made = fill_row_defaults(OPEN, weights, lengths, context)
    assert made == {
        "max_length": max_length,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": step_rows,
    }


@given(
    st.dictionaries(st.sampled_from(sorted(SMALL_BASE_OPTIONS)), st.integers(16, 64)),
    st.sampled_from([1e8, 1.7e9]),
    st.lists(st.integers(1, 9000), min_size=1),
)
def test_row_defaults_never_replace_what_was_set(values, weights, lengths):
    made = fill_row_defaults(OPEN | values, weights, lengths * 100, 4096)
    assert {name: made[name] for name in values} == values
    assert all(made.values())
    if "per_device_train_batch_size" in values and "gradient_accumulation_steps" not in values:
        assert made["gradient_accumulation_steps"] == 2


def test_length_above_the_context_is_lowered():
    """No base model reads tokens beyond its context, and llama.cpp refuses such prompts."""
    made = fill_row_defaults(OPEN | {"max_length": 9000}, 1.7e9, [8500] * 100, 8192)
    assert made["max_length"] == 8192
    assert fill_row_defaults(OPEN | {"max_length": 9000}, 1.7e9, [], None)["max_length"] == 9000


def test_lowered_length_is_named(tiny_base):
    """Also if every option was set."""
    every = dict.fromkeys((*SIZED_OPTIONS, *SMALL_BASE_OPTIONS), 1) | {"max_length": 10**6}
    options = resolve_sft_options(every, tiny_base, [])
    assert options == every | {"max_length": 1024}
    assert "1024" in describe_size_defaults(every, options, tiny_base)


@pytest.mark.parametrize("method", sorted(FURTHER))
def test_later_steps_stay_within_the_context(tiny_base, method):
    """Such a step was trained on rows that the base model cannot read."""
    options = FURTHER[method](max_length=10**6, learning_rate=1e-5, num_train_epochs=1)
    further = FurtherInput(method, [], tiny_base, tiny_base.path, options)
    assert further.config.max_length == 1024


def test_evaluations_stay_within_the_context(tiny_base):
    """The lowered length is named once, and a shorter length stays."""
    notes: list[str] = []
    config = fit_context(
        {"max_length": 8192}, tiny_base, lambda done, total, what: notes.append(what)
    )
    assert config == {"max_length": 1024}
    assert len(notes) == 1 and "1024" in notes[0] and "8192" in notes[0]
    assert fit_context({"max_length": 512}, tiny_base) == {"max_length": 512}


def test_lengths_are_read_only_if_they_matter():
    assert not needs_lengths(OPEN, 1e8)
    assert needs_lengths(OPEN, 1.7e9)
    assert not needs_lengths(dict.fromkeys(SMALL_BASE_OPTIONS, 1), 1.7e9)


def test_default_settings_keep_their_hash():
    """An agent with the embedded base is not trained again because of the new options."""
    hashed = AdapterConfig().hashed()
    assert (hashed["max_length"], hashed["batch_size"], hashed["gradient_accumulation"]) == (
        2048,
        1,
        2,
    )
    assert AdapterConfig(max_length=4096).hashed()["max_length"] == 4096
    assert AdapterConfig(base_model="org/model").hashed()["max_length"] == 0
