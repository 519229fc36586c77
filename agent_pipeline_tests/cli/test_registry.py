"""The table of commands: help, examples, next steps, and old names."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from agent_pipeline.cli.app import GROUPS, PANELS, app
from agent_pipeline.cli.registry import OLD_NAMES, Command, find_old_name, name_program
from agent_pipeline_tests.docs.pages import list_pages, name_page
from agent_pipeline_tests.docs.test_code_blocks import list_commands, parse_arguments

COMMANDS = [command for commands in PANELS.values() for command in commands]
WIDE = {"COLUMNS": "200"}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help(command: Command) -> None:
    """`-h` shows each example and the next step, and the examples are command lines that exist."""
    done = CliRunner().invoke(app, [*command.name.split(), "-h"], env=WIDE)
    assert done.exit_code == 0 and command.examples and command.next_step
    for example in command.examples:
        assert f"agent-pipeline {example}" in done.output
        assert example.split()[: len(command.name.split())] == command.name.split()
        parse_arguments(shlex.split(example))
    assert "Next: agent-pipeline " in done.output


def test_next_steps_name_commands() -> None:
    names = {command.name for command in COMMANDS}
    for command in COMMANDS:
        words = command.next_step.split()
        assert {words[0], " ".join(words[:2])} & names, command.next_step


@pytest.mark.parametrize(
    ("called", "path", "shown"),
    [
        (".venv/bin/agent-pipeline", "", ".venv/bin/agent-pipeline"),
        ("{folder}/.venv/bin/agent-pipeline", "", ".venv/bin/agent-pipeline"),
        ("/opt/env/bin/agent-pipeline", "", "/opt/env/bin/agent-pipeline"),
        (".venv/bin/agent-pipeline", "{folder}/.venv/bin", "agent-pipeline"),
        ("/usr/lib/agent_pipeline/cli/app.py", "", "agent-pipeline"),
    ],
)
def test_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, called: str, path: str, shown: str
) -> None:
    """The next step can be pasted into the shell that ran `make demo`, without an active venv."""
    program = tmp_path / ".venv" / "bin" / "agent-pipeline"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path.format(folder=tmp_path))
    monkeypatch.setattr("sys.argv", [called.format(folder=tmp_path)])
    assert name_program() == shown


def test_help_lists_the_panels_in_order() -> None:
    output = CliRunner().invoke(app, ["-h"], env=WIDE).output
    panels = re.findall(r"╭─ ([A-Z][a-z ]+) ─", output)
    assert panels == ["Options", *PANELS]
    assert all(f"│ {name} " in output for name in GROUPS)


OLD_LINES = {
    "champions": "models list",
    "champions shop/support": "models show shop/support",
    "check": "config check",
    "check --send-test": "config check --send-test",
    "explain s --partition a/b": "sessions show s --partition a/b",
    "lineage model 3f2a91c0 --json": "models show 3f2a91c0 --json",
    "lineage session s --json": "sessions show --lineage s --json",
    "report shop/support --open": "report shop/support --open",
    "review shop/support --out r.html": "label export shop/support --out r.html",
    "serve daemon": "service daemon",
    "serve daemon --host 0.0.0.0": "service daemon --host 0.0.0.0",
    "serve webserver --port 1": "service webserver --port 1",
}


def resolve(line: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the arguments of the command that a command line runs."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("agent-pipeline", line.split())
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    return context.command_path, context.params


@pytest.mark.parametrize("old_line", OLD_LINES)
def test_old_names_still_run_the_same_command(
    old_line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert resolve(old_line) == resolve(OLD_LINES[old_line])
    said = capsys.readouterr()
    assert said.out == ""
    assert ("is now" in said.err) == (find_old_name(old_line.split()) is not None)


def test_every_old_name_is_tested_and_hidden() -> None:
    tested = {renamed.old_name for line in OLD_LINES if (renamed := find_old_name(line.split()))}
    assert tested == {*OLD_NAMES, "review"}, "only `review --out` is an old form of `review`"
    names = {command.name for command in COMMANDS}
    assert (
        not names & set(OLD_NAMES)
        and {
            " ".join(word for word in name.split() if not word.startswith("-"))
            for name in OLD_NAMES.values()
        }
        <= names
    )


@pytest.mark.parametrize("path", list_pages(), ids=name_page)
def test_pages_use_the_present_names(path: Path) -> None:
    old = [
        command.words
        for command in list_commands(path)
        if command.words[0].endswith("agent-pipeline") and find_old_name(command.words[1:])
    ]
    assert not old or path.name in ("README.md", "changelog.md")


def test_shell_completes_commands() -> None:
    complete = {"_AGENT_PIPELINE_COMPLETE": "complete_bash", "COMP_WORDS": "agent-pipeline mod"}
    done = CliRunner().invoke(
        app, [], prog_name="agent-pipeline", env={**complete, "COMP_CWORD": "1"}
    )
    assert done.output.split() == ["models"]


def test_command_prints_its_next_step_on_standard_error_but_not_with_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipeline.toml").write_text('lake = "lake"\n', encoding="utf-8")
    (tmp_path / "logs").mkdir()
    shown = CliRunner().invoke(app, ["prune"], catch_exceptions=False)
    assert shown.stderr == "Next: agent-pipeline models list\n" and "Next" not in shown.stdout
    assert CliRunner().invoke(app, ["prune", "--json"], catch_exceptions=False).stderr == ""
