"""The numbers of a training."""

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.training.config import STORED_TOKENS, GrpoTraining, TrainingConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("per_device_train_batch_size", 0),
        ("num_train_epochs", 0),
        ("learning_rate", -1.0),
        ("lora_dropout", 1.0),
        ("max_length", 3),
        ("gradient_checkpointing", "yes"),
        ("lr_scheduler_type", "cosinus"),
    ],
)
def test_a_value_that_cannot_work_is_named(field, value):
    with pytest.raises(SettingsError, match=f"'{field}' is"):
        TrainingConfig(**{field: value})


def test_every_option_with_an_effect_is_in_the_identity():
    hashed_names = TrainingConfig().hashed().keys()
    left_out = hashed_names - TrainingConfig().identity().keys()
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


def test_identity_keeps_its_names():
    """A renamed option changes no identity: the names are those of the first version."""
    names = {"epochs", "lr_scheduler", "batch_size", "gradient_accumulation", "lora_plus_lr_ratio"}
    assert names <= TrainingConfig().identity().keys()
    assert {"batch_size", "generations", "max_new_tokens"} <= GrpoTraining().identity().keys()
