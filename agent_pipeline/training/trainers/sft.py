"""TRL's SFTTrainer, set up to train exactly the tokens that `tokenization.loss_masks` selects.

There are two kinds of trainer. For most models the rows of an optimizer step are computed as trees
of prefixes (`engine.tree_loss`); for the others TRL computes row by row. Both are checked: the
labels that leave the trainer's own data loader must be ours.
"""

import random
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline._compat.accelerate import read_every_batch
from agent_pipeline._compat.transformers import set_sampler
from agent_pipeline._compat.trl import add_trained_tokens
from agent_pipeline.engine.cuda_graphs import CudaGraphs, supports_graphs
from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.engine.prefix_tree import MAX_NODES, trees_of_step
from agent_pipeline.engine.scoring import without_adapter
from agent_pipeline.engine.tree_loss import (
    TreeTensors,
    explain_no_trees,
    move_tensors,
    share_rows,
    trains_as_trees,
    tree_loss,
    tree_tensors,
)
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.device import Device
from agent_pipeline.models.threads import follow_load
from agent_pipeline.progress import Progress
from agent_pipeline.selection.buffer import spread_replayed
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import STORED_TOKENS, TrainingConfig
from agent_pipeline.training.trainers.common import (
    estimate_stored_tokens,
    limit_warmup,
    make_lora_config,
    make_progress_callback,
    make_shared_arguments,
    use_lora_plus,
)

if TYPE_CHECKING:
    import torch
    from peft import LoraConfig
    from torch.utils.data import DataLoader
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTConfig, SFTTrainer


@dataclass(frozen=True)
class SftJob:
    """The data and the options of an SFT trainer, without the model in memory.

    Attributes:
        rows: The tokens of the rows, as the first epoch trains them.
        config: The options.
        device: Where the model trains.
        work_dir: Where checkpoints are written.
        mixed_in: How many rows at the end of `rows` are spread evenly over each epoch.
        later_epochs: The same rows as each later epoch trains them. None if the rows are not
            varied; an empty list if they are varied, and there is one epoch.
    """

    rows: list[Encoded]
    config: TrainingConfig
    device: Device
    work_dir: Path
    mixed_in: int = 0
    later_epochs: list[list[Encoded]] | None = None

    @property
    def all_rows(self) -> list[Encoded]:
        """Return the rows of all epochs, in order."""
        return [*self.rows, *(row for rows in self.later_epochs or [] for row in rows)]


def build_trainer(
    job: SftJob,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    progress: Progress,
) -> "SFTTrainer":
    """Return the trainer of a job.

    The model gets a new, seeded LoRA adapter if the options require it.

    Args:
        job: What is trained.
        model: The base model.
        tokenizer: Its tokenizer.
        progress: Is called after each step.

    Raises:
        DataError: TRL would train on other labels than ours.
        SettingsError: several processes are to train a model that is not trained over trees.
    """
    from trl import SFTConfig

    config, rows = job.config, job.all_rows
    as_trees = trains_as_trees(model, rows, config.processes)
    if config.processes > 1 and not as_trees:
        reason = explain_no_trees(model, rows, config.processes)
        raise SettingsError(
            "The setting `processes` is above 1, but this model can only be trained row by row in "
            f"one process, because {reason}: set `processes` to 1."
        )
    longest = max(len(row.input_ids) for row in rows)
    pass_tokens = config.per_device_train_batch_size * longest
    stored_tokens = estimate_stored_tokens(model, not config.use_lora)
    if as_trees and job.device.name != "cpu":
        pass_tokens = 2 * longest
        max_nodes = max(pass_tokens, stored_tokens)
        if config.checkpoints_gradients(pass_tokens, stored_tokens):
            max_nodes = MAX_NODES
    else:
        max_nodes = limit_nodes(config, pass_tokens)
    arguments = SFTConfig(
        **make_shared_arguments(
            config, job.device, job.work_dir, len(job.rows), pass_tokens, stored_tokens
        ),
        train_sampling_strategy="sequential" if config.in_order else "random",
        save_steps=config.save_steps,
        max_length=None,  # rows fit already; TRL's own truncation would cut answers in the middle
        per_device_train_batch_size=(
            config.step_rows if as_trees else config.per_device_train_batch_size
        ),
        gradient_accumulation_steps=1 if as_trees else config.gradient_accumulation_steps,
    )
    lora = make_lora_config(config, model)
    trainer = build_trl_trainer(
        model, tokenizer, rows, arguments, progress, lora, max_nodes if as_trees else None
    )
    if config.use_lora_plus:
        use_lora_plus(trainer, config.loraplus_lr_ratio)
    if job.mixed_in or job.later_epochs is not None:
        new = len(job.rows) - job.mixed_in
        order = MixedOrder(
            new,
            job.mixed_in,
            config.seed,
            shuffled=not config.in_order,
            epochs=1 + len(job.later_epochs or []),
        )
        set_sampler(trainer, order)
    limit_warmup(trainer)
    return trainer


