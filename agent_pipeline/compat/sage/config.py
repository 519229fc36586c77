"""The options and results of a training run, with the names of SAGE.

The options of the assets belong to `config`, and the trainer to `agent`.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from agent_pipeline.compat.sage.coresets import CoresetSelector
from agent_pipeline.selection.buffer import OnlineContinualLearner
from agent_pipeline.training.config import TrainingConfig

DEFAULT_CORESET_SIZE = 1000


@dataclass(frozen=True)
class AgentSFTConfig:
    """Options of a training run.

    Attributes:
        base_model: The base model.
        train_data: A file, a dataset, or a list of rows or trajectories; see `compat.samples`.
        eval_data: Held-out data in the same forms. It may share no conversation with `train_data`.
        output_dir: The directory of the run. The model is in its folder `model`.
        learning_rate: The default is meant for training all weights. A rate for LoRA is usually
            ten to fifty times higher.
        max_seq_length: The longest row, in tokens.
        use_coreset_selection: Whether a coreset is trained on. If its strategy needs losses, they
            are those of the base model.
        coreset_target_size: Rows of the coreset; None for half of the rows, at most 1,000.
        use_online_continual: Whether the rows are a stream of batches, each mixed with rows of
            earlier batches. The replay buffer stays in `output_dir`, so that the next training run
            replays the rows of this run.
        continual_replay_ratio: The share of replayed rows.
        max_steps: The largest number of steps; 0 for no limit.

    Raises:
        SettingsError: An option is out of range, or contradicts another option.
    """

    base_model: str
    train_data: object
    eval_data: object = None
    output_dir: str = "./agent_sft_output"
    num_epochs: float = 3
    batch_size: int = 8
    learning_rate: float = 2e-5
    gradient_accumulation_steps: int = 4
    max_seq_length: int = 2048
    use_lora: bool = True
    lora_r: int = 16
    lora_alpha: int = 32
    use_dora: bool = False
    use_lora_plus: bool = False
    lora_plus_lr_ratio: float = 16.0
    use_coreset_selection: bool = False
    coreset_strategy: str = "hybrid"
    coreset_target_size: int | None = None
    use_online_continual: bool = False
    continual_buffer_size: int = 2048
    continual_replay_ratio: float = 0.25
    max_steps: int = 0
    seed: int = 42

    def __post_init__(self) -> None:
        self.make_training_config()
        if self.use_coreset_selection:
            self.make_selector(2 * DEFAULT_CORESET_SIZE)
        if self.use_online_continual:
            self.make_learner()

    def make_training_config(self) -> TrainingConfig:
        """Return the options under the names of `training`."""
        return TrainingConfig.translated({**vars(self), "in_order": self.use_online_continual})

    def make_selector(self, row_count: int) -> CoresetSelector:
        """Return the coreset selector that chooses from `row_count` rows."""
        size = self.coreset_target_size
        if size is None:
            size = min(DEFAULT_CORESET_SIZE, math.ceil(row_count / 2))
        return CoresetSelector(self.coreset_strategy, size, seed=self.seed)

    def make_learner(self) -> OnlineContinualLearner:
        """Return an empty replay buffer."""
        return OnlineContinualLearner(
            self.continual_buffer_size, self.continual_replay_ratio, seed=self.seed
        )


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run.

    Attributes:
        model_path: The directory of the model.
        final_loss: The loss of the last step, in nats per trained token.
        eval_loss: The loss on `eval_data`; None without `eval_data`.
        steps: The number of steps.
        counts: `records`, the `rows` of them, the rows of the `coreset`, the `replayed` rows, and
            the `trained` rows.
        report: The content of `training.json`.
    """

    model_path: str
    final_loss: float
    eval_loss: float | None
    steps: int
    counts: dict[str, int]
    report: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class EvalResult:
    """The evaluation figures of a model on turns of its agent.

    Attributes:
        accuracy: The share of turns that are right: a call by its name and arguments, an answer by
            its words.
        loss: The loss in nats per trained token.
        num_samples: The number of turns.
        details: Further figures, and every turn with the model's reply (`samples`).
    """

    accuracy: float
    loss: float | None
    num_samples: int
    details: dict[str, Any] = field(repr=False)
