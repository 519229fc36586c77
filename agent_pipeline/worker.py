"""The worker process, which runs heavy tasks: training, evaluation, scoring and export.

Dagster assets start one process per task through Dagster Pipes, so that the memory of torch is
returned when the task ends. An error that the user can fix comes back as one sentence. The process
ends when its parent ends, or on another machine when the run that asked for it is gone. The tasks
themselves stand in `compute` and `method_comparison`.
"""

import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from filelock import FileLock, Timeout

from agent_pipeline.compute.params import OptionValues, on_this_machine
from agent_pipeline.compute.worker_messages import writer
from agent_pipeline.config.settings import config_file
from agent_pipeline.errors import (
    LESS_MEMORY,
    PipelineError,
    SettingsError,
    disk_sentence,
    first_line,
    is_retryable,
)
from agent_pipeline.method_comparison.task import TASKS
from agent_pipeline.models.device import describe_unused_gpu
from agent_pipeline.models.threads import control_threads, let_idle_threads_sleep
from agent_pipeline.plugins import set_module_folder
from agent_pipeline.progress import throttled


def main() -> None:
    """Run the task that the parent process requests, and report its result or its error."""
    from dagster_pipes import PipesEnvVarParamsLoader, open_dagster_pipes

    _end_with_parent()
    # The parent answers Ctrl-C, and ends this process with SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    let_idle_threads_sleep()
    control_threads()
    # TRL still uses names that transformers renames: nothing that a user could fix, and it would be
    # on the screen with every training.
    warnings.filterwarnings("ignore", category=FutureWarning, module="transformers")
    for variable in (
        "HF_HUB_DISABLE_PROGRESS_BARS",
        "HF_DATASETS_DISABLE_PROGRESS_BARS",
        "TOKENIZERS_PARALLELISM",
    ):
        os.environ.setdefault(variable, "false" if variable.startswith("TOK") else "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    loader = PipesEnvVarParamsLoader()  # type: ignore[no-untyped-call]
    with open_dagster_pipes(message_writer=writer(loader.load_messages_params())) as pipes:
        task = pipes.get_extra("task")
        try:
            _check_version(task, pipes.get_extra("version"))
            _find_user_modules()
            params = TASKS[task].decode(on_this_machine(pipes.get_extra("params")))
            with _turn(Path(params.cache), params.at_once, pipes.log.info) as place:
                if note := describe_unused_gpu():
                    pipes.log.warning(note)
                options: OptionValues = getattr(params, "config", {})
                _use_gpus(place, options.get("processes", 1))
                result = TASKS[task].run(params, throttled(pipes.log.info))
        except PipelineError as error:
            result = {"error": str(error), "passing": is_retryable(error)}
        except Exception as error:
            sentence = disk_sentence(error)
            if (
                isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"
            ):  # torch's, which is not imported here
                sentence = f"The {task} process ran out of memory: {LESS_MEMORY}."
            if sentence is None and is_retryable(error):
                sentence = (
                    f"The {task} process lost a connection ({first_line(error)}): start the run "
                    "again."
                )
            if sentence is None:
                raise
            result = {"error": sentence, "passing": is_retryable(error)}
        pipes.report_custom_message(result)


def _find_user_modules() -> None:
    """Make users' modules next to `pipeline.toml` importable, as in the parent process.

    Another machine may not have the file. Then the modules have to be installed there.
    """
    with suppress(SettingsError):
        file = config_file()
        set_module_folder(file.parent if file else None)


def _end_with_parent() -> None:
    """End this process when its parent process ends, so that no killed run leaves a worker."""
    parent_id = os.getppid()

    def watch() -> None:
        while os.getppid() == parent_id:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _check_version(task: str, requested: int | None) -> None:
    """Check that the worker has the same version of the task as the run.

    Raises:
        SettingsError: the worker has another version, whose result must not pass for the new one.
    """
    if requested is not None and (task not in TASKS or TASKS[task].version != requested):
        raise SettingsError(
            "The worker and the run have different versions of agent-pipeline, because the run "
            f"asks for version {requested} of the task {task}: install the same version for both."
        )


@contextmanager
def _turn(cache: Path, at_once: int, say: Callable[[str], None]) -> Iterator[int]:
    """Wait until this machine has room for another heavy task.

    Two training runs need twice the memory. If a daemon starts the runs, its pools limit them, and
    this function never waits. A run from the shell is in no queue, so it waits here. The locks are
    files, which the system releases when a process is killed.

    Args:
        cache: The folder of the lock files.
        at_once: How many tasks may run at once; 0 means any number.
        say: Called with a sentence if the task has to wait.

    Yields:
        The position of the task among those that run, from 0.
    """
    cache.mkdir(parents=True, exist_ok=True)
    locks = [FileLock(cache / f"worker-{number}.lock") for number in range(at_once)]
    waits = False
    while locks and not any(_taken(lock) for lock in locks):
        if not waits:
            say("waiting for another heavy task on this machine to end")
        waits = True
        time.sleep(1)
    try:
        yield next((number for number, lock in enumerate(locks) if lock.is_locked), 0)
    finally:
        for lock in locks:
            lock.release()


def _use_gpus(place: int, processes: int) -> None:
    """Make one GPU per process of the task visible to torch.

    Tasks that run at once then use different GPUs. If transformers' `Trainer` saw several GPUs, it
    would give each GPU `per_device_train_batch_size` rows. Its steps would have more rows than the
    identity states.

    Args:
        place: The position of the task among those that run, from 0.
        processes: The number of processes of the training run.
    """
    if version("torch").endswith(
        "+cpu"
    ):  # a result that is there already is found without torch, whose import takes seconds
        return
    from torch import cuda

    if (
        gpus := cuda.device_count()
    ) > 1:  # counts by NVML, and leaves CUDA to be initialised with what is set here
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus)))
        names = visible.split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(
            names[(place * processes + offset) % gpus] for offset in range(min(processes, gpus))
        )


def _taken(lock: FileLock) -> bool:
    with suppress(Timeout):
        lock.acquire(timeout=0)
    return lock.is_locked


if __name__ == "__main__":
    main()
