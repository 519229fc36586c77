"""The commands of settings: `check`, and `materialize --set … --save`."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli import running
from agent_pipeline.cli.app import app
from agent_pipeline.config.settings import load_settings
from agent_pipeline.errors import DataError
from agent_pipeline_tests.conftest import SAMPLE
from agent_pipeline_tests.judging.endpoint import endpoint


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a pipeline.toml that names the sample store."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    (tmp_path / "pipeline.toml").write_text(
        f'store = "{SAMPLE}"  # mine\nlake = "lake"\n', encoding="utf-8"
    )
    return tmp_path


def add(project: Path, text: str) -> None:
    with (project / "pipeline.toml").open("a", encoding="utf-8") as file:
        file.write(text)


def test_check_shows_what_is_set_and_where(project: Path) -> None:
    add(
        project,
        '[assets.sft_adapter]\nlora_r = 6\n[agents."shop/support".assets.sft_adapter]\nlora_r = 8\n',
    )
    done = CliRunner().invoke(app, ["config", "check"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert (
        "[assets.sft_adapter]" in done.output
        and '[agents."shop/support".assets.sft_adapter]' in done.output
    )


def test_settings_are_listed_with_the_place_where_they_are_set(project: Path) -> None:
    add(project, '[agents."shop/support".assets.sft_adapter]\nlora_r = 8\n')
    done = CliRunner().invoke(app, ["config", "show", "--json"], catch_exceptions=False)
    rows = {(row["agent"], row["setting"]): row for row in json.loads(done.stdout)["settings"]}
    row = rows["shop/support", "sft_adapter.lora_r"]
    assert row["value"] == 8 and "assets.sft_adapter" in row["set_by"]
    every = CliRunner().invoke(app, ["config", "show", "--all"], catch_exceptions=False).stdout
    assert "all agents: sft_adapter.lora_alpha = " in every and "set by default" in every


def test_check_fails_with_a_sentence_for_each_error(project: Path) -> None:
    add(
        project,
        '[agents."shop/suport"]\ntask_field = "x"\n[assets.judged_sessions]\nmeasures = ["ended_with_anser"]\n',
    )
    done = CliRunner().invoke(app, ["config", "check"], catch_exceptions=False)
    assert done.exit_code == 1
    wrong, unknown = (line for line in done.output.splitlines() if line.startswith("error: "))
    assert "ended_with_answer" in wrong and "shop/support" in unknown


def test_numbers_and_nouns_agree(project: Path) -> None:
    """One agent is `1 agent`."""
    (project / "one").mkdir()
    session = '{"session_id": "s", "messages": [{"role": "user", "content": "Hi"}, '
    session += '{"role": "assistant", "content": "Hello"}]}\n'
    (project / "one" / "sessions.jsonl").write_text(session, encoding="utf-8")
    (project / "pipeline.toml").write_text('store = "one"\nlake = "lake"\n', encoding="utf-8")
    found = CliRunner().invoke(app, ["discover", "one"], catch_exceptions=False)
    assert "1 project, 1 agent, 1 session\n" in found.output
    checked = CliRunner().invoke(app, ["config", "check"], catch_exceptions=False)
    assert "no errors. 1 agent in " in checked.output


def test_champions_without_an_export_names_the_partition(project: Path) -> None:
    for arguments, named in (
        (["show", "shop/support"], "agent-pipeline materialize shop/support"),
        (["list"], "agent-pipeline materialize PARTITION"),
    ):
        done = CliRunner().invoke(app, ["models", *arguments])
        assert isinstance(done.exception, DataError) and named in str(done.exception)


def test_version() -> None:
    done = CliRunner().invoke(app, ["--version"], catch_exceptions=False)
    assert (done.exit_code, done.output) == (0, f"agent-pipeline {version('agent-pipeline')}\n")


def test_check_sends_a_test_notification(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each address gets one notification. An address that refuses it is an error of its own."""
    pytest.importorskip("apprise")
    command = ["notify", "test"]
    old = CliRunner().invoke(app, ["check", "--send-test"], catch_exceptions=False)
    assert old.exit_code == 1 and "notify.urls" in old.output
    without = CliRunner().invoke(app, command, catch_exceptions=False)
    assert without.exit_code == 1 and "notify.urls" in without.output
    with endpoint(lambda request, number: (200, {}, "{}")) as server:
        monkeypatch.setenv("ADDRESS", server.url.replace("http://", "json://"))
        add(project, '[notify]\nurls = ["$ADDRESS"]\n')
        done = CliRunner().invoke(app, command, catch_exceptions=False)
        assert done.exit_code == 0 and "sent to address 1" in done.output
        assert [each["title"] for each in server.requests] == ["agent-pipeline: test"]
        CliRunner().invoke(app, ["config", "check"], catch_exceptions=False)
        assert len(server.requests) == 1
        urls = '["json://me:hidden-word@127.0.0.1:9/", "$ADDRESS"]'
        monkeypatch.setenv("AGENT_PIPELINE_NOTIFY__URLS", urls)
        partly = CliRunner().invoke(app, command, catch_exceptions=False)
    assert partly.exit_code == 1 and len(server.requests) == 2
    assert "error: Address 1 of notify.urls did not accept" in partly.output
    assert "sent to address 2" in partly.output and "hidden-word" not in partly.output


def test_a_run_that_succeeded_saves_what_it_set_for_its_agent_and_one_that_did_not_saves_nothing(
    project: Path,
) -> None:
    before = (project / "pipeline.toml").read_text(encoding="utf-8")
    wrong = [
        "materialize",
        "shop/intern",
        "--select",
        "sessions",
        "--set",
        'repair={"orphan": "keep"}',
        "--save",
    ]
    assert CliRunner().invoke(app, wrong).exit_code != 0
    assert (project / "pipeline.toml").read_text(encoding="utf-8") == before
    right = [
        "materialize",
        "shop/intern",
        "--select",
        "sessions",
        "--set",
        'repair={"orphan_output": "repair"}',
        "--save",
    ]
    assert CliRunner().invoke(app, right, catch_exceptions=False).exit_code == 0
    assert load_settings().agents["shop/intern"].assets == {
        "sessions": {"repair": {"orphan_output": "repair"}}
    }
    assert "# mine" in (project / "pipeline.toml").read_text(encoding="utf-8")


def test_a_run_whose_settings_are_not_saved_says_that_nights_do_not_have_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        running, "run", lambda *given, **options: running.Ran({"sft_adapter": {"lora_r": 8}}, set())
    )
    for given, told in ([], False), (["--set", "lora_r=8"], True):
        assert (
            "--save"
            in CliRunner()
            .invoke(app, ["materialize", "shop/intern", *given], catch_exceptions=False)
            .output
        ) == told


@pytest.mark.parametrize(
    ("lake", "repair", "mistake"),
    [("lake", '{"orphan": "keep"}', "orphan"), ("pipeline.toml", "{}", "is a file")],
)
def test_one_mistake_is_one_line(
    project: Path, monkeypatch: pytest.MonkeyPatch, lake: str, repair: str, mistake: str
) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", lake)
    done = CliRunner().invoke(
        app, ["materialize", "shop/intern", "--select", "+sft_dataset", "--set", f"repair={repair}"]
    )
    assert done.exit_code != 0
    lines = [*done.output.splitlines(), str(done.exception)]
    assert sum("Dependencies for step" in line or mistake in line for line in lines) == 1, lines
