"""Training on what the adapter writes itself: GRPO in a world and beside logged turns, SDFT, distillation."""

from pathlib import Path

import pytest

from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.rollouts import (
    LENIENT,
    NAMED,
    RIGHT_CLASS,
    practice,
    turn_reward,
    world_rollouts,
)
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.models.base_model import BaseModel, compute_directory_revision
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.loss_masks import encode_conversation
from agent_pipeline.training.config import DistillTraining, GrpoTraining, SdftTraining
from agent_pipeline.training.further_steps import NothingTrained
from agent_pipeline.training.on_policy_steps import render_turn, train_on_policy
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.trainers import preferences as trainers
from agent_pipeline_tests.training.kills import killed
from agent_pipeline_tests.training.test_preference_steps import SELECT
from agent_pipeline_tests.training.test_sft import files
from agent_pipeline_tests.training.world import TRAINING, row, train_adapter

pytestmark = pytest.mark.slow
ROWS = [row(number) for number in range(8)]
STEPS = {
    "per_device_train_batch_size": 2,
    "num_train_epochs": 1.5,
    "stop_steps": 2,
    "stop_fall": 1.0,
    "max_length": 512,
    "max_new_tokens": 64,
    "min_rows": 4,
    "temperature": 0.7,
    "precision": "float32",
}
WORLD = f"{__name__}:Weather"
HEARD = "THE RESULT OF A TOOL"


class Weather:
    """A world as somebody writes it for TRL, for the tiny world's rows: the weather must be asked for in the right city."""

    def reset(self, messages: list, **row) -> None:
        self._city = messages[1]["content"].split()[2]
        self._asked: list[str] = []

    def weather(self, city: str, days: int = 1) -> str:
        """Weather in a city.

        Args:
            city: Where.
            days: How long.
        """
        self._asked.append(city)
        return HEARD

    @property
    def wrong_changes(self) -> list[str]:
        return [city for city in self._asked if city != self._city]

    def get_reward(self) -> float:
        return 1.0 if self._city in self._asked else 0.3 * bool(self._asked)


METHODS = {
    "world": ("grpo", GrpoTraining(**STEPS, learning_rate=2e-3, max_turns=3)),
    "sdft": ("sdft", SdftTraining(**STEPS, learning_rate=2e-3)),
    "distill": ("distill", DistillTraining(**STEPS, learning_rate=2e-3)),
    "turns": ("grpo", GrpoTraining(**STEPS, learning_rate=2e-3, use_world=False)),
}


def trained(of: str, base, adapter: Path, out: Path, progress=silent, **changes):
    method, config = METHODS[of]
    practised = practice(ROWS if of == "world" else ROWS[:4], config, WORLD)
    teacher = base if method == "distill" else None
    further_input = FurtherInput(
        method,
        practised.rows,
        base,
        adapter,
        config.changed(**changes),
        "sft",
        SELECT,
        practised.details,
    )
    return train_on_policy(further_input, out, practised.play, teacher, progress)


@pytest.fixture(scope="module")
def base(once, tiny_base) -> BaseModel:
    """A base model that often calls the weather: what it writes earns now more, now less."""
    whole = TRAINING.changed(use_lora=False, num_train_epochs=26, learning_rate=1e-3)
    folder = once("talking-base", lambda out: train_adapter(ROWS, tiny_base, whole, out))
    return BaseModel("tiny-talker", folder, compute_directory_revision(folder))


@pytest.fixture(scope="module")
def adapter(once, base) -> Path:
    return once(
        "talking-adapter",
        lambda out: train_adapter(
            ROWS, base, TRAINING.changed(num_train_epochs=1, learning_rate=1e-4), out
        ),
    )


@pytest.fixture(scope="module", params=METHODS)
def made(request, base, adapter, tmp_path_factory):
    out = tmp_path_factory.mktemp(request.param)
    return request.param, out, trained(request.param, base, adapter, out)


def test_real_steps_change_the_adapter_and_the_report_says_how_it_went(made, adapter):
    from safetensors.torch import load_file

    of, out, report = made
    before, after = (load_file(folder / "adapter_model.safetensors") for folder in (adapter, out))
    assert before.keys() == after.keys() and any(
        (before[name] != after[name]).any() for name in before
    )
    assert sorted(files(out)) == sorted(files(adapter))
    assert report.tokens_per_second > 0
    assert (
        report.steps == report.weights_of_step == 6
        and report.rows["trained"] == report.rows["in"] == 8
    )
    assert [look.step for look in report.decisions.looks] == [2, 4, 6]
    assert report.stopped_by == []
    if METHODS[of][0] == "grpo":
        assert all({"reward", "done", "harm", "kl"} <= entry.keys() for entry in report.log_history)
        assert any(entry["reward_std"] > 0 for entry in report.log_history)


@pytest.mark.parametrize(
    "made", list(METHODS)[:3], indirect=True
)  # the trainers: that of "turns" is that of "world"
def test_a_killed_training_goes_on_and_ends_with_the_same_bytes(made, base, adapter, tmp_path):
    of, out, _ = made
    killed(trained, of, base, adapter, tmp_path, step=3)
    assert trained(of, base, adapter, tmp_path).resumed_from == 2
    assert files(tmp_path) == files(out)


