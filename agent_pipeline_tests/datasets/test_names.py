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
    r"^\| `(\w+)` \| `([\w.]+)` \| ([^|]*)\|",
    (REPOSITORY / "docs" / "reference" / "names.md").read_text("utf-8"),
    re.MULTILINE,
)
PLACES = {name: place for name, place, _ in ROWS}


def test_the_table_has_each_name_once_and_every_row_is_read() -> None:
    page = (REPOSITORY / "docs" / "reference" / "names.md").read_text("utf-8")
    page = page.partition("\n## Tests of your own code\n")[0]  # names of `agent_pipeline.testing`
    written = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert written == [name for name, *_ in ROWS] and len(set(written)) == len(written) > 40


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
        ("eval_results_to_sft_dataset", {"filter_passed": True, "filter_fn": None, "include_system": True, "include_tool_calls": True}),
        ("export_traces_for_sft", {
            "judgment": None, "measure": None, "measure_passed": True, "filter_fn": None, "format": "conversational",
            "include_system": True, "max_sessions": None,
        }),
        ("SFTTrainingConfig", {
            "num_train_epochs": 1, "per_device_batch_size": 2, "gradient_accumulation_steps": 4, "learning_rate": 2e-5,
            "max_grad_norm": 1.0, "warmup_ratio": 0.1, "max_length": 2048, "packing": False, "output_dir": "./sft_output",
            "save_strategy": "no", "logging_steps": 10, "report_to": "none",
        }),
        ("SFTTrainer", {"config": None, "torch_dtype": "bfloat16", "device_map": "auto"}),
        ("AgentSFTConfig", {
            "base_model": inspect.Parameter.empty, "train_data": inspect.Parameter.empty, "eval_data": None, "num_epochs": 3,
            "batch_size": 8, "learning_rate": 2e-5, "gradient_accumulation_steps": 4, "max_seq_length": 2048, "use_lora": True,
            "lora_r": 16, "lora_alpha": 32, "use_dora": False, "use_lora_plus": False, "lora_plus_lr_ratio": 16.0,
            "use_coreset_selection": False, "coreset_strategy": "hybrid", "coreset_target_size": None,
            "use_online_continual": False, "continual_buffer_size": 2048, "continual_replay_ratio": 0.25,
        }),
        ("RLTrainingConfig", {"algorithm": "ppo", "reward_model": None, "kl_coef": 0.1, "gamma": 0.99}),
    ],
)  # fmt: skip
def test_parameters_and_defaults_are_those_that_people_know(
    name: str, defaults: dict[str, object]
) -> None:
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
        ("list_sessions", ["project_slug", "agent_slug"]),
        ("load_history", ["session_id", "project_slug", "agent_slug"]),
        ("train_sft", ["model_name", "project_slug", "agent_slug"]),
        ("SFTTrainingResult", ["model_path", "metrics", "final_loss", "trainer"]),
        ("CapabilityScore", ["capability", "score", "num_samples", "details"]),
        ("MethodConfig", [
            "name", "description", "use_coreset", "coreset_strategy", "use_continual", "use_dora", "use_lora_plus",
            "use_trajectory_collection", "use_multi_task",
        ]),
    ],
)  # fmt: skip
def test_records_begin_with_the_fields_that_people_know(name: str, fields: list[str]) -> None:
    assert (
        list(inspect.signature(getattr(agent_pipeline, name)).parameters)[: len(fields)] == fields
    )


@pytest.mark.parametrize(
    ("name", "method", "parameters"),
    [
        ("SFTTrainer", "train", ["dataset"]),
        ("SFTTrainer", "train_from_traces", ["project_slug", "agent_slug"]),
        ("SFTTrainingResult", "save_model", ["path"]),
        (
            "SFTTrainingResult",
            "to_ollama",
            ["model_name", "model_path", "llama_cpp_path", "quantization"],
        ),
        ("SFTTrainingConfig", "to_trl_config", []),
        ("AgentSFTTrainer", "train", []),
        ("AgentSFTTrainer", "evaluate", ["data"]),
        ("AgentSFTTrainer", "save_model", ["path"]),
        ("AgentSFTTrainer", "load_model", ["path"]),
        ("AgentCapabilityEvaluator", "evaluate", ["model", "test_sets"]),
        ("AgentCapabilityEvaluator", "evaluate_capability", ["model", "cap", "data"]),
        ("CapabilityReport", "get_score", ["cap"]),
        ("CapabilityReport", "summary", []),
        ("CapabilityReport", "to_dict", []),
        ("MethodRegistry", "get_all_methods", []),
        ("MethodRegistry", "get_quick_methods", []),
    ],
)
def test_methods_are_those_that_people_know(name: str, method: str, parameters: list[str]) -> None:
    taken = [
        each
        for each in inspect.signature(getattr(getattr(agent_pipeline, name), method)).parameters
        if each != "self"
    ]
    assert taken[: len(parameters)] == parameters


def test_what_the_table_says_is_an_asset_is_one() -> None:
    from agent_pipeline.definitions import defs

    assets = {spec.key.to_user_string() for spec in defs.resolve_all_asset_specs()}
    said = {
        name for _, _, used in ROWS for name in re.findall(r"`(\w+)`", used) if name != "select"
    }
    assert said and said <= assets


def test_the_package_the_table_and_type_checkers_know_the_same_names() -> None:
    tree = ast.parse(Path(agent_pipeline.__file__).read_text("utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {name: f"agent_pipeline.{place}" for name, place in PLACES.items()}
    assert agent_pipeline.__all__ == sorted(PLACES) and set(PLACES) <= set(dir(agent_pipeline))


def test_importing_the_package_loads_nothing_of_it() -> None:
    program = (
        "import sys; before = set(sys.modules); import agent_pipeline; new = set(sys.modules) - before\n"
        "print(sorted(name for name in new if name.split('.')[0] not in sys.stdlib_module_names))"
    )
    assert _printed(program) == "['agent_pipeline', 'agent_pipeline.lazy_names']"


def test_taking_every_name_and_starting_the_worker_loads_nothing_heavy_and_no_dagster() -> None:
    heavy = (
        "torch",
        "transformers",
        "trl",
        "peft",
        "datasets",
        "sklearn",
        "pandas",
        "polars",
        "openai",
        "dagster",
    )
    take = (  # the component is a class of Dagster
        "import sys, agent_pipeline, agent_pipeline.worker; [getattr(agent_pipeline, name) for name in "
        "agent_pipeline.__all__ if name != 'AgentPipelineComponent']"
    )
    assert _printed(f"{take}; print([name for name in {heavy!r} if name in sys.modules])") == "[]"


def _printed(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    ).stdout.strip()
