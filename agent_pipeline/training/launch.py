"""Starting the other processes of a training, each with a GPU of its own.

The first process is the one that was asked to train. The others train alongside, each its share of every step (`trainers.processes`), and
leave nothing behind.
"""

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_pipeline.errors import SettingsError
from agent_pipeline.progress import silent
from agent_pipeline.training.base_model import BaseModel
from agent_pipeline.training.config import TrainingConfig
from agent_pipeline.training.device import Device
from agent_pipeline.training.loading import load_model
from agent_pipeline.training.masks import Encoded
from agent_pipeline.training.templates import load_tokenizer
from agent_pipeline.training.trainers.common import use_liger
from agent_pipeline.training.trainers.processes import count, own_part
from agent_pipeline.training.trainers.sft import build_trainer

ENDS_WITHIN = 60
"""Seconds that the other processes have to end after the first one's last step."""


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

    Where one of them dies, this process ends too: what it waits for would never come.

    Raises:
        SettingsError: there are fewer GPUs than processes, or several processes were started already.
    """
    import torch

    processes = job.config.processes
    if count() > 1:
        raise SettingsError("This was started several times over (accelerate launch, torchrun): start it once, and set processes.")
    if processes == 1:
        yield
        return
    if torch.cuda.is_available() and torch.cuda.device_count() < processes:
        shown = torch.cuda.device_count()
        raise SettingsError(f"processes is {processes}, and this training sees {shown} GPUs: lower it, or show it more.")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": str(processes)}
    before = dict(os.environ)
    others = [_started(job, address | {"RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(1, processes)]
    ended = threading.Event()
    threading.Thread(target=_end_with, args=(others, ended), daemon=True).start()
    os.environ.update(address | {"RANK": "0", "LOCAL_RANK": "0"})
    try:
        yield
        for other in others:
            other.wait(ENDS_WITHIN)
    finally:
        ended.set()
        for other in others:
            other.kill()
        _leave()
        os.environ.clear()
        os.environ.update(before)


def _started(job: Job, variables: dict[str, str]) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen([sys.executable, "-m", __name__], stdin=subprocess.PIPE, env=os.environ | variables)
    assert process.stdin is not None
    with process.stdin as stdin:
        pickle.dump(job, stdin)
    return process


def _end_with(others: "Sequence[subprocess.Popen[bytes]]", ended: threading.Event) -> None:
    while not ended.wait(1):
        if dead := [other for other in others if other.poll()]:
            logging.getLogger(__name__).error("A process of this training ended with code %d.", dead[0].returncode)
            os._exit(1)


def _leave() -> None:
    """Leave the group of processes, so that a later training of this process is one of its own."""
    from accelerate.state import AcceleratorState, GradientState, PartialState
    from torch import distributed

    if distributed.is_initialized():
        distributed.destroy_process_group()
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
    """Train alongside the process that started this one, whose job comes by standard input."""
    end_with_parent()
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")  # as in the worker
    job: Job = pickle.load(sys.stdin.buffer)

    import torch

    if job.device.name == "cuda":
        torch.cuda.set_device(own_part())
    tokenizer, _ = load_tokenizer(job.base.path, job.base.trust_remote_code)
    model: Any = load_model(job.base, job.device)
    use_liger(model)
    trainer = build_trainer(model, tokenizer, job.rows, job.config, job.device, job.work_dir, silent, job.replayed)
    trainer.train(resume_from_checkpoint=str(job.checkpoint) if job.checkpoint else None)


if __name__ == "__main__":
    main()
