"""SFT in several processes, each with its own GPU, which `accelerate launch` starts.

The worker encodes the rows, writes the job to a file, and runs this module in every process. The
process with rank 0 reports progress and writes the trained weights; then the worker loads them. How
the rows of a step are shared among the processes belongs to `engine.tree_loss` (`share_rows`) and
to `trainers.sft`.

`accelerate launch --cpu` starts a single process unless MPI is installed. The command therefore
contains `--multi_gpu` on a CPU, too; the trainer itself then chooses the CPU and the backend gloo.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agent_pipeline._compat.trl import count_trained_tokens
from agent_pipeline.errors import LESS_MEMORY, ModelError, SettingsError, first_line
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.loading import load_model
from agent_pipeline.models.threads import ThreadUse, current_thread_use
from agent_pipeline.progress import Progress, silent
from agent_pipeline.training.trainers.common import STATE_FILE, apply_liger
from agent_pipeline.training.trainers.sft import SftJob, build_trainer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerState

JOB_FILE, WEIGHTS_FOLDER, TOKENS_FILE = "job.pickle", "weights", "tokens.json"

SECONDS_TO_END = 30
"""Seconds that `accelerate launch` may take to end its processes after SIGTERM."""


@dataclass(frozen=True)
class TrainedModel:
    """The result of a training run.

    Attributes:
        model: The model with its adapter, or all trained weights.
        state: The state of the trainer, with the log history.
        tokens: The number of tokens that were trained on since the last start.
        threads: The threads of the training; None if they were not measured.
    """

    model: "PreTrainedModel"
    state: "TrainerState"
    tokens: int
    threads: ThreadUse | None = None


def train_in_one_process(
    job: SftJob,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    checkpoint: Path | None,
    progress: Progress,
) -> TrainedModel:
    """Train a model in the current process.

    Args:
        job: What is trained.
        model: The base model.
        tokenizer: Its tokenizer.
        checkpoint: The checkpoint to resume from, or None.
        progress: Is called after each step.
    """
    trainer = build_trainer(job, model, tokenizer, progress)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    return TrainedModel(
        trainer.model, trainer.state, count_trained_tokens(trainer), current_thread_use()
    )


def check_processes(process_count: int) -> None:
    """Check that this machine can train in the configured number of processes.

    Raises:
        SettingsError: several processes were started already, or there are fewer GPUs.
    """
    import torch

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise SettingsError(
            "The training was started in several processes (by accelerate launch or torchrun): "
            "start it once, and set `processes`."
        )
    if process_count > 1 and torch.cuda.is_available():
        gpu_count = torch.cuda.device_count()
        if gpu_count < process_count:
            raise SettingsError(
                f"The setting `processes` is {process_count}, but this training run sees "
                f"{gpu_count} GPUs: lower `processes`, or make more GPUs visible to the run."
            )


def train_in_processes(
    job: SftJob, base: BaseModel, checkpoint: Path | None, progress: Progress
) -> TrainedModel:
    """Train a model in `job.config.processes` processes, and load the result.

    Args:
        job: What is trained.
        base: The base model, which each process loads.
        checkpoint: The checkpoint to resume from, or None.
        progress: Is called after each step.

    Raises:
        ModelError: a process failed. The error holds the reason of the first process that failed.
    """
    from transformers import TrainerState

    folder = job.work_dir / "processes"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / JOB_FILE).write_bytes(pickle.dumps((job, base, checkpoint)))
    # The processes end when their standard input does: if this process is killed, none is left.
    launcher = subprocess.Popen(
        launch_command(job.config.processes, folder),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            _report_line(line, progress)
        exit_code = launcher.wait()
    finally:
        _end(launcher)
    if exit_code != 0:
        raise ModelError(f"A training process ended: {_find_reason(folder, exit_code)}")
    weights = folder / WEIGHTS_FOLDER
    if job.config.use_lora:
        model = load_model(base, job.device, weights)
    else:
        whole = BaseModel(base.name, weights, base.revision, base.trust_remote_code)
        model = load_model(whole, job.device)
    tokens = json.loads((folder / TOKENS_FILE).read_text(encoding="utf-8"))
    return TrainedModel(model, TrainerState.load_from_json(str(folder / STATE_FILE)), tokens)


def launch_command(process_count: int, folder: Path) -> list[str]:
    """Return the command that runs this module in several processes on this machine.

    The options that a user's own configuration file of accelerate could change are set.
    """
    return [
        *(sys.executable, "-m", "accelerate.commands.launch"),
        *("--multi_gpu", "--num_machines", "1", "--num_processes", str(process_count)),
        *("--gpu_ids", "all", "--main_process_port", "0"),
        *("--mixed_precision", "no", "--dynamo_backend", "no"),
        *("--module", __name__, str(folder)),
    ]


def _report_line(line: str, progress: Progress) -> None:
    """Report a line of the process with rank 0 as progress. Print any other line."""
    try:
        done, total, text = json.loads(line)["progress"]
    except (ValueError, KeyError, TypeError):
        print(line, end="", flush=True)
        return
    progress(done, total, text)


def _end(launcher: "subprocess.Popen[str]") -> None:
    if launcher.stdin is not None:
        launcher.stdin.close()
    if launcher.poll() is None:
        launcher.terminate()
    try:
        launcher.wait(SECONDS_TO_END)
    except subprocess.TimeoutExpired:
        launcher.kill()
        launcher.wait()
    if launcher.stdout is not None:
        launcher.stdout.close()


def _find_reason(folder: Path, exit_code: int) -> str:
    """Return the reason for the failure, as the first process that could report it gives it."""
    reasons: Sequence[Path] = sorted(
        folder.glob("error-*"), key=lambda path: path.stat().st_mtime_ns
    )
    if reasons:
        return reasons[0].read_text(encoding="utf-8")
    return (
        f"accelerate launch returned {exit_code}, and no process reported a reason: see the output "
        "above."
    )


def main() -> None:
    """Train as one of several processes. The first argument is the folder that contains the job."""
    rank = int(os.environ["RANK"])
    folder = Path(sys.argv[1])
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # As in the worker: TRL uses names that transformers renames.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    try:
        _train_as_rank(rank, folder)
    except Exception as error:
        reason = first_line(error)
        # torch's out-of-memory error is no MemoryError.
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            reason = f"it ran out of memory: {LESS_MEMORY}."
        (folder / f"error-{rank}").write_text(reason, encoding="utf-8")
        raise


def _exit_with_parent() -> None:
    """End this process when the worker that started the training closes its pipe or dies."""
    # Not `sys.stdin`: a thread that holds its lock would abort the interpreter at a normal end.
    os.read(0, 1)
    os._exit(1)


def _print_progress(done: int, total: int, text: str) -> None:
    print(json.dumps({"progress": [done, total, text]}), flush=True)


def _train_as_rank(rank: int, folder: Path) -> None:
    import torch

    job: SftJob
    base: BaseModel
    checkpoint: Path | None
    job, base, checkpoint = pickle.loads((folder / JOB_FILE).read_bytes())
    if job.device.name == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    renderer = load_renderer(base.path, base.trust_remote_code)
    model: object = load_model(base, job.device)
    apply_liger(model)
    progress = silent if rank else _print_progress
    trained = train_in_one_process(job, model, renderer.tokenizer, checkpoint, progress)
    if rank == 0:
        trained.model.save_pretrained(str(folder / WEIGHTS_FOLDER))
        trained.state.save_to_json(str(folder / STATE_FILE))
        (folder / TOKENS_FILE).write_text(json.dumps(trained.tokens), encoding="utf-8")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
