"""Imitation learning (SFT) of a LoRA adapter, from rows to a directory with the adapter.

The directory holds PEFT's `adapter_model.safetensors` and `adapter_config.json`, the tokenizer with
the *training* chat template, and `training.json`. No file holds a time or a local path, so the same
input gives the same bytes. With `use_lora=False` the directory is that of a whole model.

The report and the saved directory are also used by the steps after SFT (`further_steps`).
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET

from agent_pipeline.engine.scoring import average_losses, compute_losses
from agent_pipeline.engine.tree_loss import explain_no_trees
from agent_pipeline.errors import DataError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import TRAINING_REPORT, ChatRenderer, load_renderer
from agent_pipeline.models.chat_templates import ChatTemplate
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.threads import ThreadUse
from agent_pipeline.progress import Progress, silent
from agent_pipeline.selection.buffer import count_replayed, parse_ratio
from agent_pipeline.storage.filesystem import give_usual_mode
from agent_pipeline.structs import convert_value
from agent_pipeline.tokenization.encoding import EncodedRow, encode_rows
from agent_pipeline.tokenization.length_check import check_calls, check_fit, read_context_length
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import Training
from agent_pipeline.training.distributed import (
    check_processes,
    train_in_one_process,
    train_in_processes,
)
from agent_pipeline.training.forecast import (
    measure_available_memory,
    measure_flops,
    plan_training,
)
from agent_pipeline.training.provenance import Row, SftInput
from agent_pipeline.training.rehearsal import RehearsalAmount, rehearse
from agent_pipeline.training.report import BaseName, LogEntry, TrainingReport
from agent_pipeline.training.size_defaults import (
    SIZED_OPTIONS,
    SMALL_BASE_OPTIONS,
    count_base_weights,
    fill_row_defaults,
    fill_size_defaults,
    needs_lengths,
)
from agent_pipeline.training.trainers.common import (
    apply_liger,
    checkpoint_step,
    choose_device,
    count_row_token_flops,
    prepare_work_dir,
)
from agent_pipeline.training.trainers.sft import SftJob
from agent_pipeline.training.varied_epochs import describe_variation, join_rows, vary_epochs

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, TrainerState

LOGGED = tuple(LogEntry.__annotations__)
"""Entries of the trainer's log that a training report keeps."""

REPORT_FILE = TRAINING_REPORT
CHECKPOINT_FOLDER = "checkpoints"


def train_adapter(
    sft_input: SftInput,
    out_dir: Path,
    heldout: Sequence[Row] = (),
    progress: Progress = silent,
) -> TrainingReport:
    """Train an adapter on SFT rows, and save it in a directory.

    If the run was killed before, it resumes from its last checkpoint in `out_dir`. A row that is
    too long, or that the chat template cannot render, is left out and counted by its reason in the
    report's `rows`. Replayed rows are mixed in evenly, up to the ratio; if new rows were left out,
    some replayed rows are left out too, and counted. The options may vary the rows of each epoch.

    Args:
        sft_input: The rows, the base model and the options.
        out_dir: The directory.
        heldout: SFT rows that are never trained on. The report has their loss before and after.
        progress: Is called after each row and each step.

    Returns:
        The content of `training.json`, plus `seconds`, `tokens_per_second` and `resumed_from` (a
        step), which differ from run to run.

    Raises:
        DataError: no row can be trained on, too many rows do not fit (`most_dropped`), no call is
            left of an agent that makes calls, or a row is not of the split `train`.
        ModelError: the base model cannot be trained.
    """
    began = time.monotonic()
    base, config = sft_input.base, sft_input.config
    check_processes(config.processes)
    check_train_split([*sft_input.rows, *sft_input.replayed])
    renderer = sft_input.renderer
    joined = join_rows(renderer, sft_input.rows, config)
    new = _encode_new_rows(sft_input, [joined_row.row for joined_row in joined], progress)
    replayed = _encode_replayed_rows(sft_input, len(new.rows), progress)
    encoded = new.rows + replayed.rows
    # The turns of a row follow each other.
    members = {joined_row.row["row_id"]: joined_row.row_ids for joined_row in joined}
    row_ids = [
        member
        for row_id, _ in groupby(row.row_id for row in encoded)
        for member in members.get(row_id, (row_id,))
    ]
    work_dir = out_dir / CHECKPOINT_FOLDER
    checkpoint = prepare_work_dir(work_dir, sft_input.identity)

    precision = config.precision
    if precision == "auto" and not config.use_lora:
        # bfloat16 weights would round small steps away. The weights of an adapter are float32
        # always.
        precision = "float32"
    device = choose_device(work_dir, precision)
    plan = plan_training(base, config, [row.encoded for row in encoded], device)
    if plan is not None:
        forecast = plan.forecast(measure_available_memory(device), measure_flops(device))
        plan.check(forecast)
        warning = plan.warn(forecast)
        progress(0, len(encoded), " ".join(filter(None, [warning, forecast.describe(), "rows"])))
    model = load_model(base, device)
    rehearsed = rehearse(
        model,
        renderer,
        sft_input.rows,
        RehearsalAmount(len(encoded), sft_input.rehearsal),
        config.max_length,
        progress,
    )
    encoded = encoded + rehearsed
    mixed_in = len(replayed.rows) + len(rehearsed)
    varied = vary_epochs(renderer, encoded, mixed_in, config, progress)
    tokens = varied.epochs[0]
    heldout_rows = encode_rows(renderer, list(heldout), config.max_length)

    def compute_heldout_loss(model: "PreTrainedModel | PeftModel") -> float | None:
        rows = [row.encoded for row in heldout_rows.rows]
        return average_losses(compute_losses(model, rows, progress))

    heldout_before = None if config.use_lora else compute_heldout_loss(model)
    kernels = apply_liger(model)
    later_epochs = varied.epochs[1:] if varied.is_varied else None
    job = SftJob(tokens, config, device, work_dir, mixed_in, later_epochs)
    if config.processes == 1:
        trained = train_in_one_process(job, model, renderer.tokenizer, checkpoint, progress)
    else:
        del model  # the first process needs the memory of the GPU
        trained = train_in_processes(job, base, checkpoint, progress)
    report = msgspec.structs.replace(
        describe_training(trained.state, base, renderer.template, config, device),
        identity=sft_input.identity,
        rows=new.counts,
        kernels=kernels or UNSET,
        row_by_row=explain_no_trees(trained.model, job.all_rows, config.processes) or UNSET,
        replay=replayed.counts if sft_input.replayed else UNSET,
        rehearsed=len(rehearsed) if sft_input.rehearsal else UNSET,
        variation=describe_variation(varied, joined),
        row_ids=row_ids,
        **count_tokens(tokens, job.all_rows),
    )
    if heldout:
        final_model = trained.model.eval()
        if config.use_lora:
            with final_model.disable_adapter():
                heldout_before = compute_heldout_loss(final_model)
        losses = {
            "rows": heldout_rows.counts["in"],
            "scored": heldout_rows.counts["trained"],
            "before": heldout_before,
            "after": compute_heldout_loss(final_model),
        }
        report = msgspec.structs.replace(report, heldout=losses)
    save_trained(trained.model, renderer, base, out_dir)
    write_report(report, out_dir)
    report = with_run_figures(report, trained.state, trained.tokens, checkpoint, began)
    return with_thread_figures(report, trained.model, trained.threads)


