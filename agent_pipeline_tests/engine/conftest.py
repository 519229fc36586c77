"""What the tests of the engine share."""

import pytest

from agent_pipeline.models.device import EXACT


@pytest.fixture
def in_float32(monkeypatch):
    """Answer in float32: in bfloat16 two equally good tokens may be chosen either way."""
    monkeypatch.setattr("agent_pipeline.evaluation.turns.fast_device", lambda: EXACT)
