"""The numbers of a training."""

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.training import checkpoints, config
from agent_pipeline.training.config import BF16_SPEEDUP, STORED_TOKENS, TrainingConfig, probe_device, training_device


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size", 0),
        ("epochs", 0),
        ("learning_rate", -1.0),
        ("lora_dropout", 1.0),
        ("max_length", 3),
        ("gradient_checkpointing", "yes"),
        ("lr_scheduler", "cosinus"),
    ],
)
def test_a_value_that_cannot_work_is_named(field, value):
    with pytest.raises(SettingsError, match=f"'{field}' is"):
        TrainingConfig(**{field: value})


def test_every_option_with_an_effect_is_in_the_identity():
    left_out = set(TrainingConfig.model_fields) - TrainingConfig().identity().keys()
    assert left_out == {"checkpoint_steps", "gradient_checkpointing"}


def test_long_batches_recompute_their_activations():
    config = TrainingConfig()
    assert not config.checkpoints_gradients(STORED_TOKENS) and config.checkpoints_gradients(STORED_TOKENS + 1)
    assert config.changed(gradient_checkpointing="on").checkpoints_gradients(1)


def test_modules_are_all_linear_or_names():
    assert TrainingConfig().modules == "all-linear"
    assert TrainingConfig(target_modules="q_proj, v_proj").modules == ["q_proj", "v_proj"]


def test_a_cpu_measures_in_float32_and_trains_in_the_type_that_it_multiplies_faster(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert str(probe_device()) == "cpu float32"
    for speedup, chosen in ((2.4, "bfloat16"), (0.1, "float32")):
        monkeypatch.setattr(config, "bf16_speedup", lambda speedup=speedup: speedup)
        assert str(training_device("auto")) == f"cpu {chosen}"
    assert str(training_device("float32")) == "cpu float32" and str(training_device("bfloat16")) == "cpu bfloat16"


def test_the_speed_of_bfloat16_is_measured():
    assert 0 < config.bf16_speedup() < 100


def test_a_training_goes_on_in_the_precision_that_it_began_in(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(config, "bf16_speedup", lambda: 2 * BF16_SPEEDUP)
    begun = checkpoints.device(tmp_path, "auto")
    monkeypatch.setattr(config, "bf16_speedup", lambda: 0.1)  # as another process measures on a busy machine
    assert str(training_device("auto")) != str(begun) == str(checkpoints.device(tmp_path, "auto"))
