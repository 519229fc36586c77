"""The asset `champion` and the jobs of people, in the graph; the commands that show what came of them."""

import json
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.defs import worker_client
from agent_pipeline.defs.automation.notifications import of_run
from agent_pipeline.defs.partitions import AGENTS
from agent_pipeline.errors import PipelineError
from agent_pipeline.governance.forgetting import forget
from agent_pipeline.governance.scanning import scan
from agent_pipeline.promotion.ledger import (
    EXPORT,
    is_held_back,
    open_ledger,
)
from agent_pipeline_tests.defs.conftest import metadata
from agent_pipeline_tests.export.test_deciding import CALLS, FAIR, GOOD, KEY, Night, put_tasks
from agent_pipeline_tests.export.test_probation import Probation


def decide(
    bench: Any, monkeypatch: pytest.MonkeyPatch, night: Night, **config: Any
) -> dict[str, Any]:
    """The metadata of the asset on a night of which the models were scored, in the agent's world."""
    monkeypatch.setenv("AGENT_PIPELINE_AGENTS", json.dumps({str(KEY): {"world": "w:W"}}))
    monkeypatch.setattr(
        worker_client,
        "launch",
        lambda context, pipes, task, params: {"compare": night.result}[task],
    )
    result = bench.run(str(KEY), "champion", config={"champion": config} if config else None)
    assert result.success
    return metadata(result, "champion")


def run_job(bench: Any, name: str, op: str, **config: Any) -> None:
    bench.instance.add_dynamic_partitions(AGENTS.name or "", [str(KEY)])
    job: dg.JobDefinition = bench.defs.resolve_job_def(name)
    assert job.execute_in_process(
        instance=bench.instance,
        partition_key=str(KEY),
        run_config={"ops": {op: {"config": config}}},
        raise_on_error=False,
    ).success


