"""TRL's trainers of what a model writes itself: GRPO from rewards, SDFT from itself with a demonstration, distillation from a teacher.

GRPO's episodes are ours, through TRL's `rollout_func`: its own loop over an `environment_factory` knows no user who answers, calls only in
the templates that it knows, and no tools but methods. What tools and users say carries no loss (`env_mask`).
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import SettingsError, first_line
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.training.config import OnPolicyTraining

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback

Row = dict[str, Any]
Sample = Callable[[Sequence[list[int]]], list[list[int]]]
"""Prompts as tokens → what the model writes after each, its stop token included where it wrote one."""


@dataclass(frozen=True)
class Rollout:
    """One trial of a row, in tokens. `own` says which of `completion`'s tokens the model wrote; tools and users said the others. `figures`
    are means to log, such as `done` and `harm`."""

    prompt: list[int]
    completion: list[int]
    own: list[bool]
    reward: float
    figures: dict[str, float]


Play = Callable[[ChatRenderer, Sequence[Row], Sample], list[Rollout]]
"""The trials of rows by a model: its renderer, a row for each trial, the model."""


@dataclass(frozen=True)
class Setting:
    """What a trainer is made of. `on_policy_trainer` sees the `rows` in their order; `arguments` are those that all trainers share."""

    model: "PreTrainedModel"
    renderer: ChatRenderer
    rows: Sequence[Row]
    config: Any
    arguments: dict[str, Any]
    callbacks: "list[TrainerCallback]"
    play: Play | None = None
    teacher: "PreTrainedModel | None" = None


def on_policy_trainer(method: str, setting: Setting) -> "Trainer":
    """The trainer of a method of `TRAINERS`, over a model with an adapter.

    Raises:
        SettingsError: TRL refuses the teacher.
    """
    from transformers import PrinterCallback

    config: OnPolicyTraining = setting.config
    setting.model.generation_config.eos_token_id = sorted(
        setting.renderer.stop_ids
    )  # whichever ends a turn ends what is written
    arguments = (
        setting.arguments
        | {
            "max_completion_length": config.max_completion_length,
            "temperature": config.temperature,
            "shuffle_dataset": False,  # a training that goes on from a checkpoint sees what it would have seen
            "gradient_accumulation_steps": config.per_device_train_batch_size,
            "gradient_checkpointing_kwargs": {"use_reentrant": False},
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # that rollout_func and SDFT are experimental in TRL: its version is pinned
        try:
            trainer = TRAINERS[method](setting, arguments)
        except ValueError as error:
            raise SettingsError(
                f"TRL's trainer refuses the settings of {method}: {first_line(error)}."
            ) from error
    trainer.remove_callback(PrinterCallback)
    _count_tokens(trainer)
    return trainer


def _count_tokens(trainer: Any) -> None:
    """Count the tokens of each loss, prompt and completion, as SFTTrainer does: TRL counts here what was generated, or nothing at all."""
    compute_loss, trainer._total_train_tokens = trainer.compute_loss, 0

    def counted(model: "PreTrainedModel", inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        trainer._total_train_tokens += int(
            inputs["prompt_mask"].sum() + inputs["completion_mask"].sum()
        )
        trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = counted


def _grpo(setting: Setting, arguments: dict[str, Any]) -> "Trainer":
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config, play = setting.config, setting.play
    assert play is not None

    def rollouts(prompts: list[str], trainer: Any) -> dict[str, Any]:
        def sample(ids: Sequence[list[int]]) -> list[list[int]]:
            return trainer._generate_single_turn(list(ids), None, {}, 1)[0]

        played = play(
            setting.renderer,
            [setting.rows[int(prompt)] for prompt in prompts],
            sample,
        )
        return {
            "prompt_ids": [each.prompt for each in played],
            "completion_ids": [each.completion for each in played],
            "logprobs": None,
            "env_mask": [[int(own) for own in each.own] for each in played],
            "earned": [each.reward for each in played],
            "figures": [each.figures for each in played],
        }

    def reward(
        earned: list[float],
        figures: list[dict[str, float]],
        log_metric: Callable[[str, float], None],
        **_: Any,
    ) -> list[float]:
        for name in figures[0]:
            log_metric(name, sum(each[name] for each in figures) / len(figures))
        return earned

    return GRPOTrainer(
        model=setting.model,
        reward_funcs=reward,
        rollout_func=rollouts,
        args=GRPOConfig(
            **arguments,
            beta=config.beta,
            num_generations=config.num_generations,
            per_device_train_batch_size=config.num_generations,
        ),
        # TRL repeats prompts and hands them to `rollouts`; ours are the rows' numbers.
        train_dataset=Dataset.from_dict(
            {"prompt": [str(number) for number in range(len(setting.rows))]}
        ),
        processing_class=setting.renderer.tokenizer,
        callbacks=setting.callbacks,
    )


def _sdft(setting: Setting, arguments: dict[str, Any]) -> "Trainer":
    from datasets import Dataset
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer
    from trl.experimental.sdft.sdft_trainer import DemonstrationTeacherContextBuilder

    class Shown(DemonstrationTeacherContextBuilder):
        def _compose_teacher_prompt(self, prompt: str, privileged_context: str) -> str:
            return privileged_context

    columns = {"prompt": "asked", "privileged_context": "shown"}
    trainer = SDFTTrainer(
        model=setting.model,
        # The teacher has the weights of the moment: a moving average would be lost with a killed training.
        args=SDFTConfig(
            **arguments,
            teacher_model_kind="live",
            num_generations=1,
            max_prompt_length=None,
            per_device_train_batch_size=1,
        ),
        train_dataset=Dataset.from_dict(
            {name: [row[of] for row in setting.rows] for name, of in columns.items()}
        ),
        processing_class=setting.renderer.tokenizer,
        callbacks=setting.callbacks,
    )
    trainer.teacher_context_builder = Shown(trainer)
    trainer._tokenize_prompts = lambda texts: [setting.renderer.token_ids(text) for text in texts]
    return trainer


def _distill(setting: Setting, arguments: dict[str, Any]) -> "Trainer":
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    trainer = DistillationTrainer(
        model=setting.model,
        teacher_model=setting.teacher,
        args=DistillationConfig(
            **arguments, beta=setting.config.beta, per_device_train_batch_size=1
        ),
        train_dataset=Dataset.from_dict({"prompt": [row["asked"] for row in setting.rows]}),
        processing_class=setting.renderer.tokenizer,
        callbacks=setting.callbacks,
    )
    # A text that holds special tokens literally is tokenised as text.
    trainer._tokenize_prompts = lambda texts: (
        [setting.renderer.token_ids(text) for text in texts],
        None,
        {},
    )
    return trainer


TRAINERS: dict[str, Callable[[Setting, dict[str, Any]], "Trainer"]] = {
    "grpo": _grpo,
    "sdft": _sdft,
    "distill": _distill,
}