def limit_nodes(config: TrainingConfig, pass_tokens: int) -> int:
    """Return the maximum number of nodes per tree on a CPU, which is two forward passes.

    Two rows can then always share their prefix, and the memory of a step does not grow with its
    rows. If activations are recomputed, the limit is at most `MAX_NODES`.
    """
    nodes = max(2 * pass_tokens, STORED_TOKENS)
    return min(nodes, MAX_NODES) if config.checkpoints_gradients(pass_tokens) else nodes


class MixedOrder:
    """A sampler that distributes replayed rows evenly over each epoch.

    New rows come first in the data set, replayed rows behind them. Each kind is shuffled by the
    seed and the epoch. Which places the replayed rows get is not left to chance. The rows of later
    epochs may be varied. The rows of later epochs follow in the data set, epoch by epoch.

    Args:
        new: The number of new rows.
        replayed: The number of replayed rows.
        seed: The seed of the shuffles.
        shuffled: Whether the rows are shuffled.
        epochs: The number of epochs that have separate rows in the data set.
    """

    def __init__(
        self, new: int, replayed: int, seed: int, shuffled: bool = True, epochs: int = 1
    ) -> None:
        self._new, self._replayed, self._seed, self._shuffled = new, replayed, seed, shuffled
        self._epochs = epochs
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch. The trainer also calls this method when it resumes from a checkpoint."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._new + self._replayed

    def __iter__(self) -> Iterator[int]:
        new_indices = list(range(self._new))
        replayed_indices = list(range(self._new, len(self)))
        if self._shuffled:
            rng = random.Random(f"{self._seed} {self._epoch}")
            rng.shuffle(new_indices)
            rng.shuffle(replayed_indices)
        new, replayed = iter(new_indices), iter(replayed_indices)
        first_row = len(self) * min(self._epoch, self._epochs - 1)
        for is_replayed in spread_replayed(self._new, self._replayed):
            yield first_row + next(replayed if is_replayed else new)


