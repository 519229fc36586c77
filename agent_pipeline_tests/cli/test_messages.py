"""What commands say about an empty lake, and in their help."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_pipeline.cli.app import app
from agent_pipeline.errors import DataError


def test_champions_of_an_empty_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_PIPELINE_LAKE", str(tmp_path / "lake"))
    done = CliRunner().invoke(app, ["models", "list"])
    assert isinstance(done.exception, DataError)
    assert "materialize PARTITION" in str(done.exception) and "none" not in str(done.exception)


def test_help_of_compare_names_the_table_of_methods() -> None:
    """Rich takes a name in brackets for markup, and leaves it out."""
    shown = CliRunner().invoke(app, ["compare", "--help"], env={"COLUMNS": "200"}).output
    assert "[methods]" in shown
