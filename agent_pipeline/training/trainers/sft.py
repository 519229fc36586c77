"""TRL's SFTTrainer, set up to train exactly the tokens that `masks` chose, and to say how far it is."""

import math
import random
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError, ModelError
from agent_pipeline.progress import Progress
from agent_pipeline.selection.buffer import spread
from agent_pipeline.training.config import Device, TrainingConfig
from agent_pipeline.training.masks import Encoded
from agent_pipeline.training.trainers.tree import prove_tree_labels, trains_as_trees, tree_trainer

if TYPE_CHECKING:
    from peft import LoraConfig
    from transformers import (
        PreTrainedModel,
        PreTrainedTokenizerBase,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )
    from trl import SFTConfig, SFTTrainer


def reporting(progress: Progress) -> "TrainerCallback":
    """A callback that reports steps, loss and tokens/s, and stops a training that diverges (ModelError)."""
    from transformers import TrainerCallback

    class Reporting(TrainerCallback):
        def on_train_begin(self, args: "TrainingArguments", state: "TrainerState", control: "TrainerControl", **kwargs: Any) -> None:
            self.began = time.monotonic()
            progress(state.global_step, state.max_steps, "training" if not state.global_step else "training, resumed")

        def on_log(
            self,
            args: "TrainingArguments",
            state: "TrainerState",
            control: "TrainerControl",
            logs: dict[str, float] | None = None,
            **kwargs: Any,
        ) -> None:
            if not logs or "loss" not in logs:
                return
            if not math.isfinite(logs["loss"]):
                raise ModelError(f"The training diverged at step {state.global_step} (loss {logs['loss']}): lower learning_rate.")
            speed = logs.get("num_tokens", 0) / max(time.monotonic() - self.began, 1e-9)
            progress(state.global_step, state.max_steps, f"training, loss {logs['loss']:.3f}, {speed:.0f} tokens/s")

    return Reporting()


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
    Raises DataError where TRL would train on other labels than ours.
    """
    from peft import LoraConfig
    from trl import SFTConfig

    step_rows = config.batch_size * config.gradient_accumulation
    as_trees = trains_as_trees(model, rows, step_rows)
    arguments = SFTConfig(
        output_dir=str(work_dir),
        num_train_epochs=config.epochs,
        max_steps=_steps(len(rows), config),
        per_device_train_batch_size=step_rows if as_trees else config.batch_size,
        gradient_accumulation_steps=1 if as_trees else config.gradient_accumulation,
        learning_rate=config.learning_rate,
        lr_scheduler_type=config.lr_scheduler,
        warmup_steps=config.warmup_ratio,  # below 1 it is a share of all steps
        max_grad_norm=config.max_grad_norm,
        gradient_checkpointing=config.checkpoints_gradients(max(len(row.input_ids) for row in rows)),
        bf16=device.bf16,
        use_cpu=device.name == "cpu",
        max_length=None,  # rows fit already; TRL's own truncation would cut answers in the middle
        seed=config.seed,
        data_seed=config.seed,
        train_sampling_strategy="sequential" if config.in_order else "random",
        logging_steps=1,
        logging_nan_inf_filter=False,
        save_strategy="steps",
        save_steps=config.checkpoint_steps,
        save_total_limit=2,  # the last may be half written when the process dies
        dataloader_pin_memory=device.name != "cpu",
        report_to="none",
        disable_tqdm=True,
    )
    lora = LoraConfig(
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules=config.modules,
        use_dora=config.use_dora,
        task_type="CAUSAL_LM",
    )
    trainer = trainer_over(model, tokenizer, rows, arguments, progress, lora if config.use_lora else None, as_trees)
    if config.use_lora_plus:
        _use_lora_plus(trainer, config.lora_plus_lr_ratio)
    if replayed:
        order = MixedOrder(len(rows) - replayed, replayed, config.seed, shuffled=not config.in_order)
        trainer._get_train_sampler = lambda dataset=None: order
    return trainer


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
        return (next(replayed if is_replayed else new) for is_replayed in spread(self._new, self._replayed))


def trainer_over(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    rows: list[Encoded],
    arguments: "SFTConfig",
    progress: Progress,
    lora: "LoraConfig | None" = None,
    as_trees: bool = False,
) -> "SFTTrainer":
    """TRL's trainer over rows that are tokens with labels already; without `lora` it trains every weight. With `as_trees`, what the rows
    of a step share is computed once (`trainers.tree`).

    Raises DataError where TRL would train on other labels than ours.
    """
    from datasets import Dataset
    from transformers import PrinterCallback
    from trl import SFTTrainer

    trainer = (tree_trainer if as_trees else SFTTrainer)(
        model=model,
        args=arguments,
        train_dataset=Dataset.from_dict({"input_ids": [r.input_ids for r in rows], "labels": [r.labels for r in rows]}),
        processing_class=tokenizer,
        peft_config=lora,
        callbacks=[reporting(progress)],
    )
    trainer.remove_callback(PrinterCallback)
    (prove_tree_labels if as_trees else _prove_labels)(trainer, rows)
    return trainer


def _use_lora_plus(trainer: "SFTTrainer", ratio: float) -> None:
    """The optimiser that the trainer would have made, with LoRA+'s groups: matrices B at `ratio` times the learning rate of A."""
    from peft.optimizers import create_loraplus_optimizer

    cls, options = trainer.get_optimizer_cls_and_kwargs(trainer.args, trainer.model)
    trainer.optimizer = create_loraplus_optimizer(trainer.model, cls, loraplus_lr_ratio=ratio, **options)


def _steps(rows: int, config: TrainingConfig) -> int:
    """TRL's `max_steps`: −1 where `epochs` decides, so that `max_steps` can only make a training shorter."""
    batches = math.ceil(rows / config.batch_size)
    by_epochs = math.ceil(math.ceil(batches / config.gradient_accumulation) * config.epochs)
    return config.max_steps if 0 < config.max_steps < by_epochs else -1


def _prove_labels(trainer: "SFTTrainer", rows: list[Encoded]) -> None:
    """What comes out of the trainer's own data loader is our tokens and our labels, padding aside.

    A packed batch is rows laid end to end; each begins where the positions begin anew, and its first label predicts nothing.
    """
    expected = {(tuple(row.input_ids), tuple(row.labels[1:])) for row in rows}
    batch: dict[str, Any] = next(iter(trainer.get_train_dataloader()))
    if "attention_mask" in batch:
        real = batch["attention_mask"].bool()
        parts = [(ids[mask], labels[mask]) for ids, labels, mask in zip(batch["input_ids"], batch["labels"], real, strict=True)]
        beside = batch["labels"][~real]
    else:
        starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
        sizes = [end - start for start, end in pairwise([*starts, batch["input_ids"].shape[1]])]
        parts = list(zip(batch["input_ids"][0].split(sizes), batch["labels"][0].split(sizes), strict=True))
        beside = batch["labels"][:, :0]
    found = {(tuple(ids.tolist()), tuple(labels[1:].tolist())) for ids, labels in parts}
    if not found <= expected or (beside != -100).any():
        raise DataError("The installed TRL changes prebuilt labels, so the loss would count other tokens: install trl==1.16.0.")
