"""Learning from preferences and rewards: one configuration, as TRL's own for each algorithm that it
holds stable.

| `algorithm` | trainer | learns from |
|---|---|---|
| `dpo` | that of `dpo_adapter`: TRL's loss, the assistant's tokens alone | `prompt`, `chosen`, `rejected`: the table `preference_dataset` |
| `kto` | that of `kto_adapter` | `prompt`, `completion`, `label`: the table `kto_dataset` |
| `grpo` | that of `grpo_adapter` | conversations (`messages`): a world named as `reward_model`, else the logged turns |
| `grpo`, `rloo` | `GRPOTrainer`, `RLOOTrainer` | `prompt`, and a reward of what the model answers |
| `ppo` | `GRPOTrainer` | the same; `PPO` says what that is and isn't |

`dpo` and `kto` on plain texts, which have no turns, take TRL's own trainers.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from agent_pipeline.compat.models import base_model
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.chat_templates import choose_template
from agent_pipeline.models.device import probe_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.training.config import GrpoTraining

if TYPE_CHECKING:
    from transformers import TrainingArguments

Algorithm = Literal["ppo", "dpo", "kto", "grpo", "rloo"]
Reward = str | Callable[..., Any] | Sequence[str | Callable[..., Any]]
"""What TRL takes as `reward_funcs`: a reward model's name or path, a function of completions, or
several.
"""

PPO = (
    "The installed TRL has no PPO trainer, so algorithm='ppo' becomes its GRPO: PPO's clipped "
    "surrogate, several steps a batch, with the "
    "mean reward of a group of answers as the baseline; there is no value model, and no per-step "
    "advantage for gamma to discount."
)

USUAL_GAMMA = 0.99
PPO_EPOCHS = 4

_TRAINERS = {"ppo": "GRPO", "dpo": "DPO", "kto": "KTO", "grpo": "GRPO", "rloo": "RLOO"}
_REWARDED = ("ppo", "grpo", "rloo")


@dataclass(frozen=True)
class RLTrainingConfig:
    """How a model learns from preferences or rewards.

    `kl_coef` holds the model near the one that it was (TRL's `beta`). `reward_model` judges what
    the model answers; `dpo` and `kto` have none: their judgments are in the data. `gamma` discounts
    the rewards of later steps; every algorithm here has one reward an answer, so it changes nothing
    at its default or 1, and another value is refused.

    Raises ArgumentError (a ValueError).
    """

    algorithm: Algorithm = "ppo"
    reward_model: Reward | None = None
    kl_coef: float = 0.1
    gamma: float = USUAL_GAMMA

    def __post_init__(self) -> None:
        if self.algorithm not in get_args(Algorithm):
            raise ArgumentError(
                f"There is no algorithm {self.algorithm!r}: choose one of "
                f"{', '.join(get_args(Algorithm))}."
            )
        if not 0 <= self.kl_coef < float("inf"):
            raise ArgumentError(f"The kl_coef is {self.kl_coef}: give a number of 0 or more.")
        if self.algorithm in ("dpo", "kto"):
            if self.kl_coef == 0:
                raise ArgumentError(
                    f"The kl_coef is 0, with which {self.algorithm} learns nothing: give a number "
                    f"above 0."
                )
            if self.reward_model is not None:
                raise ArgumentError(
                    f"{self.algorithm} learns from judgments in its data and asks no reward_model: "
                    f"leave it out."
                )
        if self.gamma not in (USUAL_GAMMA, 1):
            raise ArgumentError(
                f"The gamma is {self.gamma}: discounting needs a reward for each step, and "
                f"{self.algorithm} has one an answer; set it to 1."
            )

    @property
    def trainer_class(self) -> Any:
        import trl

        return getattr(trl, f"{_TRAINERS[self.algorithm]}Trainer")

    def to_trl_config(
        self, output_dir: str = "./rl_output", **options: object
    ) -> "TrainingArguments":
        """TRL's configuration; `options` are its own fields. bfloat16 only where the device has
        units for it.

        Warns (`PPO`) that `ppo` is not a whole PPO. Raises ArgumentError where a reward is needed
        and there is none.
        """
        import trl

        if self.algorithm in _REWARDED and self.reward_model is None:
            raise ArgumentError(
                f"{self.algorithm} needs a reward_model: give a model's name, or a function of "
                f"completions."
            )
        if self.algorithm == "ppo":
            warnings.warn(PPO, stacklevel=2)
            options = {"num_iterations": PPO_EPOCHS, "loss_type": "bnpo", **options}
        device = probe_device()
        fixed = {
            "output_dir": output_dir,
            "beta": self.kl_coef,
            "bf16": device.bf16,
            "use_cpu": device.name == "cpu",
            "dataloader_pin_memory": device.name != "cpu",
            "report_to": "none",
        }
        return getattr(trl, f"{_TRAINERS[self.algorithm]}Config")(**(fixed | options))

    def trainer(
        self,
        model: Any,
        train_dataset: Any,
        tokenizer: Any,
        output_dir: str = "./rl_output",
        **options: Any,
    ) -> Any:
        """The trainer over a model (or its name) and a data set of the columns that the algorithm
        learns from.

        `dpo` and `kto` take chats as `dpo_adapter` and `kto_adapter` take them, with the model as
        it is now as the reference; `grpo` takes conversations as `grpo_adapter` does, and then
        `options` are that asset's.

        Raises as above, and DataError where no row can be trained on.
        """
        first: Mapping[str, Any] = next(iter(train_dataset), {})
        if self.algorithm == "grpo" and "messages" in first:
            return self._played(model, judged_rows(train_dataset), tokenizer, output_dir, options)
        if self.algorithm in ("dpo", "kto") and not isinstance(first.get("prompt"), str):
            return self._judged(model, judged_rows(train_dataset), tokenizer, output_dir, options)
        rewards = {"reward_funcs": self.reward_model} if self.algorithm in _REWARDED else {}
        return self.trainer_class(
            model=model,
            args=self.to_trl_config(output_dir, **options),
            train_dataset=train_dataset,
            processing_class=tokenizer,
            **rewards,
        )

    def _judged(
        self,
        model: object,
        rows: list[DatasetRow],
        tokenizer: object,
        output_dir: str,
        options: dict[str, object],
    ) -> Any:
        from agent_pipeline.training.preference_examples import set_reference
        from agent_pipeline.training.preference_steps import METHODS
        from agent_pipeline.training.trainers.preferences import (
            Dpo,
            Kto,
            build_preference_trainer,
        )

        arguments: Any = self.to_trl_config(
            output_dir, **({"gradient_accumulation_steps": 1} | options)
        )
        renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
        encoded = METHODS[self.algorithm].encode(
            renderer, rows, arguments.max_length or sys.maxsize, silent
        )
        if not encoded.rows:
            raise DataError(
                f"None of {len(rows)} rows can be trained on. {encoded.first_dropped}".rstrip()
            )
        if isinstance(model, str):
            model = load_model(base_model(model), probe_device())
        anchor = dict(
            zip(
                getattr(arguments, "loss_type", ()),
                getattr(arguments, "loss_weights", None) or repeat(1.0),
                strict=False,
            )
        )
        objective = (
            Dpo(self.kl_coef, anchor.get("sft", 0.0))
            if self.algorithm == "dpo"
            else Kto(self.kl_coef)
        )
        return build_preference_trainer(
            model, set_reference(model, encoded.rows), objective, arguments, silent
        )

    def _played(
        self,
        model: Any,
        rows: list[DatasetRow],
        tokenizer: Any,
        output_dir: str,
        options: dict[str, Any],
    ) -> Any:
        from agent_pipeline.evaluation.rollouts import practice
        from agent_pipeline.training.config import fill_size_defaults
        from agent_pipeline.training.on_policy_steps import build_trainer_over_epochs
        from agent_pipeline.training.trainers.common import (
            make_progress_callback,
            make_shared_arguments,
        )
        from agent_pipeline.training.trainers.on_policy import OnPolicySetup

        if self.reward_model is not None and not isinstance(self.reward_model, str):
            raise ArgumentError(
                "grpo on conversations is rewarded by a world or by the logged turns: name the "
                "world as package.module:Class."
            )
        ours = {GrpoTraining.other_names.get(name, name): value for name, value in options.items()}
        device, config = probe_device(), GrpoTraining(**ours, beta=self.kl_coef)
        practised = practice(rows, config, self.reward_model or "")
        if isinstance(model, str):
            model = load_model(base_model(model), device)
        config = GrpoTraining(
            **fill_size_defaults(config.model_dump(), "grpo", model.num_parameters())
        )
        arguments = make_shared_arguments(
            config, device, Path(output_dir), 0, config.max_length
        ) | {"save_strategy": "no"}
        renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
        return build_trainer_over_epochs(
            "grpo",
            OnPolicySetup(
                model,
                renderer,
                practised.rows,
                config,
                arguments,
                [make_progress_callback(silent)],
                practised.play,
            ),
        )


def judged_rows(data: Iterable[Mapping[str, Any]]) -> list[DatasetRow]:
    """Pairs or judged completions of the split `train`, with the names of our tables; a record
    without a split counts as one of it.
    """
    rows = [
        {
            **dict.fromkeys(("row_id", "session_id", "task_key"), str(n)),
            "split": "train",
            "tools": None,
            **row,
        }
        for n, row in enumerate(data)
    ]
    return [cast(DatasetRow, row) for row in rows if row["split"] == "train"]
