"""Forecasts of memory and time: what is foretold, and what helps."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_pipeline.errors import ModelError
from agent_pipeline.models.device import Device
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.forecast import ModelShape, TrainingPlan, count_adapter_weights
from agent_pipeline.training.size_defaults import (
    build_meta_model,
    count_base_weights,
    count_weights,
)

GB = 1e9
SMOLLM2_135M = ModelShape(134_515_008, 4_884_480, 30, 576, 1536, 49_152)
QWEN3_1_7B = ModelShape(1_720_574_976, 17_432_576, 28, 2048, 6144, 151_936)
QWEN25_7B = ModelShape(7_615_616_512, 40_370_176, 28, 3584, 18_944, 152_064)
CPU, GPU = Device("cpu", False), Device("cuda", True)


def make_plan(
    shape: ModelShape, lengths: list[int], device: Device = GPU, **options: object
) -> TrainingPlan:
    return TrainingPlan(shape, TrainingConfig(**options), lengths, device)


PLANTED = {
    "weights do not fit": (make_plan(QWEN25_7B, [500] * 10), 12 * GB, True),
    "all weights are trained": (
        make_plan(replace(QWEN3_1_7B, adapter_weights=0), [500] * 10, use_lora=False),
        24 * GB,
        True,
    ),
    "float32 weights": (make_plan(QWEN3_1_7B, [500] * 10, CPU, precision="float32"), 6 * GB, True),
    "long rows that are kept": (
        make_plan(QWEN3_1_7B, [8000] * 10, gradient_checkpointing="off"),
        24 * GB,
        False,
    ),
    "many rows at once": (
        make_plan(
            replace(QWEN3_1_7B, is_packed=False),
            [2000] * 64,
            per_device_train_batch_size=32,
            gradient_checkpointing="off",
        ),
        80 * GB,
        False,
    ),
}
"""Runs with less memory than they need, and whether not even the weights and the optimizer fit."""


@pytest.mark.parametrize("name", PLANTED)
def test_planted_shortages_are_foretold(name: str) -> None:
    """The warning says how much is missing and which settings help, before the run."""
    plan, available, is_certain = PLANTED[name]
    forecast = plan.forecast(available)
    assert forecast.missing == forecast.total - available > 0
    warning = plan.warn(forecast)
    assert f"{forecast.missing / GB:.1f} GB more memory" in warning
    if is_certain:
        with pytest.raises(ModelError) as raised:
            plan.check(forecast)
        assert raised.value.setting == "sft_adapter.base_model"
    else:
        plan.check(forecast)
        remedies = plan.list_remedies(available)
        assert len(remedies) >= 2 and all(
            remedy.split(" ")[0] in warning for remedy in remedies[:3]
        )


@pytest.mark.parametrize(
    ("plan", "available"),
    [
        (make_plan(SMOLLM2_135M, [600] * 100, CPU), 8 * GB),
        (make_plan(QWEN3_1_7B, [2000] * 100), 24 * GB),
        (make_plan(QWEN25_7B, [2000] * 100), 80 * GB),
    ],
)
def test_runs_that_fit_are_not_warned_about(plan: TrainingPlan, available: float) -> None:
    forecast = plan.forecast(available)
    assert plan.warn(forecast) == "" and forecast.missing == 0
    plan.check(forecast)


def test_the_measured_run_is_foretold() -> None:
    """SmolLM2-135M in float32 on a CPU peaks at about 4.1 GB, and recomputing saves memory."""
    kept = make_plan(SMOLLM2_135M, [450] * 100, CPU, gradient_checkpointing="off")
    assert 2 * GB < kept.forecast(16 * GB).total < 8 * GB
    recomputed = replace(kept, config=kept.config.changed(gradient_checkpointing="on"))
    assert recomputed.forecast(16 * GB).total < 0.6 * kept.forecast(16 * GB).total


@given(st.integers(16, 8192), st.integers(16, 8192), st.sampled_from([CPU, GPU]), st.booleans())
def test_shorter_rows_never_need_more(one: int, other: int, device: Device, packed: bool) -> None:
    short, long = sorted((one, other))
    shape = replace(QWEN3_1_7B, is_packed=packed)
    needs = [
        make_plan(shape, [length] * 4, device, gradient_checkpointing="on").forecast(80 * GB)
        for length in (short, long)
    ]
    assert needs[0].total <= needs[1].total
    assert needs[0].seconds <= needs[1].seconds
    assert needs[0].steps == needs[1].steps == 2


def test_sizes_come_from_the_configuration(tiny_base) -> None:
    """The meta device gives the weights of the files, and the adapter's weights of PEFT."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    assert count_base_weights(tiny_base) == count_weights(tiny_base.path)
    meta = build_meta_model(tiny_base)
    assert all(parameter.is_meta for parameter in meta.parameters())
    model = AutoModelForCausalLM.from_pretrained(tiny_base.path)
    for targets in ("all-linear", "q_proj, v_proj"):
        config = TrainingConfig(lora_r=4, target_modules=targets)
        lora = LoraConfig(r=4, target_modules=config.modules, task_type="CAUSAL_LM")
        adapted = get_peft_model(model, lora)
        assert count_adapter_weights(meta, config) == adapted.get_nb_trainable_parameters()[0]
        model = adapted.unload()
