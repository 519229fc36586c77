"""The task that trains: what it records beside the weights."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent_pipeline.compute import tasks
from agent_pipeline.compute.params import TrainParams
from agent_pipeline.datasets.requests import REQUESTS_FILE, TrainedRequests
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.request_changes import read_trained_requests
from agent_pipeline.selection import replay
from agent_pipeline.selection.buffer import ReplayDraw
from agent_pipeline.training import sft
from agent_pipeline.training.report import TrainingReport
from agent_pipeline_tests.task_params import task_values
from agent_pipeline_tests.training.world import TOOL, row

KEY = PartitionKey("tau", "airline")


def test_an_adapter_records_the_requests_of_its_rows_and_of_replayed_rows(
    tmp_path: Path, tiny_base: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As stored: newer sessions have pseudonyms, too, and not the values that the model was shown."""
    rows = [row(number) for number in range(4)]
    for each in rows:
        each["messages"][0]["content"] = "You report the weather. Write to <EMAIL_1>."
    replayed = row(9)
    replayed["messages"][0]["content"] = "Count the ships in the harbour, one by one."
    draw = ReplayDraw([replayed], 0.2, 0.2, 1, 1, {})
    monkeypatch.setattr(replay, "read_night_rows", lambda *_: replay.NightRows(rows, draw))
    monkeypatch.setattr("agent_pipeline.selection.tables.check_chosen_calls", lambda *_: None)

    def train_nothing(sft_input: object, folder: Path, progress: object) -> TrainingReport:
        (folder / "adapter_model.safetensors").write_text("w")
        return TrainingReport()

    monkeypatch.setattr(sft, "train_adapter", train_nothing)
    values = task_values(tmp_path / "lake", KEY, tmp_path / "cache") | {
        "leaks": "ignore",
        "surrogates": True,
    }
    params = TrainParams(
        **values,
        mix=False,
        base_model=str(tiny_base.path),
        base_revision="",
        replay_ratio=0.2,
        rehearsal=0.0,
        config={},
        coreset=None,
    )
    result = tasks.train.run(params)
    adapter = params.open_lake().find("sft_adapter", KEY, result["identity"])
    assert adapter is not None and REQUESTS_FILE in adapter.manifest["files"]
    requests = read_trained_requests([adapter])
    assert requests == msgspec.json.decode(adapter.read(REQUESTS_FILE), type=TrainedRequests)
    assert requests.sessions == 5 and requests.usual_tools == [TOOL]
    assert {pattern.text for pattern in requests.prompts} == {
        "You report the weather. Write to <EMAIL_1>.",
        "Count the ships in the harbour, one by one.",
    }
