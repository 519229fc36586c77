"""TRL's trainers for on-policy methods, which train a model on its own texts.

GRPO learns from rewards, SDFT from the model itself with a demonstration in its prompt, and
distillation from a teacher. GRPO's episodes are ours, through TRL's `rollout_func`. TRL's own loop
over an `environment_factory` has no user who answers, supports calls only in the templates that TRL
supports, and supports only methods as tools. Tokens of tools and users carry no loss (`env_mask`).

How episodes are played and rewarded belongs to `evaluation.rollouts`.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from agent_pipeline._compat.trl import (
    add_trained_tokens,
    sample_completions,
    start_token_count,
    tokenize_distillation,
    tokenize_self_distillation,
)
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import SettingsError, first_line
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.training.config import OnPolicyTraining

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback

Row: TypeAlias = DatasetRow
Sampler = Callable[[Sequence[list[int]]], list[list[int]]]
"""A function that takes prompts and returns what the model writes after each prompt, as tokens.

A stop token is included if the model wrote one.
"""


@dataclass(frozen=True)
class Rollout:
    """One played trial of a row, as tokens.

    Attributes:
        prompt: The tokens before the first token that the model wrote.
        completion: The tokens behind the prompt: the model's, and those of tools and users.
        own: Which tokens of `completion` the model wrote.
        reward: The reward of the trial.
        figures: Numbers whose mean is logged, such as `done` and `harm`.
    """

    prompt: list[int]
    completion: list[int]
    own: list[bool]
    reward: float
    figures: dict[str, float]


Play = Callable[[ChatRenderer, Sequence[Row], Sampler], list[Rollout]]
"""A function that plays one trial per row, given the renderer, the rows and the model."""


@dataclass(frozen=True)
class OnPolicySetup:
    """The parts from which an on-policy trainer is built.

    Attributes:
        model: The model, with an adapter.
        renderer: Its renderer.
        rows: The rows, in the order in which the trainer reads them.
        config: The options of the method.
        arguments: The arguments that all trainers share.
        callbacks: Callbacks of transformers.
        play: Plays and rewards rows (GRPO).
        teacher: The teacher (distillation).
    """

    model: "PreTrainedModel"
    renderer: ChatRenderer
    rows: Sequence[Row]
    config: Any
    arguments: dict[str, Any]
    callbacks: "list[TrainerCallback]"
    play: Play | None = None
    teacher: "PreTrainedModel | None" = None

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize texts.

        Special tokens that occur in the text of a message are treated as plain text.
        """
        return [self.renderer.token_ids(text) for text in texts]


def build_on_policy_trainer(method: str, setup: OnPolicySetup) -> "Trainer":
    """Build the trainer of the method with a given name in `TRAINERS`.

    Raises:
        SettingsError: TRL refuses the teacher.
    """
    from transformers import PrinterCallback

    config: OnPolicyTraining = setup.config
    # Any token that ends a turn ends what is written.
    setup.model.generation_config.eos_token_id = sorted(setup.renderer.stop_ids)
    arguments = setup.arguments | {
        "max_completion_length": config.max_completion_length,
        "temperature": config.temperature,
        "shuffle_dataset": False,  # a resumed run must read the same rows
        "gradient_accumulation_steps": config.per_device_train_batch_size,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }
    with warnings.catch_warnings():
        # TRL warns that rollout_func and SDFT are experimental. Its version is pinned.
        warnings.simplefilter("ignore")
        try:
            trainer = TRAINERS[method](setup, arguments)
        except ValueError as error:
            raise SettingsError(
                f"TRL's trainer refuses the settings of {method}: {first_line(error)}."
            ) from error
    trainer.remove_callback(PrinterCallback)
    _count_tokens(trainer)
    return trainer


