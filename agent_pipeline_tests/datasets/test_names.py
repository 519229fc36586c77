"""The names that people know import from `agent_pipeline`, and the table in `docs/` says the truth about each."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import agent_pipeline
from agent_pipeline_tests.conftest import REPOSITORY

ROWS = re.findall(
    r"^\| `(\w+)` \| (?:`([\w.]+)`|(not yet)) \| ([^|]*)\|", (REPOSITORY / "docs" / "names.md").read_text("utf-8"), re.MULTILINE
)
PLACES = {name: place for name, place, _, _ in ROWS if place}


def test_the_table_has_each_name_once_and_every_row_is_read() -> None:
    written = re.findall(r"^\| `(\w+)` \|", (REPOSITORY / "docs" / "names.md").read_text("utf-8"), re.MULTILINE)
    assert written == [name for name, *_ in ROWS] and len(set(written)) == len(written) > 30


@pytest.mark.parametrize("name", sorted(PLACES))
def test_a_name_is_what_its_place_holds(name: str) -> None:
    found = getattr(agent_pipeline, name)
    assert found is getattr(importlib.import_module(f"agent_pipeline.{PLACES[name]}"), name)
    assert found.__module__.startswith(f"agent_pipeline.{PLACES[name]}") and found.__doc__


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("CollectorConfig", {"max_steps": 10, "require_success": True, "save_intermediate": True}),
        ("TrajectoryFilter", {"min_reward": 0.5, "require_success": True, "max_steps": None}),
        ("SFTConversionConfig", {"include_observation": True, "system_prompt": None}),
        ("collect_and_convert", {"min_reward": 0.5, "require_success": True}),
        ("MixerConfig", {"strategy": "weighted", "shuffle": True}),
        ("CoresetSelector", {"strategy": "hybrid", "target_size": 1000, "loss_ratio": 0.6}),
        ("OnlineContinualLearner", {"buffer_size": 2048, "replay_ratio": 0.25, "selection_strategy": "reservoir"}),
        (
            "eval_results_to_sft_dataset",
            {"filter_passed": True, "filter_fn": None, "include_system": True, "include_tool_calls": True},
        ),
    ],
)
def test_parameters_and_defaults_are_those_that_people_know(name: str, defaults: dict[str, object]) -> None:
    parameters = inspect.signature(getattr(agent_pipeline, name)).parameters
    assert {each: parameters[each].default for each in defaults} == defaults


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("TrajectoryStep", ["thought", "action", "action_input", "observation", "reward"]),
        ("AgentTrajectory", ["task_id", "instruction", "steps", "success", "total_reward"]),
        ("TaskSample", ["task_type", "data", "source"]),
        ("ScoredTrace", ["invocation", "score", "case_id"]),
        ("ExportOptions", ["format", "quality_threshold", "include_metadata"]),
    ],
)
def test_records_begin_with_the_fields_that_people_know(name: str, fields: list[str]) -> None:
    assert list(inspect.signature(getattr(agent_pipeline, name)).parameters)[: len(fields)] == fields


@pytest.mark.parametrize("name", sorted(name for name, _, not_yet, _ in ROWS if not_yet))
def test_what_is_not_there_yet_does_not_import(name: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'"):
        getattr(agent_pipeline, name)


def test_the_package_the_table_and_type_checkers_know_the_same_names() -> None:
    tree = ast.parse(Path(agent_pipeline.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in guarded.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == {name: f"agent_pipeline.{place}" for name, place in PLACES.items()}
    assert agent_pipeline.__all__ == sorted(PLACES) and set(PLACES) <= set(dir(agent_pipeline))


def test_importing_the_package_loads_nothing_of_it() -> None:
    program = (
        "import sys; before = set(sys.modules); import agent_pipeline; new = set(sys.modules) - before\n"
        "print(sorted(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    assert _printed(program) == "['agent_pipeline']"


def test_taking_every_name_loads_nothing_heavy_and_no_dagster() -> None:
    heavy = ("torch", "transformers", "trl", "peft", "datasets", "sklearn", "pandas", "polars", "openai", "dagster")
    program = f"import sys; from agent_pipeline import *; print([name for name in {heavy!r} if name in sys.modules])"
    assert _printed(program) == "[]"


def _printed(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY).stdout.strip()
