"""Training a LoRA adapter, from rows to a directory that another room can load.

The directory holds PEFT's `adapter_model.safetensors` and `adapter_config.json`, the tokenizer with the *training* chat
template, and `training.json`. None of them holds a time or a local path: the same input gives the same bytes. With
`use_lora=False` it is a whole model's directory instead.
"""

import json
import shutil
import time
from collections.abc import Sequence
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.scoring import encoded_losses, mean_loss
from agent_pipeline.errors import DataError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer, load_renderer
from agent_pipeline.models.chat_templates import ChatTemplate
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.buffer import checked_ratio, due
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.storage.filesystem import give_usual_mode
from agent_pipeline.tokenization.encoding import encode_rows
from agent_pipeline.tokenization.length_check import check_calls, check_fit
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training import checkpoints
from agent_pipeline.training.config import Training, TrainingConfig
from agent_pipeline.training.identity import trained_from
from agent_pipeline.training.launch import Job, together
from agent_pipeline.training.rehearsal import rehearsed
from agent_pipeline.training.trainers.common import use_liger
from agent_pipeline.training.trainers.sft import build_trainer

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, Trainer

LOGGED = (
    "step",
    "epoch",
    "loss",
    "mean_token_accuracy",
    "reward_accuracy",
    "reward_margin",
    "reward",
    "reward_std",
    "done",
    "harm",
    "kl",
    "moved",
    "grad_norm",
    "learning_rate",
)
REPORT = "training.json"


def train_adapter(
    rows: list[dict[str, Any]],
    base: BaseModel,
    config: TrainingConfig,
    out_dir: Path,
    heldout: Sequence[dict[str, Any]] = (),
    progress: Progress = silent,
    replayed: Sequence[dict[str, Any]] = (),
    replay_ratio: float = 0.0,
    rehearsal: float = 0.0,
    renderer: ChatRenderer | None = None,
) -> dict[str, Any]:
    """Train on the SFT `rows` (train split) and leave the adapter in `out_dir`, a staging directory; the report is returned.

    A training that was killed goes on from its last checkpoint in `out_dir` when called again with the same rows, base and
    config. `heldout` rows are never trained on: with them the report has their loss before and after. The report is
    `training.json` plus `seconds`, `tokens_per_second` and `resumed_from` (a step), which differ from run to run.
    A row that is too long, or that the chat template cannot render, is left out and counted by its reason in the report's `rows`.
    `replayed` rows of earlier nights are mixed in evenly, `replay_ratio` of all that is trained and no more: where rows fell out, some of
    these do too, and are counted. `rehearsal` is the share of all that is trained that the base's own answers to plain questions are.
    `renderer` is the base model's; without one it is loaded, which probes the chat template again.

    Raises:
        DataError: none of the rows can be trained on, too many of them do not fit (`config.most_dropped`), no call is left of an agent that
            makes calls, or a row is not of the split `train`.
        ModelError: the base model cannot be trained.
    """
    began = time.monotonic()
    only_train([*rows, *replayed])
    if renderer is None:
        renderer = load_renderer(base.path, base.trust_remote_code)
    jinja = renderer.template.jinja
    encoded, counts, first_dropped = encode_rows(renderer, rows, config.max_length, progress)
    if not encoded:
        none = "There are no rows to train on: curate more sessions."
        raise DataError(
            f"None of {len(rows)} rows can be trained on. {first_dropped}" if rows else none
        )
    check_calls(rows, [row.messages for row in encoded], config.max_length)
    check_fit(counts, config.max_length, config.most_dropped, base.path, first_dropped)
    old = encode_rows(renderer, list(replayed), config.max_length, progress)
    again = old.rows[: due(len(encoded), checked_ratio(replay_ratio))]
    encoded += again
    over, share = len(old.rows) - len(again), len(again) / len(encoded)
    replay = old.counts | {
        "over_the_ratio": over,
        "trained": len(again),
        "ratio_asked": replay_ratio,
        "ratio": share,
    }
    row_ids = [
        row_id for row_id, _ in groupby(row.row_id for row in encoded)
    ]  # the turns of a row follow each other
    identity = hash_json(trained_from(rows, base, jinja, config, replayed, replay_ratio, rehearsal))
    work_dir = out_dir / "checkpoints"
    checkpoint = checkpoints.prepare(work_dir, identity)

    # A small step would be lost in the rounding of a weight that is bfloat16 itself; an adapter's weights are float32 always.
    precision = (
        "float32" if config.precision == "auto" and not config.use_lora else config.precision
    )
    device = checkpoints.device(work_dir, precision)
    model = load_model(base, device)
    plain = rehearsed(
        model,
        renderer,
        rows,
        len(encoded),
        rehearsal,
        config.max_length,
        progress,
    )
    encoded += plain
    tokens = [row.encoded for row in encoded]
    held = encode_rows(renderer, list(heldout), config.max_length)

    def heldout_loss(model: "PreTrainedModel | PeftModel") -> float | None:
        return mean_loss(encoded_losses(model, [row.encoded for row in held.rows], progress))

    before = None if config.use_lora else heldout_loss(model)
    mixed_in, kernels = len(again) + len(plain), use_liger(model)
    with together(Job(base, device, tokens, config, work_dir, mixed_in, checkpoint)):
        trainer = build_trainer(
            model, renderer.tokenizer, tokens, config, device, work_dir, progress, mixed_in
        )
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    report = {
        "identity": identity,
        **trained_report(trainer, base, renderer.template, config, device),
        "rows": counts,
        **({"kernels": kernels} if kernels else {}),
        **({"replay": replay} if replayed else {}),
        **({"rehearsed": len(plain)} if rehearsal else {}),
        "row_ids": row_ids,
        **token_counts(tokens),
    }
    if heldout:
        trained = trainer.model.eval()
        if config.use_lora:
            with trained.disable_adapter():
                before = heldout_loss(trained)
        after = heldout_loss(trained)
        report["heldout"] = {
            "rows": held.counts["in"],
            "scored": held.counts["trained"],
            "before": before,
            "after": after,
        }
    save_trained(trainer.model, renderer, base, out_dir)
    return finished(report, out_dir, work_dir) | run_figures(trainer, checkpoint, began)