def _count_tokens(trainer: Any) -> None:
    """Count the tokens of each loss, prompt and completion, as TRL's `SFTTrainer` does."""
    compute_loss = trainer.compute_loss
    start_token_count(trainer)

    def compute_and_count(
        model: "PreTrainedModel", inputs: dict[str, Any], *args: object, **kwargs: object
    ) -> Any:
        tokens = inputs["prompt_mask"].sum() + inputs["completion_mask"].sum()
        add_trained_tokens(trainer, int(tokens))
        return compute_loss(model, inputs, *args, **kwargs)

    trainer.compute_loss = compute_and_count


def _build_grpo(setup: OnPolicySetup, arguments: dict[str, object]) -> "Trainer":
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    config, play = setup.config, setup.play
    assert play is not None

    def play_rollouts(prompts: list[str], trainer: object) -> dict[str, object]:
        rollouts = play(
            setup.renderer,
            [setup.rows[int(prompt)] for prompt in prompts],
            partial(sample_completions, trainer),
        )
        return {
            "prompt_ids": [rollout.prompt for rollout in rollouts],
            "completion_ids": [rollout.completion for rollout in rollouts],
            "logprobs": None,
            "env_mask": [[int(is_own) for is_own in rollout.own] for rollout in rollouts],
            "earned": [rollout.reward for rollout in rollouts],
            "figures": [rollout.figures for rollout in rollouts],
        }

    def reward(
        earned: list[float],
        figures: list[dict[str, float]],
        log_metric: Callable[[str, float], None],
        **_: object,
    ) -> list[float]:
        for name in figures[0]:
            log_metric(name, sum(numbers[name] for numbers in figures) / len(figures))
        return earned

    # TRL repeats prompts and hands them to `play_rollouts`; ours are the indices of the rows.
    prompts = [str(row_index) for row_index in range(len(setup.rows))]
    return GRPOTrainer(
        model=setup.model,
        reward_funcs=reward,
        rollout_func=play_rollouts,
        args=GRPOConfig(
            **arguments,
            beta=config.beta,
            num_generations=config.num_generations,
            per_device_train_batch_size=config.num_generations,
        ),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=setup.renderer.tokenizer,
        callbacks=setup.callbacks,
    )


def _read_column(rows: Sequence[Mapping[str, object]], name: str) -> list[object]:
    """Return one of the texts that `on_policy_steps.render_turn` made, for each row."""
    return [row[name] for row in rows]


def _build_sdft(setup: OnPolicySetup, arguments: dict[str, object]) -> "Trainer":
    from datasets import Dataset
    from trl.experimental.sdft import SDFTConfig, SDFTTrainer

    columns = {
        "prompt": _read_column(setup.rows, "asked"),
        "privileged_context": _read_column(setup.rows, "shown"),
    }
    trainer = SDFTTrainer(
        model=setup.model,
        # The teacher has the current weights: a killed run would lose a moving average.
        args=SDFTConfig(
            **arguments,
            teacher_model_kind="live",
            num_generations=1,
            max_prompt_length=None,
            per_device_train_batch_size=1,
        ),
        train_dataset=Dataset.from_dict(columns),
        processing_class=setup.renderer.tokenizer,
        callbacks=setup.callbacks,
    )
    tokenize_self_distillation(trainer, setup.tokenize)
    return trainer


def _build_distillation(setup: OnPolicySetup, arguments: dict[str, object]) -> "Trainer":
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer

    trainer = DistillationTrainer(
        model=setup.model,
        teacher_model=setup.teacher,
        args=DistillationConfig(**arguments, beta=setup.config.beta, per_device_train_batch_size=1),
        train_dataset=Dataset.from_dict({"prompt": _read_column(setup.rows, "asked")}),
        processing_class=setup.renderer.tokenizer,
        callbacks=setup.callbacks,
    )
    tokenize_distillation(trainer, setup.tokenize)
    return trainer


TRAINERS: dict[str, Callable[[OnPolicySetup, dict[str, Any]], "Trainer"]] = {
    "grpo": _build_grpo,
    "sdft": _build_sdft,
    "distill": _build_distillation,
}
