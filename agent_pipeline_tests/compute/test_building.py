"""Artifacts are reused while everything that decides them is the same, the version of their code included."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from filelock import FileLock

from agent_pipeline.compute import tasks
from agent_pipeline.compute.artifact_cache import Recipe, build
from agent_pipeline.compute.params import ArtifactReference, EvaluateParams, TaskParams
from agent_pipeline.compute.registry import Task
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.models import device
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.storage.artifacts import MANIFEST
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.lakes import artifact, put_rows
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import row

KEY = PartitionKey("tau", "airline")
TASK = Task("merge", 1, ("pyarrow",), TaskParams, lambda params, progress: {})
MADE_FROM = {"rows": 3}


class Maker:
    """Counts how often it is asked to make the artifact; `report` is what came of it."""

    def __init__(self, **report: Any) -> None:
        self.calls, self.report = 0, report

    def __call__(self, folder: Path) -> dict[str, Any]:
        self.calls += 1
        begun = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        assert begun["made_from"].items() >= MADE_FROM.items(), (
            "whoever forgets a session must know what a half-made artifact holds"
        )
        (folder / "weights").write_text(str(self.calls), encoding="utf-8")
        return self.report


@pytest.fixture
def params(tmp_path: Path) -> TaskParams:
    return TaskParams(**task_values(tmp_path / "lake", KEY, tmp_path / "cache"))


def test_the_same_is_reused_and_a_fresh_run_makes_it_anew(params):
    make = Maker()
    results = [
        build(TASK, msgspec.structs.replace(params, **extra), Recipe("model", MADE_FROM, make))
        for extra in ({}, {}, {"fresh": "a run"}, {})
    ]
    assert [result["reused"] for result in results] == [
        False,
        True,
        False,
        True,
    ] and make.calls == 2
    artifact = params.open_lake().find("model", KEY, results[0]["identity"])
    assert artifact is not None and (artifact.path / "weights").read_text(encoding="utf-8") == "2"
    assert {result["identity"] for result in results} == {artifact.identity}


def test_rotten_artifact_is_made_again(params):
    """Only sizes were compared, so that a file of zero bytes was reused."""
    make = Maker()
    result = build(TASK, params, Recipe("model", MADE_FROM, make))
    artifact = params.open_lake().find("model", KEY, result["identity"])
    assert artifact is not None
    (artifact.path / "weights").write_bytes(b"\0")
    assert [build(TASK, params, Recipe("model", MADE_FROM, make))["reused"] for _ in range(2)] == [
        False,
        True,
    ] and make.calls == 2
    assert (artifact.path / "weights").read_text(encoding="utf-8") == "2"


def test_what_a_kill_left_of_a_replaced_artifact_is_in_nobodys_way(params):
    make = Maker()
    result = build(TASK, params, Recipe("model", MADE_FROM, make))
    artifact = params.open_lake().find("model", KEY, result["identity"])
    shutil.copytree(
        artifact.path, artifact.path.with_name(f".building-{artifact.path.name}-replaced")
    )
    build(TASK, msgspec.structs.replace(params, fresh="a run"), Recipe("model", MADE_FROM, make))
    assert make.calls == 2


def test_a_fresh_run_that_is_tried_again_makes_nothing_twice(params):
    lake, make = params.open_lake(), Maker()
    identity = build(TASK, params, Recipe("model", MADE_FROM, make))["identity"]
    (lake.building("model", KEY, identity) / "of an older run").touch()

    def killed(folder: Path) -> dict[str, Any]:
        assert not (folder / "of an older run").exists()
        (folder / "checkpoint").touch()
        raise KeyboardInterrupt

    def goes_on(folder: Path) -> dict[str, Any]:
        assert (folder / "checkpoint").exists()
        return make(folder)

    asked = msgspec.structs.replace(params, fresh="a run")
    with pytest.raises(KeyboardInterrupt):
        build(TASK, asked, Recipe("model", MADE_FROM, killed))
    assert [
        build(TASK, asked, Recipe("model", MADE_FROM, goes_on))["reused"] for _ in range(2)
    ] == [
        False,
        True,
    ] and make.calls == 2


def test_a_raised_version_makes_it_again_and_so_does_another_library(params, monkeypatch):
    make = Maker()
    identities = {
        build(task, params, Recipe("model", MADE_FROM, make))["identity"]
        for task in (TASK, dataclasses.replace(TASK, version=2))
    }
    monkeypatch.setattr("agent_pipeline.compute.registry.version", lambda package: "999")
    identities.add(build(TASK, params, Recipe("model", MADE_FROM, make))["identity"])
    assert len(identities) == make.calls == 3


def test_what_failed_its_check_is_made_again_and_not_reused(params):
    failing, passing = Maker(ok=False), Maker(ok=True)
    for make in (failing, failing, passing, passing):
        result = build(TASK, params, Recipe("model", MADE_FROM, make))
    assert (failing.calls, passing.calls) == (2, 1) and result["reused"]


def test_beside_another_builder_it_is_refused_and_the_others_manifest_stays(params):
    lake = params.open_lake()
    identity = build(TASK, params, Recipe("other", MADE_FROM, Maker()))["identity"]
    building = lake.building("model", KEY, identity)
    with FileLock(building.with_name(f"{building.name}.lock")), pytest.raises(DataError):
        build(TASK, params, Recipe("model", MADE_FROM, Maker()))
    assert not (building / MANIFEST).exists()


def test_what_another_process_finished_meanwhile_is_reused(params, monkeypatch):
    make, find, seen = Maker(), Lake.find, []

    def find_late(lake: Lake, *asked: Any) -> Any:
        seen.append(asked)
        return None if len(seen) == 1 else find(lake, *asked)

    build(TASK, params, Recipe("model", MADE_FROM, make))
    monkeypatch.setattr(Lake, "find", find_late)
    assert build(TASK, params, Recipe("model", MADE_FROM, make))["reused"] and make.calls == 1


@pytest.mark.parametrize("bfloat16", [0.1, 4.2])
def test_evaluation_of_a_busy_cpu(
    params: TaskParams, monkeypatch: pytest.MonkeyPatch, bfloat16: float
) -> None:
    """The library that happens to multiply faster is not in the identity of an evaluation."""
    monkeypatch.setattr(tasks, "build", lambda task, params, recipe: recipe.made_from)
    base = BaseModel("b", Path("absent"), "")
    monkeypatch.setattr(EvaluateParams, "base_of", lambda self, adapter: base)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    lake = params.open_lake()
    put_rows(lake, KEY, [row(0, "select")])
    adapter = artifact(lake, "sft_adapter", KEY, {"base_model": "b", "base_revision": ""})
    reference = ArtifactReference(adapter.asset, adapter.identity)
    evaluate_params = params.for_task(EvaluateParams, adapter=reference, config={"split": "select"})
    made_from = []
    for onednn in (1.1, 2.2):
        speeds = {"MKL": 1.0, "oneDNN": onednn, "bfloat16": bfloat16}
        monkeypatch.setattr(device, "measure_product_speeds", lambda speeds=speeds: speeds)
        made_from.append(tasks.evaluate.run(evaluate_params))
    assert made_from[0] == made_from[1]
    assert made_from[0]["device"] == ("cpu bfloat16" if bfloat16 > 1 else "cpu float32")
