"""Model directories through Dagster: the pointer moves, the directory stays."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import pytest

from agent_pipeline.defs.io_managers.artifacts import ArtifactIOManager
from agent_pipeline.errors import DataError
from agent_pipeline.keys import parse_key
from agent_pipeline.storage.lake import Artifact, Lake
from agent_pipeline_tests.lakes import artifact

AGENTS = dg.StaticPartitionsDefinition(["tau/airline"])


def made(lake: Lake, identity: str) -> Artifact:
    return artifact(
        lake,
        "model",
        parse_key("tau/airline"),
        {},
        {"weights": identity},
        identity=identity,
        latest=False,
    )


def test_the_last_artifact_that_was_stored_is_the_one_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    lake = Lake(str(tmp_path / "lake"))
    resources = {"io_manager": ArtifactIOManager()}
    identities, seen = ["a" * 20, "b" * 20, "a" * 20], []

    @dg.asset(partitions_def=AGENTS)
    def model() -> Artifact:
        identity = identities[len(seen)]
        return lake.find("model", parse_key("tau/airline"), identity) or made(lake, identity)

    @dg.asset(partitions_def=AGENTS)
    def report(model: Artifact) -> None:
        seen.append((model.path / "weights").read_text(encoding="utf-8"))

    for identity in identities:
        result = dg.materialize(
            [model, report], resources=resources, partition_key="tau/airline", selection=[model]
        )
        dg.materialize(
            [model, report], resources=resources, partition_key="tau/airline", selection=[report]
        )
        metadata = result.asset_materializations_for_node("model")[0].metadata
        assert (metadata["identity"].value, metadata["size_bytes"].value) == (identity, 20)
    assert seen == identities


def test_a_run_waits_for_another_of_its_partition_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    lake, ran = Lake(str(tmp_path / "lake")), []

    @dg.asset(partitions_def=AGENTS)
    def model() -> Artifact:
        with pytest.raises(DataError), lake.run_of(parse_key("tau/airline")):
            pass
        ran.append(True)
        return made(lake, "a" * 20)

    # A run in a thread shares its output with the test: Dagster's capture of it may not end.
    no_logs = {
        "compute_logs": {
            "module": "dagster._core.storage.noop_compute_log_manager",
            "class": "NoOpComputeLogManager",
        }
    }
    with dg.instance_for_test(overrides=no_logs) as instance, ThreadPoolExecutor(1) as thread:

        def run() -> dg.ExecuteInProcessResult:
            return dg.materialize(
                [model],
                resources={"io_manager": ArtifactIOManager()},
                partition_key="tau/airline",
                instance=instance,
            )

        with lake.run_of(parse_key("tau/airline")):
            waiting = thread.submit(run)
            while not any(
                "waiting for another run" in (entry.user_message or "")
                for entry in logged(instance)
            ):
                assert not waiting.done()
                time.sleep(0.05)
            assert not ran
        assert waiting.result(timeout=300).success and ran
    with lake.run_of(parse_key("tau/airline")):
        pass


def logged(instance: dg.DagsterInstance) -> list[dg.EventLogEntry]:
    return [entry for run in instance.get_runs() for entry in instance.all_logs(run.run_id)]
