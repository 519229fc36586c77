"""The system prompt and the tools that `chat` and `serve` take from a model's training."""

from pathlib import Path

import msgspec
import pytest

from agent_pipeline.datasets.requests import REQUESTS_FILE, describe_requests
from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.champions import promote
from agent_pipeline.promotion.model_prompt import read_model_prompt
from agent_pipeline.redaction.surrogates import with_surrogates
from agent_pipeline.storage.lake import Lake
from agent_pipeline_tests.datasets.test_requests import FIND, TOOLS, prompt, row
from agent_pipeline_tests.lakes import artifact, put_rows
from agent_pipeline_tests.training.world import TOOL
from agent_pipeline_tests.training.world import row as weather

KEY = PartitionKey("shop", "support")


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(str(tmp_path / "lake"), tmp_path / "cache")


def train(lake: Lake, rows: list[dict], export: bool = True) -> None:
    """Train an adapter on rows, and export it."""
    record = msgspec.json.encode(describe_requests(rows))
    adapter = artifact(lake, "sft_adapter", KEY, {"rows": record.decode()}, {REQUESTS_FILE: record})
    if export:
        files = {"Modelfile": "", "m.gguf": "m"}
        artifact(lake, "gguf_export", KEY, {"adapter": adapter.identity}, files)


def read(lake: Lake, model: str) -> tuple[str, list]:
    read_prompt = read_model_prompt(lake, KEY, model, list)
    return read_prompt.system[0]["content"], read_prompt.tools


def test_each_model_has_the_prompt_of_its_training(lake: Lake) -> None:
    """A new rule in the rows does not change what the champion was trained for."""
    train(lake, [row(number, rule=30) for number in range(5)])
    promote(lake, KEY)
    train(lake, [row(number, rule=14, tools=[FIND]) for number in range(5)])
    train(lake, [row(number, rule=7, tools=[FIND]) for number in range(5)], export=False)
    put_rows(lake, KEY, [weather(0)])
    assert read(lake, "champion") == (prompt(0, rule=30), TOOLS)
    assert read(lake, "gguf") == (prompt(0, rule=14), [FIND])
    assert read(lake, "adapter") == read(lake, "base") == (prompt(0, rule=7), [FIND])


def test_first_question_is_that_of_the_rows(lake: Lake) -> None:
    train(lake, [row(number) for number in range(5)])
    assert read_model_prompt(lake, KEY, "adapter", list).question == ""
    put_rows(lake, KEY, [weather(0)])
    assert read_model_prompt(lake, KEY, "adapter", list).question == "How is Oslo for 1 days?"


def test_model_without_a_record(lake: Lake) -> None:
    """An adapter of an older version records nothing: the agent's rows are what is known."""
    with pytest.raises(DataError):
        read(lake, "adapter")
    artifact(lake, "sft_adapter", KEY, {}, {"adapter_config.json": "{}"})
    put_rows(lake, KEY, [weather(0)])
    assert read(lake, "adapter") == ("You report the weather.", [TOOL])


def test_surrogates_replace_the_pseudonyms(lake: Lake) -> None:
    """A model that was trained on made-up values must not be shown a pseudonym."""
    rows = [row(number) for number in range(3)]
    for stored in rows:
        stored["messages"][0]["content"] += " Write to <EMAIL_1>."
    train(lake, rows)
    shown = weather(0)
    shown["messages"][0] = shown["messages"][0] | {"content": "Write to <EMAIL_1>."}
    put_rows(lake, KEY, [shown])
    read_prompt = read_model_prompt(lake, KEY, "adapter", lambda rows: list(with_surrogates(rows)))
    assert "Write to" in read_prompt.system[0]["content"]
    assert "EMAIL_1" not in read_prompt.system[0]["content"]


def test_agent_without_a_system_prompt(lake: Lake) -> None:
    rows = [row(number, tools=[]) for number in range(3)]
    for stored in rows:
        stored["messages"] = stored["messages"][1:]
    train(lake, rows)
    read_prompt = read_model_prompt(lake, KEY, "adapter", list)
    assert read_prompt.system == [] and read_prompt.tools == []
