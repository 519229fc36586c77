"""Code for all steps after SFT, which continue to train an adapter and stop if it gets worse.

The result is a directory like that of `sft`, so other packages load it in the same way. What a step
reads and optimizes belongs to `preference_steps` and `on_policy_steps`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from agent_pipeline._compat.trl import count_trained_tokens
from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.errors import DataError
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.threads import current_thread_use
from agent_pipeline.structs import decode_json
from agent_pipeline.training.decision_probes import find_probes
from agent_pipeline.training.provenance import FurtherInput
from agent_pipeline.training.report import DecisionLooks, Look, TrainingReport
from agent_pipeline.training.sft import (
    CHECKPOINT_FOLDER,
    REPORT_FILE,
    describe_training,
    save_trained,
    with_run_figures,
    with_thread_figures,
    write_report,
)
from agent_pipeline.training.trainers.common import (
    checkpoint_step,
    choose_device,
    prepare_work_dir,
)
from agent_pipeline.training.trainers.preferences import SELECT, make_fall_callback

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback


class NothingTrained(DataError):
    """Raised if no adapter was trained, for a reason that is not an error.

    There were too few rows, or the first measurement on the split `select` showed harm.

    Attributes:
        counts: The counts of the rows.
    """

    def __init__(self, text: str, counts: dict[str, Any]) -> None:
        super().__init__(text)
        self.counts = counts


@dataclass(frozen=True)
class StepContext:
    """The objects that a step needs to build its trainer.

    Attributes:
        model: The model with the adapter, ready to be trained.
        device: Where the model is.
        work_dir: Where checkpoints are written.
        fall_callback: The callback that stops training if the adapter gets worse.
    """

    model: "PreTrainedModel"
    device: Device
    work_dir: Path
    fall_callback: "TrainerCallback"


@dataclass(frozen=True)
class StepTrainer:
    """The trainer of a step after SFT, with its settings for this run.

    Attributes:
        trainer: The trainer.
        complete_report: Returns the report with what the step adds after training.
    """

    trainer: "Trainer"
    complete_report: Callable[[TrainingReport], TrainingReport]


@dataclass(frozen=True)
class FurtherStep:
    """A training step after SFT.

    Attributes:
        further_input: The adapter, the rows and the options.
        renderer: The renderer of the adapter.
        counts: How many rows were left out, by reason.
        build: Builds the trainer.
    """

    further_input: FurtherInput
    renderer: ChatRenderer
    counts: dict[str, Any]
    build: Callable[[StepContext], StepTrainer]


def continue_training(step: FurtherStep, out_dir: Path) -> TrainingReport:
    """Continue to train an adapter, and save the new adapter in `out_dir`.

    The kinds of decision are measured on the split `select` while the adapter trains. A killed run
    resumes from its last checkpoint, and ends with the same bytes.

    Returns:
        The report.

    Raises:
        NothingTrained: a kind of decision fell at the first measurement.
        ModelError: the base model or the adapter cannot be loaded.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    began = time.monotonic()
    further_input = step.further_input
    config, base = further_input.config, further_input.base
    work_dir = out_dir / CHECKPOINT_FOLDER
    checkpoint = prepare_work_dir(work_dir, further_input.identity)
    device = choose_device(work_dir, config.precision)
    model = load_model(base, device, further_input.adapter_dir, trainable=True)
    # The reference must be computed by the same products as the training, to be rounded alike.
    speed_up_linear_modules(model)
    probes = find_probes(step.renderer, further_input.select, config.max_length, config.stop_turns)
    fall_callback = make_fall_callback(model, probes, config.stop_fall)
    step_trainer = step.build(StepContext(model, device, work_dir, fall_callback))
    trainer = step_trainer.trainer
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    threads = current_thread_use()
    steps = trainer.state.global_step
    if fall_callback.fallen:
        last_good = prepare_work_dir(work_dir, further_input.identity)
        if last_good is None:
            falls = ", ".join(
                f"{kind} {fall_callback.before[kind]:.2f} → {fall_callback.measured[kind]:.2f}"
                for kind in fall_callback.fallen
            )
            raise NothingTrained(
                f"{further_input.method} made right decisions less probable from the start "
                f"({falls} at step {steps}): lower `learning_rate` or `stop_steps`.",
                step.counts,
            )
        weights = load_file(last_good / "adapter_model.safetensors")
        set_peft_model_state_dict(trainer.model, weights)
        steps = checkpoint_step(last_good)
    looks = [
        Look(entry["step"], entry[SELECT]) for entry in trainer.state.log_history if SELECT in entry
    ]
    described = describe_training(trainer.state, base, step.renderer.template, config, device)
    report = msgspec.structs.replace(
        described,
        identity=further_input.identity,
        method=further_input.method,
        reference=further_input.reference,
        template=_read_first_template(further_input.adapter_dir) or described.template,
        rows=step.counts,
        weights_of_step=steps,
        decisions=DecisionLooks(fall_callback.before, looks),
        stopped_by=fall_callback.fallen,
    )
    report = step_trainer.complete_report(report)
    save_trained(trainer.model, step.renderer, base, out_dir)
    write_report(report, out_dir)
    tokens = count_trained_tokens(trainer)
    report = with_run_figures(report, trainer.state, tokens, checkpoint, began)
    return with_thread_figures(report, trainer.model, threads)


def _read_first_template(adapter_dir: Path) -> dict[str, Any]:
    """Return what the previous adapter's report says about its chat template, if it exists.

    When the adapter is loaded, its template looks like the model's own. The first report tells
    where the template comes from.
    """
    path = adapter_dir / REPORT_FILE
    if not path.is_file():
        return {}
    return decode_json(path.read_bytes(), TrainingReport).template
