"""Candidates and champions in an MLflow: a database of its own in a folder of the test's."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.promotion import mlflow_runs
from agent_pipeline.promotion.ledger import EXPORT
from agent_pipeline.promotion.mlflow_runs import URI, RunContent, write_run
from agent_pipeline.redaction import RedactionOptions, Redactor
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.defs.conftest import Bench, bench
from agent_pipeline_tests.defs.test_champions import decide, run_job
from agent_pipeline_tests.export.test_deciding import CALLS, FAIR, GOOD, KEY, OWN_WORLD, Night

__all__ = ["bench"]

MODEL = "shop~support"


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return pytest.importorskip("mlflow", reason="mlflow-skinny is not installed: the extra mlflow")


@pytest.fixture
def client(mlflow: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """MLflow's own client of a new database."""
    monkeypatch.setenv(URI, f"sqlite:///{tmp_path}/mlflow.db")
    return mlflow.MlflowClient()


def champion_of(client: Any) -> str:
    """The export that MLflow calls the champion, by the run of the version that has the alias."""
    run = client.get_run(client.get_model_version_by_alias(MODEL, "champion").run_id)
    return run.data.tags[EXPORT]


def test_a_run_holds_figures_settings_and_lineage_and_the_alias_follows_the_champion(
    bench: Bench, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Night(bench.lake, FAIR)
    assert first.export.identity[:16] in decide(bench, monkeypatch, first)["mlflow"]
    assert client.search_registered_models() == []
    run_job(bench, "promote", "promote_export", why="a private reason")
    night = Night(bench.lake, GOOD, first.export)
    decide(bench, monkeypatch, night)
    assert champion_of(client) == first.export.identity
    run_job(bench, "promote", "promote_export")
    assert champion_of(client) == night.export.identity
    assert CliRunner().invoke(app, ["rollback", str(KEY)]).exit_code == 0
    assert champion_of(client) == first.export.identity
    assert (
        decide(bench, monkeypatch, Night(bench.lake, CALLS, first.export), approve="auto")[
            "decision"
        ]
        == "reject"
    )
    assert champion_of(client) == first.export.identity

    runs = client.search_runs([client.get_experiment_by_name(str(KEY)).experiment_id])
    assert len(runs) == 3, "an export has one run, however often it is decided on and promoted"
    (run,) = (each for each in runs if each.data.tags[EXPORT] == night.export.identity)
    assert run.info.status == "FINISHED"
    assert (
        run.data.metrics["evaluation/candidate/exact_call_accuracy"] == 1
        and round(run.data.metrics["decision/gain/difference"], 6) == 0.25
    )
    assert (
        run.data.tags["sft_adapter"] == night.adapter.identity
        and run.data.tags["compared_with"] == first.export.identity
    )
    assert run.data.tags["decision"] == "promote" and run.data.params["sft_adapter.lora_r"] == "8"
    written = Path(client.tracking_uri.removeprefix("sqlite:///")).read_bytes()
    for private in (b"user: Where?", b"answer 59", b"s59", b"a private reason"):
        assert private not in written


class RecordingClient:
    """A client that keeps the settings and tags that it is given, and knows no run."""

    params: ClassVar[dict[str, str]] = {}

    def get_experiment_by_name(self, name: str) -> None:
        return None

    def create_experiment(self, name: str) -> str:
        return "1"

    def search_runs(self, experiments: list[str], query: str, max_results: int) -> list[Any]:
        return []

    def create_run(self, experiment: str, run_name: str, tags: dict[str, str]) -> SimpleNamespace:
        return SimpleNamespace(info=SimpleNamespace(run_id="1", run_name=run_name))

    def log_batch(
        self, run_id: str, metrics: list[Any], params: list[Any], tags: list[Any]
    ) -> None:
        self.params.update(params)

    def set_terminated(self, run_id: str) -> None:
        pass


def test_redaction_settings(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are redacted with the options of the settings, not with the defaults."""
    monkeypatch.setenv(URI, "sqlite:///nowhere.db")
    monkeypatch.setenv("AGENT_PIPELINE_REDACTION__ALLOW", '["ann@example.org"]')
    modules = {
        "mlflow": SimpleNamespace(MlflowClient=RecordingClient),
        "mlflow.entities": SimpleNamespace(
            Metric=lambda *fields: fields,
            Param=lambda *fields: fields,
            RunTag=lambda *fields: fields,
        ),
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    collect = mlflow_runs.collect_run_content

    def collect_with_contacts(*values: Any) -> RunContent:
        content = collect(*values)
        contacts = {"contacts": "ann@example.org, bob@example.org"}
        return replace(content, settings=content.settings | contacts)

    monkeypatch.setattr(mlflow_runs, "collect_run_content", collect_with_contacts)
    assert "MLflow has" in decide(bench, monkeypatch, Night(bench.lake, GOOD))["mlflow"]
    assert RecordingClient.params["contacts"] == "ann@example.org, <EMAIL_1>"


@pytest.mark.parametrize("uri", ["http://user:secret@127.0.0.1:9/", "nonsense://user:secret@host"])
def test_a_promotion_holds_where_mlflow_does_not_take_it_and_says_so_in_a_sentence(
    mlflow: Any, bench: Bench, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setenv(URI, uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    night = Night(bench.lake, GOOD)
    said = decide(bench, monkeypatch, night, approve="auto")
    assert said["champion"] == night.export.identity == bench.lake.pointers(EXPORT, KEY).champion
    assert "was not written to" in said["mlflow"] and "secret" not in said["mlflow"]


def test_without_mlflow_set_nothing_is_written_and_without_it_installed_the_sentence_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = Lake(str(tmp_path / "lake"))
    night = Night(lake, GOOD)
    redactor = Redactor(RedactionOptions())
    assert write_run(lake, KEY, redactor, OWN_WORLD, night.export) is None
    monkeypatch.setenv(URI, "sqlite:///nowhere.db")
    monkeypatch.setitem(sys.modules, "mlflow", None)
    written = write_run(lake, KEY, redactor, OWN_WORLD, night.export)
    assert written is not None and not written.ok and "install mlflow-skinny" in written.text
