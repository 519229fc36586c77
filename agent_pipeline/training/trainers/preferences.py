"""The losses of DPO and KTO on judged completions, and the trainer that both methods share.

The completions of a pair share a prompt, and an agent's prompts begin with the same tokens. The
rows of an optimizer step are therefore computed as trees of prefixes (`engine.tree_loss`); TRL
computes every prompt twice. The losses and gradients equal those of TRL's `DPOTrainer` and
`KTOTrainer`.

How judged sessions become examples belongs to `training.preference_examples`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agent_pipeline._compat.trl import add_trained_tokens, count_trained_tokens, disable_dropout
from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.engine.prefix_tree import build_prefix_tree, group_units
from agent_pipeline.engine.scoring import compute_losses, trained_logits, without_adapter
from agent_pipeline.engine.tree_loss import move_tensors, row_log_probs, tree_tensors
from agent_pipeline.engine.tree_support import explain_row_by_row
from agent_pipeline.errors import SettingsError
from agent_pipeline.progress import Progress
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.decision_probes import (
    Probe,
    find_fallen_kinds,
    measure_decisions,
)
from agent_pipeline.training.preference_examples import PreferenceExample
from agent_pipeline.training.trainers.common import limit_warmup, make_progress_callback

if TYPE_CHECKING:
    import torch
    from transformers import (
        PreTrainedModel,
        Trainer,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )

SELECT = "select"
"""Name of the log entry that holds the probabilities of the right decisions at a step."""


@dataclass(frozen=True)
class LossAndMetrics:
    """The share of a step's loss that comes from some of its examples, and their metrics."""

    loss: "torch.Tensor"
    metrics: dict[str, float]


class Objective(Protocol):
    """A loss function over judged completions.

    Attributes:
        trained_rows: How many of an example's two rows have a gradient.
    """

    trained_rows: int

    def measure_move(self, causal: "PreTrainedModel", step: Sequence[PreferenceExample]) -> float:
        """Return how far the model has moved away from its reference, if the loss needs it."""

    def compute_loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[PreferenceExample],
        step: Sequence[PreferenceExample],
        move: float,
    ) -> LossAndMetrics:
        """Return the share of an optimizer step's loss that comes from `examples`.

        Args:
            log_probs: Log-probabilities in nats, (examples, trained_rows).
            examples: The examples.
            step: All examples of the step.
            move: The result of `measure_move` for the step.
        """

    def report(
        self,
        examples: Sequence[PreferenceExample],
        log_probs: Sequence[tuple[float, float]],
    ) -> dict[str, Any]:
        """Return how well held-out examples are ranked, given their rows' log-probabilities."""


@dataclass(frozen=True)
class Dpo:
    """Direct preference optimization (Rafailov et al.

    2023) with an additional loss on the chosen turns.

    The loss is −w·log σ(β(r_chosen − r_rejected)), where r is a completion's log-probability minus
    the reference's, plus `sft_weight` times the mean loss of a chosen token (RPO, Pang et al.
    2024). TRL: `DPOTrainer` with `loss_type=["sigmoid", "sft"]`. An example counts by its weight.

    Attributes:
        beta: How strongly the adapter is held near its reference.
        sft_weight: The weight of the chosen tokens' own loss.
    """

    beta: float
    sft_weight: float
    trained_rows = 2

    def measure_move(self, causal: "PreTrainedModel", step: Sequence[PreferenceExample]) -> float:
        """Return 0, because DPO compares two completions of one prompt, so the move cancels out."""
        return 0.0

    def compute_loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[PreferenceExample],
        step: Sequence[PreferenceExample],
        move: float,
    ) -> LossAndMetrics:
        """Return the mean loss over a step's pairs, plus the mean loss over its chosen tokens."""
        from torch.nn.functional import logsigmoid

        weights = log_probs.new_tensor([example.weight for example in examples])
        references = log_probs.new_tensor([example.reference for example in examples])
        rewards = self.beta * (log_probs - references)
        margins = rewards[:, 0] - rewards[:, 1]
        chosen_tokens = sum(sum(example.rows[0].trained) for example in step)
        anchor = -(weights * log_probs[:, 0]).sum() / chosen_tokens
        loss = -(weights * logsigmoid(margins)).sum() / len(step) + self.sft_weight * anchor
        metrics = {
            "reward_margin": float(margins.detach().sum()) / len(step),
            "reward_accuracy": float((margins.detach() > 0).sum()) / len(step),
        }
        return LossAndMetrics(loss, metrics)

    def report(
        self,
        examples: Sequence[PreferenceExample],
        log_probs: Sequence[tuple[float, float]],
    ) -> dict[str, Any]:
        """Return how often and how far the chosen turn is more probable than the rejected turn.

        `reward_accuracy` is the share of pairs in which the chosen turn gained more probability
        than the rejected turn. `chosen_is_likelier` is the share in which it has the higher
        probability.
        """
        count = len(examples)
        gains = [
            chosen - example.reference[0] - rejected + example.reference[1]
            for example, (chosen, rejected) in zip(examples, log_probs, strict=True)
        ]
        before = sum(example.reference[0] > example.reference[1] for example in examples)
        after = sum(chosen > rejected for chosen, rejected in log_probs)
        return {
            "pairs": count,
            "reward_accuracy": sum(gain > 0 for gain in gains) / count,
            "reward_margin": self.beta * sum(gains) / count,
            "chosen_is_likelier": {"before": before / count, "after": after / count},
        }


