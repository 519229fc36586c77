"""A workspace of a test's own: a copy of the sample store, an empty lake, an ephemeral instance."""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from agent_pipeline.compute.params import on_this_machine
from agent_pipeline.compute.tasks import TASKS
from agent_pipeline.definitions import build_defs
from agent_pipeline.defs import worker_client
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.defs.run_config import config_by_asset
from agent_pipeline.progress import silent
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.conftest import SAMPLE

DATA_ASSETS = (
    "sessions",
    "judged_sessions",
    "curated_sessions",
    "sft_dataset",
    "heldout_dataset",
    "preference_dataset",
    "kto_dataset",
    "sharegpt_dataset",
    "sft_coreset",
)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried again is tried at once."""
    monkeypatch.setattr("agent_pipeline.defs.failures.RETRY_SECONDS", 0)


@dataclass
class Bench:
    """What a test of the graph needs at hand."""

    store: Path
    lake: Lake
    instance: dg.DagsterInstance
    defs: dg.Definitions

    def run(
        self, partition: str, *assets: str, config: dict | None = None, tags: dict | None = None
    ) -> dg.ExecuteInProcessResult:
        """Materialize assets of a partition; a failure is a result, not an exception.

        Assets that one pass writes with a named asset are materialized too.
        """
        selection = dg.AssetSelection.assets(*assets).required_multi_asset_neighbors()
        self.instance.add_dynamic_partitions(AGENTS.name or "", [partition])
        return self.defs.resolve_job_def("retrain").execute_in_process(
            instance=self.instance,
            partition_key=partition,
            asset_selection=sorted(selection.resolve(self.defs.resolve_asset_graph())),
            run_config={"ops": config_by_asset(config or {})},
            tags=tags,
            raise_on_error=False,
        )

    def sentence(self, result: dg.ExecuteInProcessResult) -> str:
        """What the first failed step says to the user."""
        data = result.filter_events(lambda event: event.is_step_failure)[0].step_failure_data
        assert data.user_failure_data is not None, (
            f"a stack trace instead of a sentence: {data.error_display_string}"
        )
        return data.user_failure_data.description or ""


def worker_here(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Have tasks run in this process instead of the worker's; the list gets the parameters of each."""
    given: list[dict[str, Any]] = []

    def launch(context: Any, launcher: Any, task: str, params: dict[str, Any]) -> dict[str, Any]:
        given.append(on_this_machine(params))
        return TASKS[task].run(given[-1], silent)

    monkeypatch.setattr(worker_client, "launch", launch)
    return given


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    store = tmp_path / "store"
    shutil.copytree(SAMPLE, store)
    monkeypatch.setenv("AGENT_PIPELINE_STORE", str(store))
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    with dg.DagsterInstance.ephemeral() as instance:
        yield Bench(store, Lake(str(tmp_path / "lake")), instance, build_defs())


def metadata(result: dg.ExecuteInProcessResult, asset: str) -> dict[str, Any]:
    """What a run says of an asset that it materialized."""
    (event,) = [
        each
        for each in result.get_asset_materialization_events()
        if each.asset_key == dg.AssetKey(asset)
    ]
    return {name: value.value for name, value in event.materialization.metadata.items()}


def checks(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    """A run's checks by their names."""
    return {each.check_name: each for each in result.get_asset_check_evaluations()}


def cells(value: dg.TableMetadataValue) -> list[list[str]]:
    """The rows of a table in an asset's metadata."""
    return [[str(cell) for cell in record.data.values()] for record in value.records]
