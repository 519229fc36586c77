"""Training an adapter on: what all steps of the chain after imitation have in common.

The directory is that of `adapter`: another room loads it in the same way.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agent_pipeline.engine.packed_linear import fast_products
from agent_pipeline.errors import DataError
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import ChatRenderer
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.sessions.session import hash_json
from agent_pipeline.training import checkpoints
from agent_pipeline.training.config import FurtherTraining
from agent_pipeline.training.decision_probes import probes
from agent_pipeline.training.sft import (
    REPORT,
    finished,
    run_figures,
    save_trained,
    trained_report,
)
from agent_pipeline.training.trainers.preferences import SELECT, stop_on_fall

if TYPE_CHECKING:
    from transformers import PreTrainedModel, Trainer, TrainerCallback

Row = dict[str, Any]


class NothingTrained(DataError):
    """There is no adapter, for a reason that is not a fault: too few rows, or a first look at `select` that showed harm. `counts` are those
    of the rows."""

    def __init__(self, text: str, counts: dict[str, Any]) -> None:
        super().__init__(text)
        self.counts = counts


@dataclass(frozen=True)
class Start:
    """What a training goes on from: the adapter in `adapter_dir`, its tokenizer and template; `origin` is what the result is made from."""

    base: BaseModel
    adapter_dir: Path
    renderer: ChatRenderer
    origin: dict[str, Any]


Build = Callable[
    ["PreTrainedModel", Device, Path, "TrainerCallback"],
    tuple["Trainer", Callable[[], dict[str, Any]]],
]
"""The trainer over a model on a device, with a folder for checkpoints and a callback that watches; and what the report says afterwards."""


def origin_of(
    method: str,
    rows: Sequence[Row],
    select: Sequence[Row],
    base: BaseModel,
    reference: str,
    config: FurtherTraining,
    **more: Any,
) -> dict[str, Any]:
    """What such an adapter is trained from: the identity of the adapter that it starts from, the rows, the SFT rows of `select` that it is
    watched on, the configuration, and `more` that a method needs to name (a world, a teacher)."""
    return {
        "method": method,
        "base_model": base.name,
        "base_revision": base.revision,
        "reference": reference,
        "config": config.identity(),
        "content_sha256": _content(rows),
        "select_sha256": _content(select),
        "rows": len(rows),
        "sessions": sorted(
            {
                row[name]
                for row in rows
                for name in ("session_id", "rejected_session_id")
                if name in row
            }
        ),
        **more,
    }


def _content(rows: Sequence[Row]) -> str:
    names = ("row_id", "messages", "prompt", "chosen", "rejected", "completion", "label", "tools")
    return hash_json([{name: row[name] for name in names if name in row} for row in rows])


def train_on(
    start: Start,
    config: FurtherTraining,
    out_dir: Path,
    select: Sequence[Row],
    counts: dict[str, Any],
    build: Build,
) -> dict[str, Any]:
    """Train the adapter on, watched on the kinds of decision in `select`, and leave the new one in `out_dir`; the report is returned.

    A killed training goes on from its last checkpoint and ends with the same bytes.

    Raises:
        NothingTrained: a kind of decision fell at the first look.
        ModelError: base or adapter cannot be loaded.
    """
    from peft import set_peft_model_state_dict
    from safetensors.torch import load_file

    began = time.monotonic()
    identity, method = hash_json(start.origin), start.origin["method"]
    work_dir = out_dir / "checkpoints"
    checkpoint = checkpoints.prepare(work_dir, identity)
    device = checkpoints.device(work_dir, config.precision)
    model = load_model(start.base, device, start.adapter_dir, trainable=True)
    fast_products(model)  # before what the reference says is computed, which is then rounded alike
    watch = stop_on_fall(
        model,
        probes(start.renderer, select, config.max_length, config.stop_turns),
        config.stop_fall,
    )
    trainer, figures = build(model, device, work_dir, watch)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    trained = trainer.state.global_step
    if watch.fallen:
        good = checkpoints.prepare(work_dir, identity)
        if good is None:
            falls = ", ".join(
                f"{kind} {watch.before[kind]:.2f} → {watch.measured[kind]:.2f}"
                for kind in watch.fallen
            )
            raise NothingTrained(
                f"{method} made right decisions less probable from the start ({falls} at step {trained}): lower "
                "learning_rate or stop_steps.",
                counts,
            )
        set_peft_model_state_dict(trainer.model, load_file(good / "adapter_model.safetensors"))
        trained = int(good.name.rpartition("-")[2])
    looks = [
        {"step": entry["step"], SELECT: entry[SELECT]}
        for entry in trainer.state.log_history
        if SELECT in entry
    ]
    # The adapter's chat template passes for the model's own when it is loaded with the adapter: what its report says of it stays true.
    before = start.adapter_dir / REPORT
    template = (
        {"template": json.loads(before.read_text(encoding="utf-8"))["template"]}
        if before.is_file()
        else {}
    )
    report = {
        "identity": identity,
        "method": method,
        "reference": start.origin["reference"],
        **trained_report(trainer, start.base, start.renderer.template, config, device),
        **template,
        "rows": counts,
        "weights_of_step": trained,
        "decisions": {"before": watch.before, "looks": looks},
        "stopped_by": watch.fallen,
        **figures(),
    }
    save_trained(trainer.model, start.renderer, start.base, out_dir)
    return finished(report, out_dir, work_dir) | run_figures(trainer, checkpoint, began)
