"""Code in the documentation: commands that exist, settings that load, Python that runs."""

import doctest
import importlib
import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

import dagster as dg
import pytest
import typer
import yaml
from _pytest.mark import ParameterSet
from sybil.document import Document
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser

from agent_pipeline.cli.app import app
from agent_pipeline.config.overrides import overrides
from agent_pipeline.config.settings import load_settings
from agent_pipeline_tests.docs.pages import (
    REPOSITORY,
    check_no_failures,
    list_code_blocks,
    list_pages,
    name_page,
)

PAGES = list_pages()
NOT_SETTINGS = re.compile(r"^\[(project|tool|build-system|dependency-groups)\b", re.MULTILINE)
"""Tables of pyproject.toml."""

SEPARATORS = {"&&", "||", "|", ";", "&"}
ASSIGNMENT = re.compile(r"^[A-Za-z_]\w*=")
WRAPPERS = {"time", "exec", "sudo", "nohup", "env"}
READERS_PACKAGE = "my_package"
"""The package that stands for a reader's own code. It does not exist here."""

OPTIONAL_MODULES = {"spacy"}
"""Modules of optional packages, which may be missing here."""


@dataclass(frozen=True)
class Command:
    """A command of a shell block: its words, and the line number where it starts."""

    line: int
    words: list[str]


def list_commands(path: Path) -> list[Command]:
    """Return the commands of the `sh` blocks of a page, without redirections."""
    commands: list[Command] = []
    for block in list_code_blocks(path.read_text(encoding="utf-8")):
        if block.language not in ("sh", "bash", "shell", "console"):
            continue
        code = re.sub(r"\\\n\s*", " ", block.text)
        for offset, line in enumerate(code.splitlines()):
            commands += [
                Command(block.line + offset, words) for words in split_commands(line.strip())
            ]
    return commands


def split_commands(line: str) -> Iterator[list[str]]:
    """Yield the words of each command of a shell line."""
    lexer = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    redirected = False
    try:
        tokens = list(lexer)
    except ValueError:  # a text of several lines
        return
    for token in [*tokens, ";"]:
        if token in SEPARATORS:
            if command := strip_prefix(words):
                yield command
            words, redirected = [], False
        elif set(token) <= set("<>&"):
            redirected = True
        elif redirected:
            redirected = False
        else:
            words.append(token)


def strip_prefix(words: list[str]) -> list[str]:
    """Return a command without the variables and the programs that it starts with."""
    while words and (ASSIGNMENT.match(words[0]) or words[0] in WRAPPERS):
        words = words[1:]
    return words


def read_make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([\w-]+):", text, re.MULTILINE))


def parse_arguments(words: list[str]) -> None:
    """Parse the arguments of `agent-pipeline` without running the command.

    Raises:
        typer.Exit: the arguments ask for help.
        Exception: a command, option or value does not exist.
    """
    command = typer.main.get_command(app)
    context = command.make_context("agent-pipeline", list(words))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)
    selected = select_assets(context.params.get("select", "*"))
    settings = context.params.get("settings") or []
    overrides([text for text in settings if READERS_PACKAGE not in text], selected)


def select_assets(selection: str) -> set[str]:
    """Return the names of the assets that a selection names."""
    from agent_pipeline.definitions import defs

    graph = defs.resolve_asset_graph()
    keys = dg.AssetSelection.from_string(selection).resolve(graph)
    assert keys, f"--select {selection} selects nothing"
    return {key.path[-1] for key in keys}


