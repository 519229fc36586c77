"""Commands that are killed at a file event, for tests that repeat them afterwards, and programs of forks."""

import faulthandler
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from agent_pipeline.storage.filesystem import is_staged

WRITES = {
    "os.rename",
    "os.remove",
    "os.link",
    "os.mkdir",
    "os.rmdir",
    "os.truncate",
    "shutil.copyfile",
    "sqlite3.connect",
}
"""The audit events of CPython that change a disk; opening a file to write it is another."""

STEP = 1 if os.environ.get("AGENT_PIPELINE_KILL_AT_ALL_POINTS") else 5
"""By default a test kills at every fifth point, since each kill repeats a whole command."""


MAX_SECONDS = 120
"""Seconds after which a fork prints where it stands, and ends with exit code 1."""


def run_python(program: str, *arguments: str) -> str:
    """Run a program in a Python process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def watch_fork() -> None:
    """Let this process, a fork, end if it hangs.

    A fork has none of the threads of its parent, but it has the locks that they held. If an earlier
    test left a thread behind, a fork may wait for such a lock for ever, and its parent for the fork.
    """
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True, file=sys.__stderr__)


def kill_points() -> range:
    """Return the numbers of the events at which a command is killed; it ends before the last."""
    return range(1, 2000, STEP)


def run_killed(command: Callable[[], object], event_number: int) -> bool:
    """Run a command in a process of its own, killed at its n-th event. Return whether it was killed."""
    if (child := os.fork()) == 0:
        watch_fork()
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            left = [event_number]

            def count(event: str, details: tuple[object, ...]) -> None:
                if event in WRITES or (
                    event == "open" and isinstance(details[2], int) and details[2] & os.O_ACCMODE
                ):
                    left[0] -= 1
                    if left[0] == 0:
                        os.kill(os.getpid(), signal.SIGKILL)

            sys.addaudithook(count)
            command()
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), status
    return status == signal.SIGKILL


def tree(folder: Path) -> dict[str, str]:
    """Return the sha256 of every file beneath a folder, and every empty folder, without locks.

    A staged file of an hour ago may be another process's, so only a sweep removes it. Its name is drawn at random.
    """
    entries = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_dir():
            if not any(path.iterdir()):
                entries[f"{name}/"] = ""
        elif path.suffix != ".lock" and not is_staged(path.name):
            entries[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return entries
