"""The parameters of heavy tasks, when they are decoded in the worker."""

from pathlib import Path
from typing import Any

import pytest

from agent_pipeline.compute.params import TaskParams
from agent_pipeline.compute.registry import Task
from agent_pipeline.compute.tasks import TASKS
from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey
from agent_pipeline_tests.task_params import task_values

KEY = PartitionKey("shop", "support")
TASK = Task("task", 1, (), TaskParams, lambda params, progress: {})
FORGETTABLE = {"tables", "fresh", "at_once"}
"""What does not decide the result of a task."""
REFERENCE = {"asset": "sft_adapter", "identity": "a" * 64}
OWN_VALUES: dict[str, dict[str, Any]] = {
    "train": {
        "mix": False,
        "base_model": "base",
        "base_revision": "",
        "replay_ratio": 0.0,
        "rehearsal": 0.0,
        "config": {},
        "coreset": None,
    },
    "prefer": {
        "mix": False,
        "method": "dpo",
        "reference": REFERENCE,
        "config": {},
        "dataset": "preference_dataset",
        "world": "",
    },
    "embed": {"mix": False, "base_model": "base", "base_revision": "", "embeddings": "tfidf"},
    "episodes": {
        "adapter": REFERENCE,
        "gguf_export": None,
        "world": "",
        "config": {},
        "alone": False,
        "held_out": "test",
    },
    "compare": {
        "candidate": None,
        "champion": None,
        "evaluation": {},
        "select_turns": 8,
        "sanity_question_rows": 0,
        "sanity_questions_beyond_project": False,
        "play": None,
        "watch": False,
    },
}


@pytest.mark.parametrize("name", sorted(set(TaskParams.__struct_fields__) - FORGETTABLE))
def test_forgotten_value_of_every_task(tmp_path: Path, name: str) -> None:
    """A default would give another model, or another lake, without an error."""
    values = task_values(tmp_path, KEY)
    assert TASK.decode(values).partition == str(KEY)
    del values[name]
    with pytest.raises(SettingsError, match=name):
        TASK.decode(values)


@pytest.mark.parametrize(
    ("task", "name"), [(task, name) for task, values in OWN_VALUES.items() for name in values]
)
def test_forgotten_value_of_a_task(tmp_path: Path, task: str, name: str) -> None:
    values = task_values(tmp_path, KEY) | OWN_VALUES[task]
    TASKS[task].decode(values)
    del values[name]
    with pytest.raises(SettingsError, match=name):
        TASKS[task].decode(values)
