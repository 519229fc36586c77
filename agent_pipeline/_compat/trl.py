"""Uses of private parts of TRL's trainers: token counters, prompts, and generation.

The trainers that use these belong to `training.trainers`. TRL is pinned to one minor version.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer

TokenizePrompts = Callable[[Sequence[str]], list[list[int]]]


def start_token_count(trainer: "Trainer") -> None:
    """Give a trainer the counter of trained tokens that `SFTTrainer` has, starting at 0."""
    trainer._total_train_tokens = 0


def add_trained_tokens(trainer: "Trainer", tokens: int) -> None:
    """Increase the counter of trained tokens, and log it as `num_tokens`, as `SFTTrainer` does.

    `SFTTrainer` counts in `compute_loss`, which our trainers do not call. TRL's on-policy trainers
    count what was generated, or nothing.
    """
    trainer._total_train_tokens += tokens
    if hasattr(trainer, "_metrics"):
        trainer._metrics["train"]["num_tokens"] = [trainer._total_train_tokens]


def count_trained_tokens(trainer: "Trainer") -> int:
    """Return the number of trained tokens so far."""
    return int(trainer._total_train_tokens)


def sample_completions(trainer: Any, prompts: Sequence[list[int]]) -> list[list[int]]:
    """Let the model of a `GRPOTrainer` write a completion for each prompt, and return the tokens.

    Inside `rollout_func` there is no public way to sample from the current weights with the
    trainer's own temperature and stop tokens.
    """
    completions: list[list[int]] = trainer._generate_single_turn(list(prompts), None, {}, 1)[0]
    return completions


def tokenize_self_distillation(trainer: Any, tokenize: TokenizePrompts) -> None:
    """Make an `SDFTTrainer` use our tokenized prompts, and our texts for the teacher.

    TRL renders prompts by itself, and reads special tokens in the text of a message as special
    tokens. TRL also composes the teacher's prompt from the prompt and the demonstration; our data
    set holds the finished text.
    """
    from trl.experimental.sdft.sdft_trainer import DemonstrationTeacherContextBuilder

    class FinishedTeacherPrompts(DemonstrationTeacherContextBuilder):
        """A builder that takes the teacher prompts from the column `privileged_context`."""

        def _compose_teacher_prompt(self, prompt: str, privileged_context: str) -> str:
            return privileged_context

    trainer.teacher_context_builder = FinishedTeacherPrompts(trainer)
    trainer._tokenize_prompts = tokenize


def tokenize_distillation(trainer: Any, tokenize: TokenizePrompts) -> None:
    """Make a `DistillationTrainer` use our tokenized prompts.

    TRL reads special tokens in the text of a message as special tokens.
    """
    trainer._tokenize_prompts = lambda prompts: (tokenize(prompts), None, {})


def disable_dropout(model: object) -> None:
    """Switch off all dropout of a model, as TRL's preference trainers do."""
    from trl.trainer.utils import disable_dropout_in_model

    disable_dropout_in_model(model)
