"""The tiny world of the training tests, with an adapter trained on it."""

import pytest

from agent_pipeline.training.adapter import train_adapter
from agent_pipeline_tests.training.conftest import tiny_base, tiny_tokenizer  # noqa: F401
from agent_pipeline_tests.training.world import TRAINING, row


@pytest.fixture(scope="session")
def adapter_dir(tiny_base, tmp_path_factory):  # noqa: F811
    out = tmp_path_factory.mktemp("adapter")
    train_adapter([row(number) for number in range(24)], tiny_base, TRAINING.changed(epochs=8), out)
    return out
