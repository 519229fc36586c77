"""The embedded SmolLM2."""

import pytest

from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline_tests.tiny import embedded_base


@pytest.fixture(scope="session")
def smollm2() -> BaseModel:
    return embedded_base()


@pytest.fixture(scope="session")
def smollm2_renderer(smollm2):
    return load_renderer(smollm2.path)
