"""Training on judged completions: what DPO and KTO have in common.

A pair's completions share a prompt, and an agent's prompts begin alike, so the rows of an optimizer step are computed as trees of prefixes
(`trainers.tree`), where TRL computes every prompt twice. The objectives are TRL's, to the same loss and gradients.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from agent_pipeline.engine.packed_linear import fast_products
from agent_pipeline.engine.prefix_tree import prefix_tree
from agent_pipeline.engine.scoring import causal_of, takes_trees, trained_logits
from agent_pipeline.engine.tree_loss import grouped, row_log_probs, tree_tensors
from agent_pipeline.errors import SettingsError
from agent_pipeline.progress import Progress
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.decision_probes import Probe, decision_probabilities, fallen
from agent_pipeline.training.preference_examples import Example
from agent_pipeline.training.trainers.common import let_a_step_train, reporting

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
"""The entry of the log history that holds the probabilities of right decisions at a step."""


class Objective(Protocol):
    """A loss over judged completions. `trained_rows` of an example's two rows have a gradient."""

    trained_rows: int

    def moved(self, causal: "PreTrainedModel", step: Sequence[Example]) -> float:
        """How far the model has moved from its reference, where the loss needs to know."""

    def loss(
        self,
        log_probs: "torch.Tensor",
        examples: Sequence[Example],
        step: Sequence[Example],
        moved: float,
    ) -> tuple["torch.Tensor", dict[str, float]]:
        """The share of `examples` in the loss of their optimizer step, and in its metrics; `log_probs` is (examples, trained_rows)."""

    def figures(
        self, examples: Sequence[Example], log_probs: Sequence[tuple[float, float]]
    ) -> dict[str, Any]:
        """How well held-out examples are ranked."""


def preference_trainer(
    model: "PreTrainedModel",
    examples: Sequence[Example],
    objective: Objective,
    arguments: "TrainingArguments",
    progress: Progress,
    callbacks: "Sequence[TrainerCallback]" = (),
) -> "Trainer":
    """A trainer of whatever weights of the model want a gradient; the examples have their reference already.

    `per_device_train_batch_size` examples make an optimizer step. Dropout is switched off, as in TRL: it would blur the comparison with
    the reference.

    Raises:
        SettingsError: `arguments` accumulate gradients over several batches.
    """
    from transformers import PrinterCallback, Trainer
    from trl.trainer.utils import disable_dropout_in_model

    if arguments.gradient_accumulation_steps != 1:
        raise SettingsError(
            "A step of a preference trainer is one batch: set gradient_accumulation_steps to 1, and a larger batch."
        )
    causal = causal_of(model)
    as_trees = takes_trees(
        causal, max(len(row.input_ids) for example in examples for row in example.rows)
    )
    arguments.remove_unused_columns = False

    class PreferenceTrainer(Trainer):
        _total_train_tokens = 0

        def training_step(
            self,
            model: "torch.nn.Module",
            inputs: dict[str, Any],
            num_items_in_batch: "torch.Tensor | int | None" = None,
        ) -> "torch.Tensor":
            import torch

            step: list[Example] = inputs["examples"]
            moved = objective.moved(causal, step)
            model.train()
            trained = [example.rows[: objective.trained_rows] for example in step]
            step_loss = torch.zeros((), device=self.args.device)
            self._step_metrics: dict[str, float] = {}
            for group in grouped(trained) if as_trees else [[index] for index in range(len(step))]:
                rows = [row for index in group for row in trained[index]]
                with self.compute_loss_context_manager():
                    log_probs = _log_probs(causal, rows, as_trees)
                    loss, metrics = objective.loss(
                        log_probs.view(len(group), -1),
                        [step[index] for index in group],
                        step,
                        moved,
                    )
                self.accelerator.backward(loss)
                step_loss += loss.detach()
                for name, value in metrics.items():
                    self._step_metrics[name] = self._step_metrics.get(name, 0.0) + value
            self._total_train_tokens += sum(len(row.input_ids) for rows in trained for row in rows)
            return step_loss

        def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
            if "loss" in logs:
                logs |= {"num_tokens": self._total_train_tokens, **self._step_metrics}
            super().log(logs, start_time)

    disable_dropout_in_model(model)
    fast_products(model)
    trainer = PreferenceTrainer(
        model=model,
        args=arguments,
        train_dataset=list(examples),
        data_collator=lambda batch: {"examples": batch},
        callbacks=[*callbacks, reporting(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    let_a_step_train(trainer)
    return trainer


def _log_probs(causal: "PreTrainedModel", rows: Sequence[Encoded], as_tree: bool) -> "torch.Tensor":
    """(rows,): each row's log-probability, through one tree or, for models whose attention takes none, a pass each."""
    import torch
    from torch.nn.functional import cross_entropy

    if as_tree:
        tensors = {
            name: tensor.to(causal.device)
            for name, tensor in tree_tensors(prefix_tree(rows), causal.device.type).items()
        }
        return row_log_probs(causal, tensors, len(rows))
    passes = (trained_logits(causal, row) for row in rows)
    return torch.stack(
        [-cross_entropy(logits.float(), tokens, reduction="sum") for logits, tokens in passes]
    )


def stop_on_fall(
    model: "PreTrainedModel", asked: Sequence[Probe], fall: float
) -> "TrainerCallback":
    """A callback that ends a training as soon as one kind of decision falls below what `model` makes of it now.

    It looks at every step that would be saved, and lets a step after a fall not be saved: the last checkpoint is the last good one. What
    it measures stands in the log history, so a training that goes on from a checkpoint knows it.
    """
    from transformers import TrainerCallback

    before = decision_probabilities(model, asked)

    class StopOnFall(TrainerCallback):
        fallen: list[str]
        measured: dict[str, float]

        def __init__(self) -> None:
            self.before, self.fallen, self.measured = before, [], before

        def on_step_end(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            model: "PreTrainedModel | None" = None,
            **kwargs: Any,
        ) -> None:
            if not control.should_save or model is None:
                return
            self.measured = decision_probabilities(model, asked)
            state.log_history.append({"step": state.global_step, SELECT: self.measured})
            self.fallen = fallen(before, self.measured, asked, fall)
            if self.fallen:
                control.should_save, control.should_training_stop = False, True

    return StopOnFall()
