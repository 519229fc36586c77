"""Every method of the registry is a configuration that does what it says."""

import pytest

from agent_pipeline import (
    AgentSFTConfig,
    AgentSFTTrainer,
    AgentTrajectory,
    MethodRegistry,
    TrajectoryStep,
)
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline_tests.training.world import row

ROWS = [row(number) for number in range(6)]
RUNS = [
    AgentTrajectory(
        f"t{number}",
        "How is Oslo?",
        [
            TrajectoryStep("I look.", "weather", {"city": "Oslo"}, "sun"),
            TrajectoryStep(f"Sunny, {number}."),
        ],
        success=number > 0,
        total_reward=float(number > 0),
        tools=row(0)["tools"],
    )
    for number in range(3)
]


def test_the_methods_are_those_of_the_table():
    assert list(MethodRegistry.get_all_methods()) == [
        "A_baseline", "B1_coreset_loss", "B2_coreset_diversity", "B3_coreset_hybrid", "C_continual", "D_combined", "E_fireact",
        "F_agenttuning", "G_dora", "H_lora_plus",
    ]  # fmt: skip
    quick = MethodRegistry().get_quick_methods()
    assert set(quick) < set(MethodRegistry.get_all_methods()) and "A_baseline" in quick
    assert all(each.name and each.description for each in MethodRegistry.get_all_methods().values())


@pytest.mark.parametrize(
    ("method", "fields"),
    [
        ("A_baseline", {}),
        ("B1_coreset_loss", {"use_coreset_selection": True, "coreset_strategy": "loss_topk"}),
        ("B2_coreset_diversity", {"use_coreset_selection": True, "coreset_strategy": "diversity"}),
        ("B3_coreset_hybrid", {"use_coreset_selection": True}),
        ("C_continual", {"use_online_continual": True}),
        ("D_combined", {"use_coreset_selection": True, "use_online_continual": True}),
        ("G_dora", {"use_dora": True}),
        ("H_lora_plus", {"use_lora_plus": True}),
    ],
)
def test_a_method_sets_its_own_switches_and_no_other(method, fields):
    made = MethodRegistry.get_all_methods()[method].config("base", ROWS, batch_size=2)
    assert made == AgentSFTConfig("base", ROWS, batch_size=2, **fields)


def test_fireact_trains_on_the_runs_that_went_well():
    method = MethodRegistry.get_all_methods()["E_fireact"]
    made = method.config("base", RUNS)
    assert [each["task_key"] for each in made.train_data] == ["t1", "t2"]
    assert made.train_data[0]["messages"][1]["tool_calls"][0]["function"]["name"] == "weather"
    with pytest.raises(ArgumentError, match="trajectories"):
        method.config("base", ROWS)
    with pytest.raises(DataError, match="unsuccessful 1"):
        method.config("base", RUNS[:1])


def test_agenttuning_mixes_several_tasks():
    method = MethodRegistry.get_all_methods()["F_agenttuning"]
    made = method.config("base", {"weather": ROWS[:4], "chat": ROWS[4:]})
    assert sorted(each["row_id"].split("/")[0] for each in made.train_data) == [
        "chat",
        "chat",
        "weather",
        "weather",
    ]
    with pytest.raises(ArgumentError, match="mapping"):
        method.config("base", ROWS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "data", "trained"),
    [("E_fireact", RUNS, 2), ("F_agenttuning", {"a": ROWS[:2], "b": ROWS[2:]}, 4)],
)
def test_what_a_method_configures_trains(tiny_base, tmp_path, method, data, trained):
    config = MethodRegistry.get_all_methods()[method].config(
        str(tiny_base.path),
        data,
        output_dir=str(tmp_path),
        max_steps=1,
        batch_size=2,
        gradient_accumulation_steps=1,
        learning_rate=1e-3,
    )
    result = AgentSFTTrainer(config).train()
    assert result.steps == 1 and result.counts["trained"] == trained