def test_the_loss_of_grpo_counts_no_token_that_a_tool_returned(
    base, adapter, tmp_path, monkeypatch
):
    from trl import GRPOTrainer

    tokenizer, seen = load_renderer(adapter).tokenizer, []

    def spy(self, model, inputs, real=GRPOTrainer._compute_loss):
        seen.extend(
            zip(
                inputs["completion_ids"],
                inputs["completion_mask"].bool(),
                inputs["tool_mask"].bool(),
                strict=True,
            )
        )
        return real(self, model, inputs)

    monkeypatch.setattr(GRPOTrainer, "_compute_loss", spy)
    trained("world", base, adapter, tmp_path, max_steps=2)
    texts = [
        [tokenizer.decode(ids[mask]) for mask in (real, real & own, real & ~own)]
        for ids, real, own in seen
    ]
    assert len(texts) == 2 * 2 * 4 and any(HEARD in whole for whole, _, _ in texts)
    for whole, own, heard in texts:
        assert HEARD not in own and whole.count(HEARD) == heard.count(HEARD) == whole.count(
            "<tool_response>"
        )


class Asking(Weather):
    """The same, with a user who says one thing more."""

    def reset(self, messages: list, **row) -> None:
        super().reset(messages)
        said = iter(["A USER SAYS MORE"])
        self.user = type("User", (), {"reply": staticmethod(lambda answer: next(said, None))})()


def test_an_episode_has_the_tokens_and_the_mask_that_imitation_would_give_it(tiny_renderer):
    turns = [*row(0)["messages"][2::2], {"role": "assistant", "content": "Take a hat."}]
    said = iter(turns)

    def sample(prompts):
        text = tiny_renderer.render([next(said)], None).split("assistant\n", 1)[1].rstrip()
        return [tiny_renderer.tokenizer(text).input_ids for _ in prompts]

    (rollout,) = world_rollouts(Asking, 5, 64, 1024, 1.0)(tiny_renderer, [row(0)], sample)
    messages = [
        *row(0)["messages"][:3],
        {**row(0)["messages"][3], "content": HEARD},
        turns[1],
        {"role": "user", "content": "A USER SAYS MORE"},
    ]
    expected = encode_conversation(tiny_renderer, [*messages, turns[2]], row(0)["tools"])
    size = len(rollout.prompt) + len(rollout.completion)
    assert rollout.prompt + rollout.completion == expected.input_ids[:size]
    assert [False] * len(rollout.prompt) + rollout.own == expected.trained[:size] and not any(
        expected.trained[size:]
    )
    assert rollout.reward == rollout.figures["done"] == 1.0


def test_an_episode_ends_where_a_message_is_cut_off_or_no_longer_fits(tiny_renderer):
    play = world_rollouts(Weather, 5, 64, 256, 1.0)
    cut, long = play(
        tiny_renderer,
        [row(0), {**row(0), "messages": [*row(0)["messages"][:1], LONG]}],
        lambda asked: [[5] * 64 for _ in asked],
    )
    assert cut.own == [True] * 64 and long.own == [False] and cut.reward == long.reward == 0.0


CALL, ANSWER = turn_samples(ROWS[:1], split="train")[0]
WEATHER = '<tool_call>\n{{"name": "{}", "arguments": {}}}\n</tool_call>'


@pytest.mark.parametrize(
    ("sample", "text", "earned"),
    [
        (CALL, WEATHER.format("weather", '{"city": "Oslo", "days": 1}'), 1.0),
        (CALL, WEATHER.format("weather", '{"city": "OSLO", "days": "1"}'), LENIENT),
        (CALL, WEATHER.format("weather", '{"city": "Rome"}'), NAMED),
        (CALL, WEATHER.format("snow", '{"city": "Oslo", "days": 1}'), 0.0),
        (CALL, "It is sunny in Oslo.", 0.0),
        (ANSWER, "It is sunny in Oslo.", 1.0),
        (ANSWER, "It is 40 degrees in Oslo.", RIGHT_CLASS),
        (ANSWER, WEATHER.format("weather", '{"city": "Oslo"}'), -0.5),
        (ANSWER, "", 0.0),
    ],
)
def test_a_turn_earns_what_the_matcher_says(sample, text, earned):
    assert turn_reward(sample, text, False, 0.5) == earned


def test_a_teacher_of_sdft_sees_what_the_agent_did_and_the_model_does_not(tiny_renderer):
    turn = practice(ROWS[:1], SdftTraining()).rows[0]
    made = render_turn(tiny_renderer, turn)
    assert made["asked"] == tiny_renderer.render(
        row(0)["messages"][:2], row(0)["tools"], add_generation_prompt=True
    )
    told = made["shown"].split("A good agent would now write:\n")[1]
    assert told.startswith(
        '<tool_call>\n{"name":"weather","arguments":{"city":"Oslo","days":1}}\n</tool_call>\n'
    )
    assert (
        made["shown"].endswith("<|im_start|>assistant\n")
        and "Oslo" not in made["asked"].split("How is Oslo")[0]
    )


LONG = {"role": "user", "content": "How is Oslo? " * 200}


def test_what_cannot_be_trained_is_one_sentence(base, adapter, tmp_path, monkeypatch):
    long = {**row(1), "messages": [LONG, *row(1)["messages"][2:]]}
    practised = practice([row(0), long], METHODS["turns"][1])
    with pytest.raises(NothingTrained, match=r"grpo.* 4 .*2 of 4.*512") as error:
        further_input = FurtherInput("grpo", practised.rows, base, adapter, METHODS["turns"][1])
        train_on_policy(further_input, tmp_path, practised.play)
    assert error.value.counts["dropped_too_long"] == 2
    with pytest.raises(SettingsError, match="teacher"):
        further_input = FurtherInput(
            "distill", practised.rows, base, adapter, METHODS["distill"][1]
        )
        train_on_policy(further_input, tmp_path)
    monkeypatch.setattr(trainers, "find_fallen_kinds", lambda *_: ["user → weather"])
    with pytest.raises(NothingTrained, match=r"less probable from the start.*user → weather"):
        trained("world", base, adapter, tmp_path / "fallen", max_steps=2)
