"""Model directories through Dagster: the pointer moves, the directory stays."""

from pathlib import Path

import dagster as dg
import pytest

from agent_pipeline.defs.io_managers.artifacts import ArtifactIOManager
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Artifact, Lake

AGENTS = dg.StaticPartitionsDefinition(["tau/airline"])


def made(lake: Lake, identity: str) -> Artifact:
    building = lake.building("model", parse_key("tau/airline"), identity)
    (building / "weights").write_text(identity, encoding="utf-8")
    return lake.finish("model", parse_key("tau/airline"), identity, building, {}, {})


def test_the_last_artifact_that_was_stored_is_the_one_that_is_loaded(tmp_path: Path):
    lake = Lake(str(tmp_path / "lake"))
    resources = {"io_manager": ArtifactIOManager(lake=str(tmp_path / "lake"))}
    identities, seen = ["a" * 20, "b" * 20, "a" * 20], []

    @dg.asset(partitions_def=AGENTS)
    def model() -> Artifact:
        identity = identities[len(seen)]
        return lake.find("model", parse_key("tau/airline"), identity) or made(lake, identity)

    @dg.asset(partitions_def=AGENTS)
    def report(model: Artifact) -> None:
        seen.append((model.path / "weights").read_text(encoding="utf-8"))

    for identity in identities:
        result = dg.materialize([model, report], resources=resources, partition_key="tau/airline", selection=[model])
        dg.materialize([model, report], resources=resources, partition_key="tau/airline", selection=[report])
        metadata = result.asset_materializations_for_node("model")[0].metadata
        assert (metadata["identity"].value, metadata["size_bytes"].value) == (identity, 20)
    assert seen == identities


def test_an_artifact_that_was_never_made_is_one_sentence(tmp_path: Path):
    @dg.asset(partitions_def=AGENTS)
    def model() -> Artifact: ...

    @dg.asset(partitions_def=AGENTS)
    def report(model: Artifact) -> None: ...

    with pytest.raises((dg.DagsterError, dg.Failure)) as error:
        resources = {"io_manager": ArtifactIOManager(lake=str(tmp_path / "lake"))}
        dg.materialize([model, report], resources=resources, partition_key="tau/airline", selection=[report])
    chain, cause = "", error.value
    while cause is not None:
        chain, cause = chain + str(getattr(cause, "description", cause)), cause.__cause__
    assert "There is no model of tau/airline" in chain and "materialize model first" in chain
