"""The tiny world (seconds), and the embedded SmolLM2, converted once into the user's cache."""

import os
from pathlib import Path

import pytest

from agent_pipeline.training.base_model import EMBEDDED, BaseModel, resolve_base_model
from agent_pipeline.training.templates import load_tokenizer
from agent_pipeline_tests.training.world import make_base

CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "agent-pipeline"


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory) -> BaseModel:
    return make_base(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_tokenizer(tiny_base):
    return load_tokenizer(tiny_base.path)[0]


@pytest.fixture(scope="session")
def smollm2() -> BaseModel:
    return resolve_base_model(EMBEDDED, CACHE)


@pytest.fixture(scope="session")
def smollm2_tokenizer(smollm2):
    return load_tokenizer(smollm2.path)[0]
