"""What is served is the champion; nothing else replaces it."""

from pathlib import Path

import pytest

from agent_pipeline.errors import DataError
from agent_pipeline.export.serving import champions, promote, rollback, served
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.storage.lake import Artifact, Lake

KEY = PartitionKey("shop", "support")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"))


def export(lake: Lake, name: str, passed: bool = True) -> Artifact:
    """An export of the adapter `name` that became the latest, if it passed its check."""
    made_from = {"adapter": sha256_of(name)}
    artifact = lake.finish("gguf_export", KEY, sha256_of(made_from), lake.building("gguf_export", KEY, sha256_of(made_from)), made_from, {}, passed=passed)  # fmt: skip  # noqa: E501
    if passed:
        lake.set_latest(artifact)
    return artifact


def serve(lake: Lake, latest: Artifact) -> Artifact:
    """What ollama_model does with the export that is to be served."""
    choice = served(lake, KEY, latest).export
    made_from = {"gguf_export": choice.identity}
    identity = sha256_of(made_from)
    lake.set_latest(lake.finish("ollama_model", KEY, identity, lake.building("ollama_model", KEY, identity), made_from, {}))
    return choice


def test_a_newer_export_replaces_what_is_served_only_when_it_is_promoted(lake):
    first = export(lake, "first")
    assert serve(lake, first) == first
    second = export(lake, "second")
    assert serve(lake, second) == first
    promote(lake, KEY)
    assert serve(lake, second) == second
    assert serve(lake, export(lake, "third")) == second


def test_an_export_is_promoted_by_its_identity_or_its_adapters(lake):
    first, second = export(lake, "first"), export(lake, "second")
    assert promote(lake, KEY, first.identity[:8]).champion == first.identity
    assert promote(lake, KEY, second.manifest["made_from"]["adapter"][:12], why="asked").champion == second.identity


@pytest.mark.parametrize("identity", ["ffff0000", ""])
def test_what_is_not_there_cannot_be_promoted(lake, identity):
    with pytest.raises(DataError):
        promote(lake, KEY, identity)


def test_what_failed_its_check_cannot_be_promoted_nor_what_two_have_in_common(lake):
    failed = export(lake, "failed", passed=False)
    export(lake, "first"), export(lake, "second")
    for identity in (failed.identity, failed.manifest["made_from"]["adapter"]):
        with pytest.raises(DataError):
            promote(lake, KEY, identity)


def test_a_rollback_returns_to_the_champion_before_or_to_the_one_of_an_entry(lake):
    names = [export(lake, name).identity for name in ("a", "b", "c")]
    entries = [promote(lake, KEY, identity) for identity in names]
    assert rollback(lake, KEY).champion == names[1]
    assert rollback(lake, KEY, to=entries[0].generation, why="worse").champion == names[0]
    last = lake.history("gguf_export", KEY)[-1]
    assert (last.why, last.against) == ("worse", names[1])
    assert [(key, entry.champion) for key, entry in champions(lake)] == [(KEY, names[0])]


@pytest.mark.parametrize("to", [None, 99])
def test_without_an_earlier_champion_there_is_nothing_to_roll_back_to(lake, to):
    export(lake, "only")
    promote(lake, KEY)
    with pytest.raises(DataError):
        rollback(lake, KEY, to)