@dataclass(frozen=True)
class Kto:
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024): each completion is good or bad.

    The loss is w·(1 − σ(±(βr − βz))), with + for good and − for bad completions. r is a
    completion's log-probability minus the reference's. z is how far the model has moved, measured
    on completions that follow other prompts than their own. TRL: `KTOTrainer`.

    Attributes:
        beta: How strongly the adapter is held near its reference.
    """

    beta: float
    trained_rows = 1

    def measure_move(self, causal: "PreTrainedModel", step: Sequence[PreferenceExample]) -> float:
        """Return an estimate, at least 0, of the divergence from the reference model in nats."""
        losses = compute_losses(causal, [example.rows[1] for example in step])
        gains = [
            -(loss.loss or 0.0) * loss.trained_tokens - example.reference[1]
            for loss, example in zip(losses, step, strict=True)
        ]
        return max(0.0, sum(gains) / len(gains))

    def compute_loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[PreferenceExample],
        step: Sequence[PreferenceExample],
        move: float,
    ) -> LossAndMetrics:
        """Return the mean KTO loss over the completions of a step."""
        weights = log_probs.new_tensor([example.weight for example in examples])
        signs = log_probs.new_tensor([1.0 if example.good else -1.0 for example in examples])
        references = log_probs.new_tensor([example.reference[0] for example in examples])
        gains = log_probs[:, 0] - references
        rewards = signs * self.beta * (gains - move)
        loss = (weights * (1 - rewards.sigmoid())).sum() / len(step)
        metrics = {
            "reward": float(rewards.detach().sum()) / len(step),
            "moved": move * len(examples) / len(step),
        }
        return LossAndMetrics(loss, metrics)

    def report(
        self,
        examples: Sequence[PreferenceExample],
        log_probs: Sequence[tuple[float, float]],
    ) -> dict[str, Any]:
        """Return how often good completions gained more than bad completions (`reward_auc`).

        `reward_auc` is None if there are no good or no bad completions.
        """
        good_gains: list[float] = []
        bad_gains: list[float] = []
        for example, row_log_probs_now in zip(examples, log_probs, strict=True):
            gain = row_log_probs_now[0] - example.reference[0]
            (good_gains if example.good else bad_gains).append(gain)
        wins = sum((good > bad) + 0.5 * (good == bad) for good in good_gains for bad in bad_gains)
        pairs = len(good_gains) * len(bad_gains)
        return {
            "good": len(good_gains),
            "bad": len(bad_gains),
            "reward_auc": wins / pairs if pairs else None,
        }


def build_preference_trainer(
    model: "PreTrainedModel",
    examples: Sequence[PreferenceExample],
    objective: Objective,
    arguments: "TrainingArguments",
    progress: Progress,
    callbacks: "Sequence[TrainerCallback]" = (),
) -> "Trainer":
    """Return a trainer for all model weights that need a gradient.

    Dropout is switched off, as in TRL: it would blur the comparison with the reference.

    Args:
        model: The model.
        examples: The examples, with their reference.
        objective: The loss.
        arguments: `per_device_train_batch_size` examples make an optimizer step.
        progress: Is called after each step.
        callbacks: Callbacks of transformers.

    Raises:
        SettingsError: `arguments` accumulate gradients over several batches.
    """
    from transformers import PrinterCallback, Trainer

    if arguments.gradient_accumulation_steps != 1:
        raise SettingsError(
            "A step of a preference trainer is one batch: set `gradient_accumulation_steps` to 1, "
            "and raise `per_device_train_batch_size`."
        )
    causal = without_adapter(model)
    longest = max(len(row.input_ids) for example in examples for row in example.rows)
    as_trees = explain_row_by_row(causal, longest) is None
    arguments.remove_unused_columns = False

    class PreferenceTrainer(Trainer):
        """A trainer whose batches consist of preference examples."""

        _total_train_tokens = 0

        def training_step(
            self,
            model: "torch.nn.Module",
            inputs: dict[str, Any],
            num_items_in_batch: "torch.Tensor | int | None" = None,
        ) -> "torch.Tensor":
            import torch

            step: list[PreferenceExample] = inputs["examples"]
            move = objective.measure_move(causal, step)
            model.train()
            trained_rows = [example.rows[: objective.trained_rows] for example in step]
            groups = [[index] for index in range(len(step))]
            if as_trees:
                groups = group_units(trained_rows)
            step_loss = torch.zeros((), device=self.args.device)
            self._step_metrics: dict[str, float] = {}
            for group in groups:
                rows = [row for index in group for row in trained_rows[index]]
                with self.compute_loss_context_manager():
                    log_probs = _compute_log_probs(causal, rows, as_trees)
                    part = objective.compute_loss(
                        log_probs.view(len(group), -1),
                        [step[index] for index in group],
                        step,
                        move,
                    )
                self.accelerator.backward(part.loss)
                step_loss += part.loss.detach()
                for name, value in part.metrics.items():
                    self._step_metrics[name] = self._step_metrics.get(name, 0.0) + value
            add_trained_tokens(
                self, sum(len(row.input_ids) for rows in trained_rows for row in rows)
            )
            return step_loss

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs:
                logs |= {"num_tokens": count_trained_tokens(self), **self._step_metrics}
            super().log(logs, start_time)

    disable_dropout(model)
    speed_up_linear_modules(model)
    trainer = PreferenceTrainer(
        model=model,
        args=arguments,
        train_dataset=list(examples),
        data_collator=lambda batch: {"examples": batch},
        callbacks=[*callbacks, make_progress_callback(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    limit_warmup(trainer)
    return trainer


def _compute_log_probs(
    causal: "PreTrainedModel", rows: Sequence[Encoded], as_tree: bool
) -> "torch.Tensor":
    """Return the log-probability of each row in nats, (rows,), with gradients.

    The rows are computed as one tree, or one by one if the model does not support trees.
    """
    import torch
    from torch.nn.functional import cross_entropy

    if as_tree:
        tensors = tree_tensors(build_prefix_tree(rows), causal.device.type)
        return row_log_probs(causal, move_tensors(tensors, causal.device), len(rows))
    log_probs = []
    for row in rows:
        logits, targets = trained_logits(causal, row)
        log_probs.append(-cross_entropy(logits.float(), targets, reduction="sum"))
    return torch.stack(log_probs)


def make_fall_callback(
    model: "PreTrainedModel", probes: Sequence[Probe], max_fall: float
) -> "TrainerCallback":
    """Return a callback that stops training when one kind of decision gets worse.

    The callback measures at every step that would be saved. After a fall the step is not saved, so
    the last checkpoint is the last good one. The measurements are in the log history, so a resumed
    run has them too.

    Args:
        model: The model before training.
        probes: Turns whose decisions are measured.
        max_fall: Largest fall of the mean probability of the right decision, for one kind.
    """
    from transformers import TrainerCallback

    before = measure_decisions(model, probes)

    class FallCallback(TrainerCallback):
        """A callback that stops training when one kind of decision gets worse.

        Attributes:
            before: The probability of right decisions before training, by kind.
            measured: The last measurement.
            fallen: The kinds that have fallen too far.
        """

        def __init__(self) -> None:
            self.before = before
            self.measured = before
            self.fallen: list[str] = []

        def on_step_end(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            model: "PreTrainedModel | None" = None,
            **kwargs: object,
        ) -> None:
            if not control.should_save or model is None:
                return
            self.measured = measure_decisions(model, probes)
            state.log_history.append({"step": state.global_step, SELECT: self.measured})
            self.fallen = find_fallen_kinds(before, self.measured, probes, max_fall)
            if self.fallen:
                control.should_save, control.should_training_stop = False, True

    return FallCallback()
