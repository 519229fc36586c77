"""Training from preferences and rewards, with one configuration for several algorithms.

| algorithm | trainer | columns of the data |
|---|---|---|
| `dpo` | that of `dpo_adapter` | `prompt`, `chosen`, `rejected`, as in `preference_dataset` |
| `kto` | that of `kto_adapter` | `prompt`, `completion`, `label`, as in `kto_dataset` |
| `grpo` | that of `grpo_adapter` | `messages` |
| `grpo`, `rloo` | TRL's trainers | `prompt` |
| `ppo` | TRL's GRPO trainer | `prompt` |

With `messages`, the reward is a world (`reward_model`) or the logged turns. With `prompt`, the
reward judges the model's answers. If `dpo` and `kto` get texts instead of chats, they use TRL's
trainers.
"""

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from agent_pipeline.compat.models import find_base_model
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
"""The `reward_funcs` of TRL: a reward model's name, a function of completions, or a list."""
Row: TypeAlias = DatasetRow
Options = dict[str, Any]

PPO_WARNING = (
    "TRL has no PPO trainer, so algorithm='ppo' uses GRPO. GRPO has the clipped loss of PPO, but "
    "no value model. Its baseline is the mean reward of a group of answers. The option gamma has "
    "no effect."
)
DEFAULT_GAMMA = 0.99
PPO_OPTIONS: dict[str, Any] = {"num_iterations": 4, "loss_type": "bnpo"}

TRL_NAMES = {"ppo": "GRPO", "dpo": "DPO", "kto": "KTO", "grpo": "GRPO", "rloo": "RLOO"}
REWARDED = ("ppo", "grpo", "rloo")


