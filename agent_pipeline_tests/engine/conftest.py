"""What the tests of evaluation share."""

import pytest

from agent_pipeline.models.device import EXACT


@pytest.fixture
def in_float32(monkeypatch):
    """Two ways to compute the same answer agree to the token: in bfloat16, which a CPU may be faster in, a near-tie may fall either way."""
    monkeypatch.setattr("agent_pipeline.evaluation.turns.fast_device", lambda: EXACT)
