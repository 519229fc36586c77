"""The checkpoint that a killed training can go on from, and the precision that it began in."""

import json
import shutil
from pathlib import Path

from agent_pipeline.models.device import Device, Precision, fast_device

COMPLETE = ("optimizer.pt", "scheduler.pt", "rng_state*.pth", "trainer_state.json")


def is_complete(checkpoint: Path) -> bool:
    """Whether all of a checkpoint was written: an adapter's weights or a model's, and `trainer_state.json`, which comes last."""
    try:
        json.loads((checkpoint / COMPLETE[-1]).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return any(checkpoint.glob("*.safetensors")) and all(
        any(checkpoint.glob(name)) for name in COMPLETE
    )


def prepare(work_dir: Path, identity: str) -> Path | None:
    """Make `work_dir` ready for the run `identity`; the last complete checkpoint of the same run, or None.

    Checkpoints of another run (other rows, model or configuration), and half-written ones, are removed.
    """
    mark = work_dir / "identity"
    if not (mark.is_file() and mark.read_text(encoding="utf-8") == identity):
        shutil.rmtree(work_dir, ignore_errors=True)
        work_dir.mkdir(parents=True)
        mark.write_text(identity, encoding="utf-8")
    usable = []
    for checkpoint in work_dir.glob("checkpoint-*"):
        if is_complete(checkpoint):
            usable.append(checkpoint)
        else:
            shutil.rmtree(checkpoint)
    return max(usable, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


def device(work_dir: Path, precision: Precision) -> Device:
    """Where to train, in the precision and by the library that the run of `work_dir` began with: both are measured in every process, and a
    busy CPU may give another answer, with which a training that was killed would end in other weights."""
    mark = work_dir / "precision"
    begun = fast_device(precision)
    if mark.is_file():
        text = mark.read_text(encoding="utf-8")
        begun = Device(begun.name, "bfloat16" in text, "oneDNN" in text and begun.name == "cpu")
    mark.write_text(str(begun), encoding="utf-8")
    return begun
