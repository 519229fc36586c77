"""Other libraries read the lake's tables by the calls that docs/explanation/storage.md shows."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.conftest import REPOSITORY

PROJECTS = ["007", "7"]
MESSAGES = [{"role": "user", "content": "8 × 7?"}, {"role": "assistant", "content": "56"}]
SCHEMA = pa.schema([("project", pa.string()), ("agent", pa.string()), ("messages", pa.json_())])


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The names that the example of the docs defines, run beside a lake of two projects whose names are numbers."""
    for project in PROJECTS:
        messages = pa.array([json.dumps(MESSAGES)], pa.string()).cast(pa.json_())
        batch = pa.record_batch([pa.array([project]), pa.array(["01"]), messages], schema=SCHEMA)
        Lake(tmp_path / "lake").stage(
            "sessions", PartitionKey(project, "01"), [batch], SCHEMA
        ).commit()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    section = (
        (REPOSITORY / "docs" / "explanation" / "storage.md")
        .read_text(encoding="utf-8")
        .partition("## Read the tables")[2]
    )
    names: dict[str, Any] = {}
    exec(section.partition("```python\n")[2].partition("```")[0], names)
    return names


def test_projects_and_messages(read: dict[str, Any]) -> None:
    expected = [(project, MESSAGES) for project in PROJECTS]
    assert sorted(read["sessions"].select("project", "messages").collect().rows()) == expected
    assert sorted(read["roles"].fetchall()) == [(project, "user") for project in PROJECTS]
    in_pyarrow = [
        (row["project"], json.loads(row["messages"])) for row in read["table"].to_pylist()
    ]
    assert sorted(in_pyarrow, key=str) == expected
    assert sorted(((row["project"], row["messages"]) for row in read["rows"]), key=str) == expected
