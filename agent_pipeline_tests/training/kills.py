"""Trainings that are killed (SIGKILL), each in a process of its own.

The processes are forks of one that has the trainers imported: to import them takes longer than such a training.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

_FORKS = get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "trl.trainer.sft_trainer",
        "trl.trainer.grpo_trainer",
        "transformers.models.llama.modeling_llama",
    ]
)


@dataclass
class KillAt:
    """Progress that kills its process at the end of a step."""

    step: int

    def __call__(self, done: int, total: int, text: str) -> None:
        if "training, loss" in text and done == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(train: Callable[..., Any], *arguments: Any, step: int) -> None:
    """Train in another process, which is killed at the end of a step. `train` takes a `progress`."""
    process = _FORKS.Process(target=train, args=arguments, kwargs={"progress": KillAt(step)})
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL, (
        "it ended otherwise: what it said is on standard error"
    )