def resolve_sft_options(
    values: Mapping[str, object], base: BaseModel, rows: Sequence[Row]
) -> dict[str, Any]:
    """Fill in the options that depend on the size of the base model and on the rows.

    The rows are tokenized only if an option depends on their lengths.

    Args:
        values: Options of the step sft, by name, with 0 for what is left open.
        base: The base model.
        rows: The rows to train on.
    """
    context = read_context_length(base.path)
    if all(values.get(name) for name in (*SIZED_OPTIONS, *SMALL_BASE_OPTIONS)):
        return fill_row_defaults(values, None, [], context)
    weights = count_base_weights(base)
    lengths: list[int] = []
    if needs_lengths(values, weights):
        renderer = load_renderer(base.path, base.trust_remote_code)
        encoded = encode_rows(renderer, list(rows), context or sys.maxsize)
        lengths = [len(row.encoded.input_ids) for row in encoded.rows]
    filled = fill_size_defaults(values, "sft", weights)
    return fill_row_defaults(filled, weights, lengths, context)


@dataclass(frozen=True)
class _EncodedRows:
    """Rows as tokens, and the number of rows that were left out, by reason."""

    rows: list[EncodedRow]
    counts: dict[str, Any]


def _encode_new_rows(sft_input: SftInput, rows: list[Row], progress: Progress) -> _EncodedRows:
    base, config = sft_input.base, sft_input.config
    encoded, counts, first_dropped = encode_rows(
        sft_input.renderer, rows, config.max_length, progress
    )
    if not rows:
        raise DataError("There are no rows to train on: log and judge more sessions.")
    if not encoded:
        raise DataError(f"None of {len(rows)} rows can be used for training. {first_dropped}")
    check_calls(rows, [row.messages for row in encoded], config.max_length)
    check_fit(counts, config.max_length, config.most_dropped, base.path, first_dropped)
    return _EncodedRows(encoded, counts)


def _encode_replayed_rows(sft_input: SftInput, new_count: int, progress: Progress) -> _EncodedRows:
    """Encode replayed rows, and keep as many as the ratio allows for `new_count` new rows."""
    ratio, max_length = sft_input.replay_ratio, sft_input.config.max_length
    encoded = encode_rows(sft_input.renderer, list(sft_input.replayed), max_length, progress)
    kept = encoded.rows[: count_replayed(new_count, parse_ratio(ratio))]
    counts = encoded.counts | {
        "over_the_ratio": len(encoded.rows) - len(kept),
        "trained": len(kept),
        "ratio_asked": ratio,
        "ratio": len(kept) / (new_count + len(kept)),
    }
    return _EncodedRows(kept, counts)