def only_train(rows: Sequence[dict[str, Any]]) -> None:
    """Raises DataError where one of the rows is not of the split `train`."""
    if stray := sorted({row["split"] for row in rows} - {"train"}):
        raise DataError(
            f"The rows to train on hold some of the split {stray[0]}: pass those of the split train only."
        )


def trained_report(
    trainer: "Trainer",
    base: BaseModel,
    template: ChatTemplate,
    config: Training,
    device: Device,
) -> dict[str, Any]:
    """What every report says of a training: from what, how, and how it went."""
    history = [
        {key: entry[key] for key in LOGGED if key in entry}
        for entry in trainer.state.log_history
        if "loss" in entry
    ]
    return {
        "base": {"name": base.name, "revision": base.revision},
        "template": template.to_report(),
        "config": config.model_dump(),
        "device": str(device),
        "steps": trainer.state.global_step,
        "loss_first": history[0]["loss"],
        "loss_last": history[-1]["loss"],
        "log_history": history,
        "versions": {name: version(name) for name in ("torch", "transformers", "trl", "peft")},
    }


def finished(report: dict[str, Any], out_dir: Path, work_dir: Path) -> dict[str, Any]:
    """The report as it was written; the checkpoints are removed."""
    text = json.dumps(report, indent=1, ensure_ascii=False)
    (out_dir / REPORT).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(work_dir, ignore_errors=True)
    return json.loads(text)


def run_figures(trainer: "Trainer", checkpoint: Path | None, began: float) -> dict[str, Any]:
    """What differs from run to run. Tokens/s of this process's own steps (padding not counted); 0 where it had none left to do."""
    resumed_from = int(checkpoint.name.rpartition("-")[2]) if checkpoint else 0
    runtime = next(
        (
            entry["train_runtime"]
            for entry in reversed(trainer.state.log_history)
            if "train_runtime" in entry
        ),
        0,
    )
    speed = (
        trainer._total_train_tokens / runtime
        if runtime and trainer.state.global_step > resumed_from
        else 0.0
    )
    return {
        "seconds": time.monotonic() - began,
        "tokens_per_second": speed,
        "resumed_from": resumed_from,
    }


def save_trained(
    model: "PreTrainedModel | PeftModel",
    renderer: ChatRenderer,
    base: BaseModel,
    out_dir: Path,
) -> None:
    """Adapter (or whole model) and tokenizer in `out_dir`, without what differs between two equal trainings (paths, the order of sets)."""
    if hasattr(model, "disable_adapter"):
        # PEFT's "auto" would ask the hub whether the vocabulary has grown; ours never does.
        # TRL's GRPO keeps the adapter that it starts from beside the one that it trains.
        model.save_pretrained(
            str(out_dir), save_embedding_layers=False, selected_adapters=["default"]
        )
        (out_dir / "README.md").unlink(missing_ok=True)
        path = out_dir / "adapter_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {
            key: sorted(value) if isinstance(value, list) else value
            for key, value in settings.items()
        }
        settings["base_model_name_or_path"] = base.name
        path.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    else:
        model.save_pretrained(str(out_dir))
    for weights in out_dir.glob("*.safetensors"):
        give_usual_mode(weights)
    renderer.tokenizer.save_pretrained(str(out_dir))


def token_counts(rows: Sequence[Encoded]) -> dict[str, int]:
    """Of one epoch: all tokens, those with a loss, and the longest row."""
    lengths = [len(row.input_ids) for row in rows]
    trained = sum(sum(row.trained) for row in rows)
    return {"tokens": sum(lengths), "trained_tokens": trained, "longest_row_tokens": max(lengths)}
