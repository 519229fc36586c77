"""One configuration, TRL's for each algorithm: two real steps of each on the tiny model."""

import warnings

import pytest
from datasets import Dataset

from agent_pipeline import RLTrainingConfig
from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline_tests.training.test_on_policy_steps import ROWS, WORLD
from agent_pipeline_tests.training.test_preference_steps import pair

pytestmark = pytest.mark.slow

ASKED = [
    [{"role": "user", "content": f"How is {city}?"}] for city in ("Oslo", "Rome", "Bonn", "Lima")
]
GOOD, BAD = (
    [{"role": "assistant", "content": "It is sunny."}],
    [{"role": "assistant", "content": "No."}],
)


def length(completions, **rest) -> list[float]:
    return [-float(len(str(each))) for each in completions]


def data(algorithm: str) -> Dataset:
    if algorithm == "dpo":
        return Dataset.from_list(
            [{"prompt": each, "chosen": GOOD, "rejected": BAD} for each in ASKED]
        )
    if algorithm == "kto":
        return Dataset.from_list(
            [
                {"prompt": each, "completion": GOOD if n % 2 else BAD, "label": bool(n % 2)}
                for n, each in enumerate(ASKED)
            ]
        )
    return Dataset.from_list([{"prompt": each} for each in ASKED])


@pytest.mark.parametrize("algorithm", ["dpo", "kto", "grpo", "rloo", "ppo"])
def test_two_steps_of_each_algorithm(tiny_base, tmp_path, algorithm):
    tokenizer = load_renderer(tiny_base.path).tokenizer
    tokenizer.padding_side = "left"
    rewarded = algorithm in ("grpo", "rloo", "ppo")
    config = RLTrainingConfig(algorithm, length if rewarded else None, kl_coef=0.2)
    options = {"num_generations": 2, "max_completion_length": 4} if rewarded else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = config.trainer(
            load_model(tiny_base, probe_device()),
            data(algorithm),
            tokenizer,
            str(tmp_path),
            max_steps=2,
            per_device_train_batch_size=2,
            gradient_checkpointing=False,
            disable_tqdm=True,
            save_strategy="no",
            logging_steps=1,
            **options,
        )
        trainer.train()
    assert trainer.state.global_step == 2 and trainer.args.beta == 0.2
    kinds = {"dpo": "preference", "kto": "preference", "ppo": "grpo"}
    assert type(trainer).__name__.lower().startswith(kinds.get(algorithm, algorithm))


@pytest.mark.parametrize("reward", [None, WORLD])
def test_grpo_of_a_recipe_plays_conversations_as_the_asset_does(tiny_base, tmp_path, reward):
    tokenizer = load_renderer(tiny_base.path).tokenizer
    model = load_model(tiny_base, probe_device())
    options = {
        "num_generations": 2,
        "max_steps": 1,
        "batch_size": 2,
        "max_completion_length": 8,
        "max_length": 512,
    }
    trainer = RLTrainingConfig("grpo", reward).trainer(
        model, ROWS[:4], tokenizer, str(tmp_path), **options
    )
    trainer.train()
    assert trainer.state.global_step == 1 and "harm" in trainer.state.log_history[0]
    assert len(trainer.train_dataset) == 2 and trainer.args.beta == 0.1


def test_dpo_of_a_recipe_trains_no_tool_results(tiny_base, tmp_path):
    tokenizer = load_renderer(tiny_base.path).tokenizer
    config = RLTrainingConfig("dpo").trainer(
        load_model(tiny_base, probe_device()), [pair(0)], tokenizer, str(tmp_path), max_length=512
    )
    (example,) = config.train_dataset
    for encoded in example.rows:
        said = tokenizer.decode(
            [
                token
                for token, trained in zip(encoded.input_ids, encoded.trained, strict=True)
                if trained
            ]
        )
        assert "weather" in said and "RESULT" not in said and "sunny" not in said


def test_rows_that_cannot_be_trained_on_are_one_sentence(tiny_base, tmp_path):
    tokenizer = load_renderer(tiny_base.path).tokenizer
    with pytest.raises(DataError, match="None of 1 rows"):
        RLTrainingConfig("dpo").trainer(
            load_model(tiny_base, probe_device()),
            [pair(0)],
            tokenizer,
            str(tmp_path),
            max_length=20,
        )


def test_ppo_says_what_it_is_and_what_it_is_not(tmp_path):
    with pytest.warns(UserWarning, match="PPO.*GRPO"):
        made = RLTrainingConfig(reward_model="some/judge").to_trl_config(str(tmp_path))
    assert (
        type(made).__name__ == "GRPOConfig"
        and made.beta == 0.1
        and made.num_iterations > 1
        and made.epsilon > 0
    )


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"algorithm": "sarsa"}, "algorithm 'sarsa' does not exist"),
        ({"algorithm": "dpo", "reward_model": "x"}, "does not use `reward_model`"),
        ({"algorithm": "kto", "kl_coef": 0.0}, "would learn nothing"),
        ({"kl_coef": -1}, "`kl_coef` is -1"),
        ({"gamma": 0.5}, "`gamma` is 0.5.*set `gamma` to 1"),
    ],
)
def test_what_cannot_work_is_a_value_error(options, what):
    with pytest.raises(ValueError, match=what):
        RLTrainingConfig(**options)


def test_a_reward_is_asked_for_where_one_is_needed():
    with pytest.raises(ValueError, match="reward_model"):
        RLTrainingConfig().to_trl_config()
