"""An agent's model in one object: trained in every way that its configuration says, evaluated, kept, taken up again."""

import dataclasses
import json
from pathlib import Path

import pytest

from agent_pipeline import AgentSFTConfig, AgentSFTTrainer
from agent_pipeline.compat.sage.coresets import CoresetSelector
from agent_pipeline.errors import DataError, ModelError, SettingsError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.training.trainers.sft import SftJob, build_trainer
from agent_pipeline_tests.training.test_on_policy_steps import WORLD
from agent_pipeline_tests.training.test_preference_steps import pair
from agent_pipeline_tests.training.world import row, train_adapter

pytestmark = pytest.mark.slow

ROWS = [row(number) for number in range(8)]
HELDOUT = [row(31, "test")]


@pytest.fixture(scope="module")
def train(tiny_base, tmp_path_factory):
    """Two real steps with some options; the trainer and its result."""

    def run(out=None, **options):
        config = AgentSFTConfig(
            str(tiny_base.path),
            **{
                "train_data": ROWS, "output_dir": str(out or tmp_path_factory.mktemp("agent")), "max_steps": 2, "batch_size": 4,
                "gradient_accumulation_steps": 1, "learning_rate": 4e-3, **options,
            },
        )  # fmt: skip
        trainer = AgentSFTTrainer(config)
        return trainer, trainer.train()

    return run


@pytest.fixture(scope="module")
def plain(train):
    return train(eval_data=HELDOUT)


def weights(result) -> dict:
    from safetensors.torch import load_file

    (file,) = Path(result.model_path).glob("*.safetensors")
    return load_file(file)


def test_training_says_what_came_of_it(plain):
    _, result = plain
    assert result.steps == 2 and result.counts == {"records": 8, "rows": 8, "trained": 8}
    assert (
        result.eval_loss == result.report["heldout"]["after"] < result.report["heldout"]["before"]
    )
    assert sorted(path.name for path in Path(result.model_path).parent.iterdir()) == ["model"], (
        "no checkpoint, nothing half done"
    )


def test_the_adapter_is_the_one_that_the_asset_would_train(plain, tiny_base, tmp_path):
    trainer, result = plain
    base = BaseModel(str(tiny_base.path), tiny_base.path, tiny_base.revision)
    train_adapter(ROWS, base, trainer.config.make_training_config(), tmp_path)
    assert (tmp_path / "adapter_model.safetensors").read_bytes() == (
        Path(result.model_path) / "adapter_model.safetensors"
    ).read_bytes()


def test_evaluation_asks_every_turn_and_says_what_is_right(plain, tiny_base):
    trainer, result = plain
    found = trainer.evaluate()
    assert found.num_samples == 2 and found.loss == pytest.approx(
        result.eval_loss, rel=1e-3
    )  # trained in bfloat16 where that is faster
    assert found.accuracy == sum(each["right"] for each in found.details["samples"]) / 2
    untrained = AgentSFTTrainer(trainer.config).evaluate(HELDOUT)
    assert untrained.loss == pytest.approx(result.report["heldout"]["before"], rel=1e-3), (
        "before a training it is the base"
    )
    with pytest.raises(DataError, match="evaluate"):
        AgentSFTTrainer(dataclasses.replace(trainer.config, eval_data=None)).evaluate()


def test_what_is_evaluated_on_may_not_be_learnt(train):
    with pytest.raises(DataError, match=r"1 of 2 .*eval_data.*train_data"):
        train(eval_data=[row(31, "test"), row(3, "test")])


def test_a_model_that_was_saved_answers_as_before(plain, tmp_path):
    trainer, _ = plain
    saved = trainer.save_model(tmp_path / "kept")
    other = AgentSFTTrainer(trainer.config)
    with pytest.raises(ModelError, match="to save"):
        other.save_model(tmp_path / "none")
    with pytest.raises(ModelError, match="not contain a trained model"):
        other.load_model(tmp_path)
    other.load_model(saved)
    assert other.evaluate() == trainer.evaluate()


def test_dora_learns_magnitudes(train):
    from peft import PeftConfig

    trainer, result = train(use_dora=True)
    magnitudes = {
        name: value for name, value in weights(result).items() if "lora_magnitude_vector" in name
    }
    assert magnitudes and PeftConfig.from_pretrained(result.model_path).use_dora
    assert "lora_magnitude_vector" in " ".join(name for name, _ in trainer.model.named_parameters())


def test_lora_plus_moves_matrix_b_further(train, plain):
    _, result = train(use_lora_plus=True, lora_plus_lr_ratio=16.0)

    def size(of, matrix) -> float:
        return sum(value.norm().item() for name, value in weights(of).items() if matrix in name)

    assert size(result, "lora_B") > 4 * size(plain[1], "lora_B") > 0


