"""Damaged files: whatever is flipped, cut off, filled with zeros, exchanged or removed, nothing else is used without a sentence."""

import pytest

from agent_pipeline_tests.rot import CHANGES, Damager

KINDS = [
    "model",
    "export",
    "evaluation and episodes",
    "manifest",
    "pointer",
    "decision",
    "completed move",
    "served file",
    "shared base",
    "table",
    "version of the lake",
]


@pytest.fixture(scope="module")
def damager(tmp_path_factory: pytest.TempPathFactory) -> Damager:
    return Damager(tmp_path_factory.mktemp("rot"))


def test_kinds(damager: Damager) -> None:
    assert list(damager.kinds) == KINDS and all(damager.kinds.values())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("change", [*CHANGES, "exchanged", "removed"])
def test_damaged_file(damager: Damager, kind: str, change: str) -> None:
    """`python -m benchmarks.flips` does the same with 300 flips of each kind."""
    outcome = damager.damage(kind, change, 4)
    assert outcome.silent == [] and outcome.stacks == []
    assert outcome.tries == outcome.noticed + outcome.harmless
    if kind in ("model", "export", "served file"):
        assert outcome.harmless == 0
