"""Code within sentences and tables: commands, settings and columns that exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_pipeline.config.assets import ASSETS
from agent_pipeline.config.settings import Settings
from agent_pipeline.defs.columns import TABLES
from agent_pipeline.options import Section
from agent_pipeline_tests.docs.pages import (
    check_no_failures,
    list_pages,
    list_prose_lines,
    name_page,
)
from agent_pipeline_tests.docs.test_code_blocks import explain_failure

PAGES = list_pages()
CODE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
DOTTED_NAME = re.compile(r"^(?:assets\.)?(?P<group>[a-z_]+)\.(?P<name>[a-z_0-9]+)(?: = .*)?$")
FILE_ENDINGS = {"csv", "db", "html", "json", "jsonl", "md", "parquet", "py", "sqlite", "toml"}
INCOMPLETE = ("MissingParameter", "NoArgsIsHelpError", "BadOptionUsage")
"""Errors of a command that a sentence names without its arguments."""


def list_code(path: Path) -> Iterator[str]:
    """Yield the spans of code in the sentences and tables of a page."""
    text = path.read_text(encoding="utf-8")
    prose = [line for _, line in list_prose_lines(text)]
    tables = [line for line in text.splitlines() if line.startswith("|")]
    for line in (*prose, *tables):
        yield from CODE.findall(line)


def list_names(group: str) -> set[str]:
    """Return the settings of an asset or of a table of settings, and the columns of a table."""
    names: set[str] = set()
    if group in ASSETS:
        names |= {*ASSETS[group].model_fields, *ASSETS[group].earlier_names}
    if group in TABLES:
        names |= set(TABLES[group].schema.names)
    kind = Settings.model_fields[group].annotation if group in Settings.model_fields else None
    if isinstance(kind, type) and issubclass(kind, Section):
        names |= set(kind.model_fields)
    return names


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_commands_in_sentences_exist(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failures = []
    for code in list_code(path):
        if not code.startswith(("agent-pipeline ", ".venv/bin/agent-pipeline ")):
            continue
        reason = explain_failure(shlex.split(code))
        if reason and not reason.startswith(INCOMPLETE):
            failures.append(f"{name_page(path)}: {code}: {reason}")
    check_no_failures(failures)


@pytest.mark.parametrize("path", PAGES, ids=name_page)
def test_settings_and_columns_in_sentences_exist(path: Path) -> None:
    failures = []
    for code in list_code(path):
        dotted = DOTTED_NAME.match(code)
        if not dotted or dotted["name"] in FILE_ENDINGS:
            continue
        names = list_names(dotted["group"])
        if names and dotted["name"] not in names:
            failures.append(f"{name_page(path)}: {code}: no such setting or column")
    check_no_failures(failures)
