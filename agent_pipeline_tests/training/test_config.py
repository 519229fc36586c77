"""The numbers of a training."""

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.training.config import STORED_TOKENS, TrainingConfig


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
    assert left_out == {"checkpoint_steps", "gradient_checkpointing", "processes", "most_dropped"}


def test_long_batches_recompute_their_activations():
    config = TrainingConfig()
    assert not config.checkpoints_gradients(STORED_TOKENS) and config.checkpoints_gradients(
        STORED_TOKENS + 1
    )
    assert config.changed(gradient_checkpointing="on").checkpoints_gradients(1)


def test_modules_are_all_linear_or_names():
    assert TrainingConfig().modules == "all-linear"
    assert TrainingConfig(target_modules="q_proj, v_proj").modules == ["q_proj", "v_proj"]
