"""Starting the other processes of a training, each with a GPU of its own.

The first process is the one that was asked to train. The others train alongside, each its share of every step (`trainers.processes`), and
leave nothing behind.
"""

import logging
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_pipeline.engine.processes import count, own_part
from agent_pipeline.errors import LESS_MEMORY, ModelError, PipelineError, SettingsError, first_line
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import Device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import silent
from agent_pipeline.tokenization.loss_masks import Encoded
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.trainers.common import use_liger
from agent_pipeline.training.trainers.sft import build_trainer

JOB, READY = "job.pickle", ".ready"

ENDS_WITHIN = 60
"""Seconds that the other processes have to end after the last step."""

GRACE = 15
"""Seconds after the death of another process in which what waits for it may raise by itself: NCCL may wait for ever."""


@dataclass(frozen=True)
class Job:
    """What the other processes need to know to train alongside."""

    base: BaseModel
    device: Device
    rows: list[Encoded]
    config: TrainingConfig
    work_dir: Path
    replayed: int
    checkpoint: Path | None


@contextmanager
def together(job: Job) -> Iterator[None]:
    """Have `config.processes` − 1 other processes train the same, while the body does; with one process there are no others.

    Raises:
        SettingsError: there are fewer GPUs than processes, or several processes were started already.
        ModelError: another process died. Where this one waits for it for ever, it ends.
    """
    import torch

    processes = job.config.processes
    if count() > 1:
        raise SettingsError(
            "This was started several times over (accelerate launch, torchrun): start it once, and set processes."
        )
    if processes == 1:
        yield
        return
    if torch.cuda.is_available() and torch.cuda.device_count() < processes:
        shown = torch.cuda.device_count()
        raise SettingsError(
            f"processes is {processes}, and this training sees {shown} GPUs: lower it, or show it more."
        )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(processes),
        }
    before, ended = dict(os.environ), threading.Event()
    others: list[subprocess.Popen[bytes]] = []
    of_others = job.work_dir / "processes"
    shutil.rmtree(of_others, ignore_errors=True)
    of_others.mkdir(parents=True)
    (of_others / JOB).write_bytes(pickle.dumps(job))
    try:
        for rank in map(str, range(1, processes)):
            variables = address | {"RANK": rank, "LOCAL_RANK": rank}
            others.append(
                subprocess.Popen(
                    [sys.executable, "-m", __name__, str(of_others)], env=before | variables
                )
            )
        while len(list(of_others.glob(f"*{READY}"))) < len(
            others
        ):  # what meets before waits for a dead one for ever
            if reason := _reason(others, of_others):
                raise ModelError(f"Another process of this training ended: {reason}")
            time.sleep(0.1)
        threading.Thread(target=_end_with, args=(others, ended, of_others), daemon=True).start()
        os.environ.update(address | {"RANK": "0", "LOCAL_RANK": "0"})
        yield
        _leave()
        for other in others:
            with suppress(subprocess.TimeoutExpired):
                other.wait(ENDS_WITHIN)
    except Exception as error:
        with suppress(
            subprocess.TimeoutExpired
        ):  # that another does not answer is heard of before its end
            for other in others:
                other.wait(1)
        if not isinstance(error, PipelineError) and (reason := _reason(others, of_others)):
            raise ModelError(f"Another process of this training ended: {reason}") from error
        raise
    finally:
        ended.set()
        os.environ.clear()
        os.environ.update(before)
        for other in others:
            other.kill()
            other.wait()
        _leave(abort=True)


def _reason(others: "Sequence[subprocess.Popen[bytes]]", of_others: Path) -> str:
    """Why another process died; empty where none did."""
    dead = [(rank, other.returncode) for rank, other in enumerate(others, 1) if other.poll()]
    if not dead:
        return ""
    rank, code = dead[0]
    error = of_others / str(rank)
    return error.read_text(encoding="utf-8") if error.is_file() else f"code {code}, without a word."


def _end_with(
    others: "Sequence[subprocess.Popen[bytes]]", ended: threading.Event, of_others: Path
) -> None:
    while not ended.wait(1):
        if any(other.poll() for other in others):
            if not ended.wait(GRACE):
                logging.getLogger(__name__).error(
                    "Another process of this training ended: %s", _reason(others, of_others)
                )
                os._exit(1)
            return


def _leave(abort: bool = False) -> None:
    """Leave the group of processes, so that a later training of this process is one of its own. All leave it together; one alone aborts
    it, and waits for nobody."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from torch import distributed

    try:
        if distributed.is_initialized() and abort and distributed.get_backend() == "nccl":
            distributed.distributed_c10d._abort_process_group()
        elif distributed.is_initialized():
            distributed.destroy_process_group()
    except (RuntimeError, AttributeError) as error:
        logging.getLogger(__name__).warning(
            "The group of processes was not left: %s", first_line(error)
        )
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


def end_with_parent() -> None:
    """End this process when the one that started it does: a killed run leaves no trainer behind."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Train alongside the process that started this one; its first argument is the folder where the job lies, and where to leave why it
    could not be done."""
    end_with_parent()
    warnings.filterwarnings(
        "ignore", category=FutureWarning, module="transformers"
    )  # as in the worker
    folder = Path(sys.argv[1])
    try:
        _train_alongside(folder, pickle.loads((folder / JOB).read_bytes()))
    except Exception as error:
        out_of_memory = (
            isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
        )  # torch's
        sentence = f"it ran out of memory: {LESS_MEMORY}." if out_of_memory else first_line(error)
        (folder / str(own_part())).write_text(sentence, encoding="utf-8")
        raise


def _train_alongside(folder: Path, job: Job) -> None:
    import torch

    if job.device.name == "cuda":
        torch.cuda.set_device(own_part())
    renderer = load_renderer(job.base.path, job.base.trust_remote_code)
    model: Any = load_model(job.base, job.device)
    use_liger(model)
    (folder / f"{own_part()}{READY}").touch()
    trainer = build_trainer(
        model,
        renderer.tokenizer,
        job.rows,
        job.config,
        job.device,
        job.work_dir,
        silent,
        job.replayed,
    )
    trainer.train(resume_from_checkpoint=str(job.checkpoint) if job.checkpoint else None)
    _leave()


if __name__ == "__main__":
    main()
