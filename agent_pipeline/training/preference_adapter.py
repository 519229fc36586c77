"""Training an adapter on from preferences: DPO on pairs, KTO on judged sessions. The adapter that it starts from is the reference.

The directory is that of `adapter`: another room loads it in the same way.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.errors import DataError
from agent_pipeline.progress import Progress, silent
from agent_pipeline.sessions.session import sha256_of
from agent_pipeline.training import checkpoints
from agent_pipeline.training.adapter import finished, run_figures, save_trained, token_counts, trained_report
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import DpoTraining, KtoTraining, PreferenceTraining, training_device
from agent_pipeline.training.decisions import probes
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.preferences import Encode, Row, encode_pairs, encode_sessions, log_probs, with_reference
from agent_pipeline.training.prefixes import prefix_tree
from agent_pipeline.training.templates import load_tokenizer
from agent_pipeline.training.trainers.common import shared_arguments
from agent_pipeline.training.trainers.dpo import Dpo
from agent_pipeline.training.trainers.kto import Kto
from agent_pipeline.training.trainers.preferences import SELECT, Objective, preference_trainer, stop_on_fall

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class NothingTrained(DataError):
    """There is no adapter, for a reason that is no fault: too few rows, or a first look at `select` that showed harm. `counts` are those
    of the rows."""

    def __init__(self, text: str, counts: dict[str, Any]) -> None:
        super().__init__(text)
        self.counts = counts


@dataclass(frozen=True)
class Method:
    """A way to learn from preferences: what its rows are called, how they are read, what is optimised."""

    rows: str
    encode: Encode
    options: type[PreferenceTraining]
    objective: Callable[[Any], Objective]


METHODS = {
    "dpo": Method("pairs", encode_pairs, DpoTraining, lambda config: Dpo(config.beta, config.sft_weight)),
    "kto": Method("judged sessions", encode_sessions, KtoTraining, lambda config: Kto(config.beta)),
}


def preference_origin(
    method: str, rows: Sequence[Row], select: Sequence[Row], base: BaseModel, reference: str, config: PreferenceTraining
) -> dict[str, Any]:
    """What such an adapter is trained from: the identity of the adapter that it starts from, the rows, the SFT rows of `select` that it is
    watched on, and the configuration."""
    return {
        "method": method,
        "base_model": base.name,
        "base_revision": base.revision,
        "reference": reference,
        "config": config.identity(),
        "content_sha256": _content(rows),
        "select_sha256": _content(select),
        "rows": len(rows),
        "sessions": sorted({row[name] for row in rows for name in ("session_id", "rejected_session_id") if name in row}),
    }


def _content(rows: Sequence[Row]) -> str:
    names = ("row_id", "messages", "prompt", "chosen", "rejected", "completion", "label", "tools")
    return sha256_of([{name: row[name] for name in names if name in row} for row in rows])


def train_preferences(
    method: str,
    rows: Sequence[Row],
    base: BaseModel,
    adapter_dir: Path,
    config: PreferenceTraining,
    out_dir: Path,
    select: Sequence[Row] = (),
    heldout: Sequence[Row] = (),
    progress: Progress = silent,
    reference: str = "",
) -> dict[str, Any]:
    """Train the adapter in `adapter_dir` on from the `rows` (train split) and leave the new one in `out_dir`; the report is returned.

    `method` is a name of `METHODS`, and the rows are those of `preference_dataset` (dpo) or `kto_dataset` (kto). `select` are SFT rows of
    the split `select`, on whose turns the kinds of decision are measured while it trains. `heldout` are judged rows of other splits; the
    report says how they are ranked. `reference` names the adapter in `adapter_dir`. A killed training goes on from its last checkpoint.

    Raises:
        NothingTrained: fewer than `config.min_rows` rows can be trained on, or a kind of decision fell at the first look.
        DataError: one of the rows is not of the split `train`.
        ModelError: base or adapter cannot be loaded.
    """
    began = time.monotonic()
    if stray := sorted({row["split"] for row in rows} - {"train"}):
        raise DataError(f"The rows to train on hold some of the split {stray[0]}: pass those of the split train only.")
    of = METHODS[method]
    tokenizer, template = load_tokenizer(adapter_dir, base.trust_remote_code)
    encoded = of.encode(tokenizer, rows, config.max_length, progress)
    if len(encoded.rows) < config.min_rows:
        raise NothingTrained(
            f"{method} needs {config.min_rows} {of.rows}, and {len(encoded.rows)} of {len(rows)} can be trained on: judge more trials of "
            f"the same tasks, or lower min_rows. {encoded.first_dropped}".rstrip(),
            encoded.counts,
        )
    identity = sha256_of(preference_origin(method, rows, select, base, reference, config))
    work_dir = out_dir / "checkpoints"
    checkpoint = checkpoints.prepare(work_dir, identity)
    device = training_device(config.precision)
    model = load_model(base, device, adapter_dir, trainable=True)
    examples = with_reference(model, encoded.rows, progress)
    held = with_reference(model, of.encode(tokenizer, heldout, config.max_length, silent).rows)
    watch = stop_on_fall(model, probes(tokenizer, select, config.max_length, config.stop_turns), config.stop_fall)
    objective = of.objective(config)

    from transformers import TrainingArguments

    step_rows = [row for example in examples[: config.batch_size] for row in example.rows]
    arguments = TrainingArguments(
        **shared_arguments(config, device, work_dir, len(examples), len(prefix_tree(step_rows).tokens)),
        gradient_checkpointing_kwargs={"use_reentrant": False},
        per_device_train_batch_size=config.batch_size,
        save_steps=config.stop_steps,
    )
    trainer = preference_trainer(model, examples, objective, arguments, progress, [watch])
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trained = trainer.state.global_step
    if watch.fallen:
        good = checkpoints.prepare(work_dir, identity)
        if good is None:
            raise NothingTrained(
                f"{method} made right decisions less probable from the start ({_falls(watch)} at step {trained}): lower learning_rate or "
                "stop_steps, or raise sft_weight.",
                encoded.counts,
            )
        _load_weights(trainer.model, good)
        trained = int(good.name.rpartition("-")[2])
    looks = [{"step": entry["step"], SELECT: entry[SELECT]} for entry in trainer.state.log_history if SELECT in entry]
    report = {
        "identity": identity,
        "method": method,
        "reference": reference,
        **trained_report(trainer, base, template, config, device),
        "rows": encoded.counts,
        "row_ids": [example.row_id for example in examples],
        "kinds": {kind: {"rows": count} for kind, count in sorted(Counter(each.kind for each in examples).items())},
        **token_counts([row for example in examples for row in example.rows[: objective.trained_rows]]),
        "weights_of_step": trained,
        "decisions": {"before": watch.before, "looks": looks},
        "stopped_by": watch.fallen,
        "heldout": objective.figures(held, log_probs(trainer.model, held)) if held else None,
    }
    save_trained(trainer.model, tokenizer, template, base, out_dir)
    return finished(report, out_dir, work_dir) | run_figures(trainer, checkpoint, began)


def _falls(watch: Any) -> str:
    return ", ".join(f"{kind} {watch.before[kind]:.2f} → {watch.measured[kind]:.2f}" for kind in watch.fallen)


def _load_weights(model: "PreTrainedModel", checkpoint: Path) -> None:
    """Put an adapter's weights back as a checkpoint has them."""
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    set_peft_model_state_dict(model, load_file(checkpoint / "adapter_model.safetensors"))
