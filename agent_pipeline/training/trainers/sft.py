"""TRL's SFTTrainer, set up to train exactly the tokens that `masks` chose, and to say how far it is."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.packed_linear import fast_products
from agent_pipeline.engine.tree_loss import (
    MAX_NODES,
    prove_tree_labels,
    trains_as_trees,
    tree_trainer,
)
from agent_pipeline.errors import DataError, SettingsError
from agent_pipeline.models.device import Device
from agent_pipeline.progress import Progress
from agent_pipeline.selection.buffer import spread
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import STORED_TOKENS, TrainingConfig
from agent_pipeline.training.trainers.common import (
    let_a_step_train,
    lora_of,
    reporting,
    shared_arguments,
    stored_tokens,
    use_lora_plus,
)

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTConfig, SFTTrainer


def build_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[Encoded],
    config: TrainingConfig,
    device: Device,
    work_dir: Path,
    progress: Progress,
    replayed: int = 0,
) -> "SFTTrainer":
    """The trainer over tokenised rows with prebuilt labels, its model wrapped in a fresh, seeded LoRA (unless the config wants none).

    The last `replayed` of the rows are spread evenly over each epoch: every batch has its share of them.
    Raises:
        DataError: TRL would train on other labels than ours.
        SettingsError: several processes are to train a model that takes no trees of prefixes.
    """
    from trl import SFTConfig

    as_trees = trains_as_trees(model, rows)
    if config.processes > 1 and not as_trees:
        raise SettingsError(
            "processes is more than 1, and this model is trained row by row, by one process: set it to 1."
        )
    longest = max(len(row.input_ids) for row in rows)
    tokens, stored = (
        config.per_device_train_batch_size * longest,
        stored_tokens(model, not config.use_lora),
    )
    if as_trees and device.name != "cpu":
        tokens = 2 * longest
        max_nodes = (
            MAX_NODES if config.checkpoints_gradients(tokens, stored) else max(tokens, stored)
        )
    else:
        max_nodes = nodes_of_a_tree(config, tokens)
    arguments = SFTConfig(
        **shared_arguments(config, device, work_dir, len(rows), tokens, stored),
        train_sampling_strategy="sequential" if config.in_order else "random",
        save_steps=config.save_steps,
        max_length=None,  # rows fit already; TRL's own truncation would cut answers in the middle
        per_device_train_batch_size=config.step_rows
        if as_trees
        else config.per_device_train_batch_size,
        gradient_accumulation_steps=1 if as_trees else config.gradient_accumulation_steps,
    )
    trainer = trainer_over(
        model,
        tokenizer,
        rows,
        arguments,
        progress,
        lora_of(config, model),
        max_nodes if as_trees else None,
    )
    if config.use_lora_plus:
        use_lora_plus(trainer, config.loraplus_lr_ratio)
    if replayed:
        order = MixedOrder(
            len(rows) - replayed, replayed, config.seed, shuffled=not config.in_order
        )
        trainer._get_train_sampler = lambda dataset=None: order
    return trainer


def nodes_of_a_tree(config: TrainingConfig, tokens: int) -> int:
    """The most nodes of a tree on a CPU: those of two batches of `tokens`. Two rows always share what they can, and the memory of a step
    does not grow with its rows. Where activations are recomputed, `MAX_NODES` at most."""
    nodes = max(2 * tokens, STORED_TOKENS)
    return min(nodes, MAX_NODES) if config.checkpoints_gradients(tokens) else nodes


class MixedOrder:
    """A sampler: an epoch's order of `new` rows and, behind them in the data set, `replayed` ones. Each kind is shuffled by the seed and
    the epoch; which places are the replayed rows' is not left to chance."""

    def __init__(self, new: int, replayed: int, seed: int, shuffled: bool = True) -> None:
        self._new, self._replayed, self._seed, self._shuffled = new, replayed, seed, shuffled
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Called by the trainer, also when it goes on from a checkpoint."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._new + self._replayed

    def __iter__(self) -> Iterator[int]:
        kinds = [list(range(self._new)), list(range(self._new, len(self)))]
        if self._shuffled:
            rng = random.Random(f"{self._seed} {self._epoch}")
            for kind in kinds:
                rng.shuffle(kind)
        new, replayed = map(iter, kinds)
        return (
            next(replayed if is_replayed else new)
            for is_replayed in spread(self._new, self._replayed)
        )


def trainer_over(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[Encoded],
    arguments: "SFTConfig",
    progress: Progress,
    lora: "LoraConfig | None" = None,
    max_nodes: int | None = None,
) -> "SFTTrainer":
    """TRL's trainer over rows that are tokens with labels already; without `lora` it trains every weight. With `max_nodes`, what the rows
    of a step share is computed once, in trees of at most so many nodes (`trainers.tree`).

    Raises DataError where TRL would train on other labels than ours.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    columns: dict[str, list[Any]] = {
        "input_ids": [r.input_ids for r in rows],
        "labels": [r.labels for r in rows],
    }
    make = partial(tree_trainer, max_nodes) if max_nodes else SFTTrainer
    trainer = make(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict(columns),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[reporting(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    let_a_step_train(trainer)
    if max_nodes:
        fast_products(trainer.model)
    (prove_tree_labels if max_nodes else _prove_labels)(trainer, rows)
    return trainer


def _prove_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """What comes out of the trainer's own data loader is our tokens and our labels, padding aside.

    A packed batch is rows laid end to end; each begins where the positions begin anew, and its first label predicts nothing.
    """
    expected = {(tuple(row.input_ids), tuple(row.labels[1:])) for row in rows}
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    if "attention_mask" in batch:
        real = batch["attention_mask"].bool()
        parts = [
            (ids[mask], labels[mask])
            for ids, labels, mask in zip(batch["input_ids"], batch["labels"], real, strict=True)
        ]
        beside = batch["labels"][~real]
    else:
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        sizes = [end - start for start, end in pairwise([*starts, batch["input_ids"].shape[1]])]
        parts = list(
            zip(batch["input_ids"][0].split(sizes), batch["labels"][0].split(sizes), strict=True)
        )
        beside = batch["labels"][:, :0]
    found = {(tuple(ids.tolist()), tuple(labels[1:].tolist())) for ids, labels in parts}
    if not found <= expected or (beside != -100).any():
        raise DataError(
            "The installed TRL changes prebuilt labels, so the loss would count other tokens: install trl==1.16.0."
        )