def test_a_person_promotes_what_the_night_decided_and_rolls_it_back_in_the_ui(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Night(bench.lake, FAIR)
    assert decide(bench, monkeypatch, first)["decision"] == "hold"
    run_job(bench, "promote", "promote_export", why="a beginning")
    run_job(bench, "hold", "hold_export", identity=first.export.identity[:16], why="tone")
    assert is_held_back(bench.lake, KEY, first.export.identity)
    night = Night(bench.lake, GOOD, first.export)
    metadata = decide(bench, monkeypatch, night)
    assert (
        metadata["decision"],
        metadata["wins_and_waits_for_a_person"],
        metadata["champion"],
    ) == ("promote", True, first.export.identity)
    assert [
        metadata[name].records[0].data["champion"] for name in ("figures", "figures_on_test")
    ] == ["75.0 %"] * 2
    assert round(metadata["gain"], 6) == 0.25
    assert "the new model is better" in metadata[
        "why"
    ] and f"champion {first.export.identity}" in Path(metadata["page"]).read_text(encoding="utf-8")
    assert "no turns of other agents" in Path(metadata["page"]).read_text(encoding="utf-8")
    run_job(bench, "hold", "hold_export", why="tone")
    put_tasks(bench.lake, newer=25)  # the decision is made again, and confirmed on newer tasks
    metadata = decide(bench, monkeypatch, night)
    assert (metadata["decision"], metadata["wins_and_waits_for_a_person"]) == ("promote", False)
    assert metadata["held_by_a_person"] and metadata["why"].splitlines()[0].endswith("tone")
    assert open_ledger(bench.lake, KEY).records()[-1].decision.outcome == "promote"
    run_job(bench, "promote", "promote_export")
    assert bench.lake.pointers(EXPORT, KEY).champion == night.export.identity
    run_job(bench, "rollback", "roll_back", why="a complaint")
    assert bench.lake.pointers(EXPORT, KEY).champion == first.export.identity


def test_a_winner_is_promoted_by_the_run_with_approve_auto_and_is_then_not_decided_on_again(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(bench.lake, GOOD)
    assert decide(bench, monkeypatch, night, approve="auto")["champion"] == night.export.identity
    assert "decision" not in decide(bench, monkeypatch, night)


def test_a_champion_on_probation_is_rolled_back_by_the_run_that_newer_tasks_came_with(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Probation(bench.lake, monkeypatch, (CALLS, GOOD))
    decide(bench, monkeypatch, looks.night, approve="auto")
    assert bench.lake.pointers(EXPORT, KEY).champion == looks.night.export.identity
    results = lambda params: looks.compare(params) if params.get("watch") else looks.night.result  # noqa: E731
    monkeypatch.setattr(
        worker_client, "launch", lambda context, pipes, task, params: results(params)
    )
    run = bench.run(str(KEY), "champion", config={"champion": {"approve": "auto"}})
    (made,) = run.asset_materializations_for_node("champion")
    assert run.success and made.metadata["champion"].value == looks.before.export.identity
    assert "roll back" in made.metadata["probation"].value
    assert {notice.cause for notice in of_run(bench.instance, run.dagster_run)} == {
        "check failed",
        "champion rolled back",
    }
    assert bench.lake.pointers(EXPORT, KEY).champion == looks.before.export.identity


def test_a_rejected_candidate_warns_and_the_run_goes_on(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(bench.lake, CALLS)
    assert decide(bench, monkeypatch, night, approve="auto")["decision"] == "reject"
    assert bench.lake.pointers(EXPORT, KEY).champion is None


def test_the_commands_show_decisions_and_hold_a_candidate_back(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night(bench.lake, GOOD)
    decide(bench, monkeypatch, night)
    shown = CliRunner()
    monkeypatch.setattr("agent_pipeline.cli.models.console", Console(width=240))
    assert "waits for you" in shown.invoke(app, ["models", "list"]).output
    told: list[Any] = []
    monkeypatch.setattr(
        "agent_pipeline.governance.champion_moves.send_notifications",
        lambda urls, notices, redaction: told.extend(notices),
    )
    for _ in range(2):
        assert shown.invoke(app, ["promote", str(KEY), "--why", "as in [/ticket] 7"]).exit_code == 0
    assert len(told) == 1, "what is the champion already did not move"
    assert "as in [/ticket] 7" in shown.invoke(app, ["models", "show", str(KEY)]).output
    assert shown.invoke(app, ["hold", str(KEY), "--why", "[a] bad feeling"]).exit_code == 0
    assert is_held_back(bench.lake, KEY, night.export.identity)
    refused = shown.invoke(app, ["models", "show", "shop/typo"])
    assert (
        refused.exit_code == 1
        and "shop/typo" in str(refused.exception)
        and str(KEY) in str(refused.exception)
    )
    history = shown.invoke(app, ["models", "show", str(KEY)])
    assert (
        history.exit_code == 0
        and "[a] bad feeling" in history.output
        and "promote" in history.output
    )


def test_the_command_report_names_the_decisions_page_and_before_one_the_evaluations(
    bench: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    night = Night(bench.lake, GOOD)
    refused = CliRunner().invoke(app, ["report", str(KEY)])
    assert "evaluation of shop/support has no page" in str(refused.exception)
    metadata = decide(bench, monkeypatch, night)
    assert (
        CliRunner().invoke(app, ["report", str(KEY), "--path"]).output.strip() == metadata["page"]
    )
    CliRunner().invoke(app, ["report", str(KEY), "--out", str(tmp_path / "page.html")])
    assert (tmp_path / "page.html").read_bytes() == Path(metadata["page"]).read_bytes()
    nowhere = CliRunner().invoke(
        app, ["report", str(KEY), "--out", str(tmp_path / "nowhere" / "page.html")]
    )
    assert isinstance(nowhere.exception, PipelineError)
    assert scan(bench.lake, ["session s59"])
    forget(bench.lake, "s59")
    assert not scan(bench.lake, ["session s59"]) and not Path(metadata["page"]).exists()
    assert "champion of shop/support has no page" in str(
        CliRunner().invoke(app, ["report", str(KEY)]).exception
    )