def explain_failure(words: list[str]) -> str:
    """Return why a command of this project does not exist, or an empty text.

    Commands of other programs are accepted.
    """
    program = words[0].removeprefix(".venv/bin/")
    if program == "agent-pipeline":
        try:
            parse_arguments(words[1:])
        except typer.Exit:
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {getattr(error, 'message', '') or error}"
    if program == "make":
        arguments = words[3:] if words[1:2] == ["-C"] else words[1:]
        targets = {word for word in arguments if "=" not in word and not word.startswith("-")}
        if unknown := targets - read_make_targets():
            return f"no target {', '.join(sorted(unknown))} in the Makefile"
    if re.fullmatch(r"python[\d.]*", program) and words[1:2] == ["-m"]:
        try:
            spec = find_spec(words[2])
        except ImportError:
            spec = None
        if spec is None and words[2] not in OPTIONAL_MODULES:
            return f"no module {words[2]}"
    return ""


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_commands_exist_and_their_arguments_are_accepted(path: Path) -> None:
    failures = [
        f"{name_page(path)}:{command.line}: {shlex.join(command.words)}: {reason}"
        for command in list_commands(path)
        if (reason := explain_failure(command.words))
    ]
    check_no_failures(failures)


@pytest.mark.parametrize(
    "line, commands",
    [
        ("A=1 agent-pipeline config check  # a comment", [["agent-pipeline", "config", "check"]]),
        (
            "make dev && time make bench | tee out",
            [["make", "dev"], ["make", "bench"], ["tee", "out"]],
        ),
        ("agent-pipeline status > status.txt", [["agent-pipeline", "status"]]),
        ("agent-pipeline discover 'my store'", [["agent-pipeline", "discover", "my store"]]),
    ],
)
def test_shell_lines_are_split_into_commands(line: str, commands: list[list[str]]) -> None:
    assert list(split_commands(line)) == commands


@pytest.mark.parametrize(
    "command",
    [
        "agent-pipeline materialise shop/support",
        "agent-pipeline materialize shop/support --sett lora_r=8",
        "agent-pipeline materialize shop/support --set lora=8",
        "agent-pipeline materialize shop/support --select no_such_asset",
        "agent-pipeline models table",
        "make everything",
        "python -m agent_pipeline.nothing",
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str) -> None:
    assert explain_failure(shlex.split(command))


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_settings_in_toml_blocks_load(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    failures = []
    for block in list_code_blocks(path.read_text(encoding="utf-8")):
        if block.language != "toml" or NOT_SETTINGS.search(block.text):
            continue
        (tmp_path / "pipeline.toml").write_text(block.text, encoding="utf-8")
        try:
            load_settings()
        except Exception as error:
            if READERS_PACKAGE not in str(error):
                failures.append(f"{name_page(path)}:{block.line}: {error}")
    check_no_failures(failures)


def mark_training_pages() -> list[ParameterSet]:
    """Return the pages as parameters of a test. Pages whose Python trains a model are slow."""
    return [
        pytest.param(
            path,
            id=name_page(path),
            marks=[pytest.mark.slow] if ".train()" in path.read_text(encoding="utf-8") else [],
        )
        for path in PAGES
    ]


@pytest.mark.parametrize("path", mark_training_pages())
def test_python_blocks_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order, in a folder that has the sample of this repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "data").symlink_to(REPOSITORY / "data")
    document = Document.parse(str(path), PythonCodeBlockParser(), SkipParser())
    for example in document:
        try:
            example.evaluate()
        except SkipTest:
            continue
        except Exception as error:
            pytest.fail(f"{name_page(path)}:{example.line}: {error!r}", pytrace=False)


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_blocks_name_their_language_and_data_blocks_parse(path: Path) -> None:
    failures = []
    for block in list_code_blocks(path.read_text(encoding="utf-8")):
        try:
            if not block.language:
                raise ValueError("the block names no language: code without one is not checked")
            if block.language == "json":
                json.loads(block.text)
            if block.language == "yaml":
                list(yaml.safe_load_all(block.text))
        except (ValueError, yaml.YAMLError) as error:
            failures.append(f"{name_page(path)}:{block.line}: {error}")
    check_no_failures(failures)


def list_modules_with_doctests() -> list[str]:
    """Return the modules of the package whose text has a doctest."""
    return sorted(
        ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__")
        for path in (REPOSITORY / "agent_pipeline").rglob("*.py")
        if ">>> " in path.read_text(encoding="utf-8")
    )


@pytest.mark.parametrize("name", list_modules_with_doctests())
def test_doctests_pass(name: str) -> None:
    results = doctest.testmod(
        importlib.import_module(name), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert results.attempted and not results.failed