def build_trl_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[Encoded],
    arguments: "SFTConfig",
    progress: Progress,
    lora: "LoraConfig | None" = None,
    max_nodes: int | None = None,
) -> "SFTTrainer":
    """Return TRL's trainer for rows that already are tokens with labels.

    The caller limits the warm-up (`limit_warmup`) after it has set the order of the rows.

    Args:
        model: The model.
        tokenizer: Its tokenizer.
        rows: The tokens of the rows.
        arguments: TRL's arguments.
        progress: Is called after each step.
        lora: The adapter; None trains every weight.
        max_nodes: Maximum number of nodes per tree; None trains row by row.

    Raises:
        DataError: TRL would train on other labels than ours.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    columns = {
        "input_ids": [row.input_ids for row in rows],
        "labels": [row.labels for row in rows],
    }
    trainer_class = partial(build_tree_trainer, max_nodes) if max_nodes else SFTTrainer
    trainer = trainer_class(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[make_progress_callback(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    if max_nodes:
        speed_up_linear_modules(trainer.model)
        check_tree_labels(trainer, rows)
    else:
        check_labels(trainer, rows)
    return trainer


def build_tree_trainer(max_nodes: int, **trainer_arguments: Any) -> "SFTTrainer":
    """Return an `SFTTrainer` that computes the rows of an optimizer step as prefix trees.

    A batch holds all rows of a step: `per_device_train_batch_size` is their number, and
    `gradient_accumulation_steps` is 1. With several processes, each computes the trees of its share
    of the rows, and the gradients are summed.

    Args:
        max_nodes: Maximum number of nodes per tree.
        **trainer_arguments: The arguments of `SFTTrainer`. The data set has the columns `input_ids`
            and `labels`.
    """
    import torch
    from trl import SFTTrainer

    class TreeTrainer(SFTTrainer):
        """An `SFTTrainer` that computes its rows as prefix trees."""

        @cached_property
        def graphs(self) -> CudaGraphs | None:
            """Return the CUDA graphs of the model, or None if it does not support CUDA graphs."""
            return CudaGraphs(self.model, tree_loss) if supports_graphs(self.model) else None

        def get_train_dataloader(self) -> "DataLoader[Any]":
            loader = super().get_train_dataloader()
            read_every_batch(loader)
            return loader

        def training_step(
            self,
            model: "torch.nn.Module",
            inputs: dict[str, Any],
            num_items_in_batch: "torch.Tensor | int | None" = None,
        ) -> "torch.Tensor":
            model.train()
            causal = without_adapter(self.accelerator.unwrap_model(model))
            step_loss = torch.zeros((), device=self.args.device)
            for tree in inputs["trees"]:
                follow_load(self.args.device.type, causal.dtype)
                tensors = move_tensors(tree, self.args.device)
                if self.graphs:
                    step_loss += self.graphs.add_gradients(tensors, inputs["total"])
                    continue
                with self.compute_loss_context_manager():
                    loss = tree_loss(causal, tensors) / inputs["total"]
                self.accelerator.backward(loss)
                step_loss += loss.detach()
            if self.args.world_size > 1:
                trained = [
                    parameter for parameter in causal.parameters() if parameter.requires_grad
                ]
                sum_gradients(trained, step_loss)
            add_trained_tokens(self, inputs["row_tokens"])
            return step_loss

    arguments = trainer_arguments["args"]
    collator = partial(
        collate_trees,
        max_nodes,
        trainer_arguments["model"].device.type,
        ProcessShare(arguments.process_index, arguments.world_size),
    )
    return TreeTrainer(data_collator=collator, **trainer_arguments)


@dataclass(frozen=True)
class ProcessShare:
    """The share of an optimizer step's rows that one process computes.

    Attributes:
        rank: The rank of the process.
        process_count: The number of processes.
    """

    rank: int = 0
    process_count: int = 1


def collate_trees(
    max_nodes: int, device: str, share: ProcessShare, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return a batch that contains the rows of one optimizer step as prefix trees.

    Args:
        max_nodes: Maximum number of nodes per tree.
        device: The kind of device, `cpu` or `cuda`.
        share: The share of this process.
        rows: The rows of the step, with the columns `input_ids` and `labels`.

    Returns:
        `trees`, the tensors of the trees that this process computes; `total`, the number of trained
        tokens of all rows; `row_tokens`, the number of all tokens of all rows.
    """
    encoded = [
        Encoded(row["input_ids"], [label != -100 for label in row["labels"]], []) for row in rows
    ]
    shares = share_rows(encoded, share.process_count) if share.process_count > 1 else [encoded]
    trees_of_shares = [
        [tree_tensors(group.tree, device) for group in trees_of_step(part, max_nodes)]
        for part in shares
    ]
    total = sum(float(tree["weights"].sum()) for trees in trees_of_shares for tree in trees)
    return {
        "trees": trees_of_shares[share.rank],
        "total": total,
        "row_tokens": sum(len(row.input_ids) for row in encoded),
    }