@dataclass(frozen=True)
class RLTrainingConfig:
    """Options of training from preferences or rewards.

    Attributes:
        algorithm: The algorithm.
        reward_model: The reward of an answer. `dpo` and `kto` have no reward.
        kl_coef: How strongly the model is held near the model before training (TRL's `beta`).
        gamma: The discount of rewards. Each answer has one reward, so nothing is discounted, and
            only the default and 1 are accepted.

    Raises:
        ArgumentError: An option is invalid. It is a ValueError.
    """

    algorithm: Algorithm = "ppo"
    reward_model: Reward | None = None
    kl_coef: float = 0.1
    gamma: float = DEFAULT_GAMMA

    def __post_init__(self) -> None:
        algorithms = get_args(Algorithm)
        if self.algorithm not in algorithms:
            raise ArgumentError(
                f"The algorithm {self.algorithm!r} does not exist: choose one of "
                f"{', '.join(algorithms)}."
            )
        if not 0 <= self.kl_coef < float("inf"):
            raise ArgumentError(f"The option `kl_coef` is {self.kl_coef}: set it to 0 or more.")
        if self.algorithm not in REWARDED and self.kl_coef == 0:
            raise ArgumentError(
                f"The option `kl_coef` is 0, so {self.algorithm} would learn nothing: set it to "
                "more than 0."
            )
        if self.algorithm not in REWARDED and self.reward_model is not None:
            raise ArgumentError(
                f"The algorithm {self.algorithm} learns from judgments in its data and does not "
                "use `reward_model`: leave it out."
            )
        if self.gamma not in (DEFAULT_GAMMA, 1):
            raise ArgumentError(
                f"The option `gamma` is {self.gamma}, but {self.algorithm} gives one reward per "
                "answer and cannot discount rewards: set `gamma` to 1."
            )

    @property
    def trainer_class(self) -> Any:
        """TRL's trainer class for the algorithm."""
        import trl

        return getattr(trl, f"{TRL_NAMES[self.algorithm]}Trainer")

    def to_trl_config(
        self, output_dir: str = "./rl_output", **options: object
    ) -> "TrainingArguments":
        """Convert the options into the algorithm's TRL configuration.

        The configuration uses bfloat16 only if the device supports it. For `ppo`, a warning
        explains how GRPO differs from PPO.

        Args:
            output_dir: The directory of the model.
            **options: Options of TRL.

        Raises:
            ArgumentError: The algorithm needs a reward, and there is none.
        """
        import trl

        if self.algorithm in REWARDED and self.reward_model is None:
            raise ArgumentError(
                f"The algorithm {self.algorithm} needs a `reward_model`: give the name of a "
                "model, or a function of completions."
            )
        if self.algorithm == "ppo":
            warnings.warn(PPO_WARNING, stacklevel=2)
            options = PPO_OPTIONS | options
        device = probe_device()
        defaults = {
            "output_dir": output_dir,
            "beta": self.kl_coef,
            "bf16": device.bf16,
            "use_cpu": device.name == "cpu",
            "dataloader_pin_memory": device.name != "cpu",
            "report_to": "none",
        }
        return getattr(trl, f"{TRL_NAMES[self.algorithm]}Config")(**(defaults | options))

    def trainer(
        self,
        model: object,
        train_dataset: Any,
        tokenizer: object,
        output_dir: str = "./rl_output",
        **options: object,
    ) -> Any:
        """Create the algorithm's trainer for a model.

        The model before training is the reference.

        Args:
            model: The model, or its name.
            train_dataset: Data with the columns of the algorithm.
            tokenizer: The tokenizer.
            output_dir: The directory of the model.
            **options: Options of TRL; for `grpo` on conversations, settings of `grpo_adapter`.

        Raises:
            ArgumentError: The algorithm needs a reward, and there is none.
            DataError: No row can be trained on.
        """
        first_row: Mapping[str, object] = next(iter(train_dataset), {})
        if self.algorithm == "grpo" and "messages" in first_row:
            rows = add_row_defaults(train_dataset)
            return self._build_grpo_trainer(model, rows, tokenizer, output_dir, options)
        is_text = isinstance(first_row.get("prompt"), str)
        if self.algorithm not in REWARDED and not is_text:
            rows = add_row_defaults(train_dataset)
            return self._build_preference_trainer(model, rows, tokenizer, output_dir, options)
        rewards = {"reward_funcs": self.reward_model} if self.algorithm in REWARDED else {}
        return self.trainer_class(
            model=model,
            args=self.to_trl_config(output_dir, **options),
            train_dataset=train_dataset,
            processing_class=tokenizer,
            **rewards,
        )

    def _build_preference_trainer(
        self, model: object, rows: list[Row], tokenizer: object, output_dir: str, options: Options
    ) -> Any:
        """Create the trainer for `dpo` or `kto` with the given TRL options."""
        from agent_pipeline.training.preference_examples import set_reference
        from agent_pipeline.training.preference_steps import METHODS
        from agent_pipeline.training.trainers.preferences import (
            Dpo,
            Kto,
            Objective,
            build_preference_trainer,
        )

        options = {"gradient_accumulation_steps": 1} | options
        arguments: Any = self.to_trl_config(output_dir, **options)
        renderer = ChatRenderer(tokenizer, choose_template(tokenizer))
        encode = METHODS[self.algorithm].encode
        encoded = encode(renderer, rows, arguments.max_length or sys.maxsize, silent)
        if not encoded.rows:
            raise DataError(
                f"None of {len(rows)} rows can be used for training. "
                f"{encoded.first_dropped}".rstrip()
            )
        objective: Objective
        if self.algorithm == "dpo":
            weights = getattr(arguments, "loss_weights", None) or repeat(1.0)
            loss_weights = dict(zip(getattr(arguments, "loss_type", ()), weights, strict=False))
            objective = Dpo(self.kl_coef, loss_weights.get("sft", 0.0))
        else:
            objective = Kto(self.kl_coef)
        model = _load_named_model(model)
        examples = set_reference(model, encoded.rows)
        return build_preference_trainer(model, examples, objective, arguments, silent)

    def _build_grpo_trainer(
        self, model: object, rows: list[Row], tokenizer: object, output_dir: str, options: Options
    ) -> Any:
        """Create the trainer for `grpo` with the given settings of `grpo_adapter`."""
        from agent_pipeline.evaluation.rollouts import practice
        from agent_pipeline.training.on_policy_steps import build_trainer_over_epochs
        from agent_pipeline.training.size_defaults import fill_size_defaults
        from agent_pipeline.training.trainers.common import (
            make_progress_callback,
            make_shared_arguments,
        )
        from agent_pipeline.training.trainers.on_policy import OnPolicySetup

        if self.reward_model is not None and not isinstance(self.reward_model, str):
            raise ArgumentError(
                "If grpo trains on conversations, its reward comes from a world or from the "
                "logged turns: set `reward_model` to a world as `package.module:Class`, or leave "
                "it out."
            )
        names = GrpoTraining.other_names
        settings = {names.get(name, name): value for name, value in options.items()}
        config = GrpoTraining(**settings, beta=self.kl_coef)
        practised = practice(rows, config, self.reward_model or "")
        loaded_model = _load_named_model(model)
        filled = fill_size_defaults(config.model_dump(), "grpo", loaded_model.num_parameters())
        config = GrpoTraining(**filled)
        arguments = make_shared_arguments(
            config, probe_device(), Path(output_dir), 0, config.max_length
        )
        setup = OnPolicySetup(
            model=loaded_model,
            renderer=ChatRenderer(tokenizer, choose_template(tokenizer)),
            rows=practised.rows,
            config=config,
            arguments=arguments | {"save_strategy": "no"},
            callbacks=[make_progress_callback(silent)],
            play=practised.play,
        )
        return build_trainer_over_epochs("grpo", setup)


def _load_named_model(model: Any) -> Any:
    """Return a model unchanged, or load the model that has a given name."""
    return load_model(find_base_model(model), probe_device()) if isinstance(model, str) else model


def add_row_defaults(data: Iterable[Mapping[str, object]]) -> list[Row]:
    """Return the rows of the split `train`. Rows without ids get ids.

    A row without a split belongs to `train`.
    """
    rows: list[Row] = []
    for index, row in enumerate(data):
        ids = dict.fromkeys(("row_id", "session_id", "task_key"), str(index))
        rows.append(cast(Row, {**ids, "split": "train", "tools": None, **row}))
    return [row for row in rows if row["split"] == "train"]
