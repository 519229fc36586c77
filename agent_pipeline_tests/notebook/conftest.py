"""The tiny world of the training tests."""

from agent_pipeline_tests.evaluation.conftest import adapter_dir  # noqa: F401
from agent_pipeline_tests.training.conftest import tiny_base, tiny_tokenizer  # noqa: F401