def sum_gradients(parameters: "Sequence[torch.nn.Parameter]", loss: "torch.Tensor") -> None:
    """Replace the gradient of each parameter, and the loss, by the sum over all processes."""
    import torch
    from torch import distributed

    gradients = [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        for parameter in parameters
    ]
    flat_loss = loss.reshape(1).to(gradients[0].dtype)
    flat = torch.cat([flat_loss, *(gradient.flatten() for gradient in gradients)])
    distributed.all_reduce(flat)
    loss.copy_(flat[0])
    sizes = [parameter.numel() for parameter in parameters]
    for parameter, gradient in zip(parameters, flat[1:].split(sizes), strict=True):
        parameter.grad = gradient.view_as(parameter).contiguous()


def check_tree_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """Check that the first batch of a tree trainer trains only tokens that our rows train.

    The tokens from the root of a tree to each trained node must be the beginning of a row that
    trains this token.

    Raises:
        DataError: a tree trains a token that no row trains there, or that fewer rows train.
    """
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    expected: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for row in rows:
        for position in range(1, len(row.input_ids)):
            if row.trained[position]:
                expected[tuple(row.input_ids[: position + 1])] += 1
    for tree in batch["trees"]:
        for trained in _trained_paths(tree):
            if expected[trained.tokens] < trained.weight * (1 - 1e-5):
                raise DataError(
                    "A tree of prefixes trains different tokens than its rows: report this as a "
                    "bug of agent-pipeline."
                )


@dataclass(frozen=True)
class _TrainedPath:
    """The tokens from the root to a trained node, and the number of rows that train the node."""

    tokens: tuple[int, ...]
    weight: float


def _trained_paths(tree: TreeTensors) -> Iterator[_TrainedPath]:
    layout = tree["layout"]
    runs = [run.tolist() for run in tree["input_ids"][0].split(layout.run_lengths)]
    starts = [sum(layout.run_lengths[:index]) for index in range(len(runs))]
    for predictor, target, weight in zip(
        tree["predictors"].tolist(), tree["targets"].tolist(), tree["weights"].tolist(), strict=True
    ):
        run = bisect_right(starts, predictor) - 1
        tokens = [token for index in layout.ancestors[run] for token in runs[index]]
        tokens += runs[run][: predictor - starts[run] + 1]
        yield _TrainedPath((*tokens, target), weight)


def check_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """Check that the first batch of a trainer's data loader has our tokens and our labels.

    A packed batch is rows laid end to end. Each row begins where the positions begin again, and its
    first label predicts nothing.

    Raises:
        DataError: TRL trains on other labels.
    """
    expected = {(tuple(row.input_ids), tuple(row.labels[1:])) for row in rows}
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    if "attention_mask" in batch:
        is_token = batch["attention_mask"].bool()
        batch_rows = [
            (ids[mask], labels[mask])
            for ids, labels, mask in zip(batch["input_ids"], batch["labels"], is_token, strict=True)
        ]
        padding_labels = batch["labels"][~is_token]
    else:
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        sizes = [end - start for start, end in pairwise([*starts, batch["input_ids"].shape[1]])]
        batch_rows = list(
            zip(batch["input_ids"][0].split(sizes), batch["labels"][0].split(sizes), strict=True)
        )
        padding_labels = batch["labels"][:, :0]
    trained = {(tuple(ids.tolist()), tuple(labels[1:].tolist())) for ids, labels in batch_rows}
    if not trained <= expected or (padding_labels != -100).any():
        raise DataError(
            "The installed TRL changes prebuilt labels, so the loss would count other tokens: "
            "install trl==1.16.0."
        )