def check_train_split(rows: Sequence[Row]) -> None:
    """Check that all rows belong to the split `train`.

    Raises:
        DataError: a row is of another split.
    """
    other_splits = sorted({row["split"] for row in rows} - {"train"})
    if other_splits:
        raise DataError(
            f"The training rows contain rows of the split {other_splits[0]}: pass only rows of "
            "the split train."
        )


def describe_training(
    state: "TrainerState",
    base: BaseModel,
    template: ChatTemplate,
    config: Training,
    device: Device,
) -> TrainingReport:
    """Return the part of a report that all steps share: model, data, method, and results.

    Args:
        state: The state of the trainer.
        base: The base model.
        template: The chat template of the rows.
        config: The options.
        device: Where the model was trained.
    """
    entries = [
        {name: entry[name] for name in LOGGED if name in entry}
        for entry in state.log_history
        if "loss" in entry
    ]
    history = convert_value(entries, list[LogEntry])
    return TrainingReport(
        base=BaseName(base.name, base.revision),
        template=template.to_report(),
        config=config.model_dump(),
        device=str(device),
        steps=state.global_step,
        loss_first=history[0]["loss"],
        loss_last=history[-1]["loss"],
        log_history=history,
        versions={name: version(name) for name in ("torch", "transformers", "trl", "peft")},
    )


def write_report(report: TrainingReport, out_dir: Path) -> None:
    """Write a training report, and remove the checkpoints."""
    text = json.dumps(report.to_json(), indent=1, ensure_ascii=False)
    (out_dir / REPORT_FILE).write_text(text + "\n", encoding="utf-8")
    shutil.rmtree(out_dir / CHECKPOINT_FOLDER, ignore_errors=True)


def with_run_figures(
    report: TrainingReport,
    state: "TrainerState",
    trained_tokens: int,
    checkpoint: Path | None,
    began: float,
) -> TrainingReport:
    """Return a report with the numbers that differ between runs, such as durations.

    Args:
        report: The report that was written.
        state: The state of the trainer.
        trained_tokens: Tokens that were trained on since the last start, padding not counted.
        checkpoint: The checkpoint that the run resumed from, or None.
        began: When the run began, by `time.monotonic`.

    Returns:
        The report with the seconds, the tokens per second of this run's own steps (0 if there were
        none left), and the step that the run resumed from.
    """
    resumed_from = checkpoint_step(checkpoint)
    runtimes = [entry["train_runtime"] for entry in state.log_history if "train_runtime" in entry]
    speed = 0.0
    if runtimes and runtimes[-1] and state.global_step > resumed_from:
        speed = trained_tokens / runtimes[-1]
    return msgspec.structs.replace(
        report,
        seconds=time.monotonic() - began,
        tokens_per_second=speed,
        resumed_from=resumed_from,
    )


def with_thread_figures(
    report: TrainingReport, model: "PreTrainedModel | PeftModel", threads: ThreadUse | None
) -> TrainingReport:
    """Return a report with the threads of the training, and the share of the measured rate.

    Args:
        report: The report, with `tokens_per_second`.
        model: The trained model.
        threads: The threads; None if they were not measured.
    """
    if threads is None:
        return report
    operations = float(report.tokens_per_second or 0) * count_row_token_flops(model)
    share = operations / threads.flops if threads.flops else 0.0
    return msgspec.structs.replace(report, threads=threads, matrix_share=share)


def save_trained(
    model: "PreTrainedModel | PeftModel",
    renderer: ChatRenderer,
    base: BaseModel,
    out_dir: Path,
) -> None:
    """Save an adapter or a whole model together with its tokenizer.

    The function removes everything that would differ between two equal runs: paths, and the order
    of sets.

    Args:
        model: The model.
        renderer: Its tokenizer, and the training template, which are saved together.
        base: The base model, which the adapter's configuration names.
        out_dir: The directory.
    """
    if hasattr(model, "disable_adapter"):
        # PEFT's "auto" would query the hub whether the vocabulary has grown; ours never does. TRL's
        # GRPO also holds the adapter that it starts from, which must not be saved.
        model.save_pretrained(
            str(out_dir), save_embedding_layers=False, selected_adapters=["default"]
        )
        (out_dir / "README.md").unlink(missing_ok=True)
        path = out_dir / "adapter_config.json"
        settings = json.loads(path.read_text(encoding="utf-8"))
        for name, value in settings.items():
            if isinstance(value, list):
                settings[name] = sorted(value)
        settings["base_model_name_or_path"] = base.name
        path.write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    else:
        model.save_pretrained(str(out_dir))
    for weights in out_dir.glob("*.safetensors"):
        give_usual_mode(weights)
    renderer.tokenizer.save_pretrained(str(out_dir))


def count_tokens(rows: Sequence[Encoded], all_rows: Sequence[Encoded] = ()) -> dict[str, int]:
    """Count the tokens of an epoch: all tokens, trained tokens, and tokens of the longest row.

    Args:
        rows: The rows of the epoch.
        all_rows: The rows of all epochs, one of which is the longest row.
    """
    return {
        "tokens": sum(len(row.input_ids) for row in rows),
        "trained_tokens": sum(sum(row.trained) for row in rows),
        "longest_row_tokens": max(len(row.input_ids) for row in all_rows or rows),
    }