@pytest.fixture
def build(tiny_base, tmp_path):
    """TRL's trainer that some options would train with."""

    def make(**options):
        renderer = load_renderer(tiny_base.path)
        tokens = [each.encoded for each in encode_rows(renderer, ROWS, 512)[0]]
        config = AgentSFTConfig("base", ROWS, learning_rate=1e-3, **options).make_training_config()
        job = SftJob(tokens, config, probe_device(), tmp_path)
        return build_trainer(job, load_model(tiny_base, probe_device()), renderer.tokenizer, silent)

    return make


def test_lora_plus_has_the_two_rates_of_its_paper(build):
    trainer = build(use_lora_plus=True, lora_plus_lr_ratio=8)
    trainer.create_optimizer_and_scheduler(2)
    names = {id(value): name for name, value in trainer.model.named_parameters()}
    rates = {
        (group["initial_lr"], "lora_B" in names[id(value)])
        for group in trainer.optimizer.param_groups
        for value in group["params"]
    }
    assert rates == {(1e-3, False), (8e-3, True)}


def test_rows_are_seen_in_their_order_when_they_stream(build):
    def order(trainer) -> list[int]:
        return list(trainer._get_train_sampler(trainer.train_dataset))

    assert order(build(use_online_continual=True)) == list(range(len(ROWS))) != order(build())


def test_without_lora_every_weight_is_trained_and_the_whole_model_kept(train):
    trainer, result = train(use_lora=False, eval_data=HELDOUT)
    assert (Path(result.model_path) / "config.json").is_file() and result.eval_loss < result.report[
        "heldout"
    ]["before"]
    assert trainer.evaluate().loss == pytest.approx(result.eval_loss, rel=1e-5)


def test_a_coreset_is_chosen_by_the_base_models_losses_half_of_the_rows_where_no_size_is_said(
    train, tiny_base
):
    with pytest.warns(UserWarning, match="often chooses noise"):
        _, result = train(use_coreset_selection=True, coreset_strategy="loss_topk")
        expected = CoresetSelector("loss_topk", 4, seed=42).select(ROWS, str(tiny_base.path))
    assert result.counts == {"records": 8, "rows": 8, "coreset": 4, "trained": 4}
    assert result.report["row_ids"] == [each["row_id"] for each in expected]


def test_online_training_replays_earlier_batches_and_then_earlier_trainings(train, tmp_path):
    options = {
        "use_online_continual": True,
        "continual_replay_ratio": 0.5,
        "batch_size": 2,
        "out": tmp_path,
    }
    _, first = train(**options)
    order = first.report["row_ids"]
    assert first.counts == {"records": 8, "rows": 8, "replayed": 6, "trained": 14}, (
        "the first batch has nothing before it"
    )
    assert (
        order[:2] == ["row-0", "row-1"]
        and set(order[4:6]) <= {"row-0", "row-1"}
        and order[6:8] == ["row-4", "row-5"]
    )
    kept = json.loads((tmp_path / "replay_buffer.json").read_text())
    assert kept["seen"] == 8 and sorted(each["row_id"] for each in kept["rows"]) == [
        f"row-{n}" for n in range(8)
    ]
    _, second = train(**options, train_data=[row(20), row(21)])
    assert second.counts["replayed"] == 2
    assert second.report["row_ids"][:2] == ["row-20", "row-21"] and set(
        second.report["row_ids"][2:]
    ) < {f"row-{n}" for n in range(8)}


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"use_lora": False, "use_dora": True}, "`use_dora` trains an adapter"),
        ({"lora_plus_lr_ratio": 0.5, "use_lora_plus": True}, "loraplus_lr_ratio"),
        ({"use_coreset_selection": True, "coreset_strategy": "best"}, "no coreset strategy 'best'"),
        ({"use_coreset_selection": True, "coreset_target_size": 0}, "target_size"),
        ({"use_online_continual": True, "continual_replay_ratio": 1.0}, "`replay_ratio` is 1.0"),
    ],
)
def test_what_cannot_work_is_said_at_once(options, what):
    with pytest.raises(SettingsError, match=what):
        AgentSFTConfig("base", ROWS, **options)


def test_an_adapter_is_trained_on_from_pairs_and_a_base_model_is_not(train, tmp_path):
    trainer, imitated = train(tmp_path, use_lora=True)
    before = weights(imitated)
    result = trainer.prefer(
        [pair(number) for number in range(4)], min_rows=2, max_steps=1, learning_rate=1e-3
    )
    after = weights(result)
    assert result.steps == 1 and result.counts == {"records": 4, "trained": 4}
    assert before.keys() == after.keys() and any(
        (before[name] != after[name]).any() for name in before
    )
    few = {"min_rows": 2, "batch_size": 2, "max_new_tokens": 8, "max_length": 512}
    practised = trainer.practise(ROWS[:4], world=WORLD, max_steps=1, generations=2, **few)
    assert practised.report["method"] == "grpo" and practised.counts == {"records": 4, "trained": 4}
    assert "done" in practised.report["log_history"][0]
    for untrained in (lambda it: it.prefer([pair(0)]), lambda it: it.practise(ROWS[:4], **few)):
        with pytest.raises(ModelError, match="train"):
            untrained(AgentSFTTrainer(trainer.config))
