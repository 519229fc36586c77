"""What commands say about an empty lake, and in their help."""

from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.cli.report import status_table
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake


def test_champions_of_an_empty_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    done = CliRunner().invoke(app, ["models", "list"])
    assert isinstance(done.exception, DataError)
    assert "materialize PARTITION" in str(done.exception) and "none" not in str(done.exception)


def test_status_of_an_agent_that_was_never_read(tmp_path: Path) -> None:
    """0 sessions would say that its store is empty."""
    screen = Console(record=True, width=200)
    screen.print(status_table(Lake(tmp_path / "lake"), [PartitionKey("shop", "support")]))
    line = next(line for line in screen.export_text().splitlines() if "shop/support" in line)
    assert "not read yet" in line and "0" not in line


def test_help_of_compare_names_the_table_of_methods() -> None:
    """Rich takes a name in brackets for markup, and leaves it out."""
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert "[methods]" in shown
