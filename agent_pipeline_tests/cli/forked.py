"""A process that has imported what commands need, and runs each command in a fork of itself.

A command in a process of its own spends most of its time on imports. A fork runs the same entry point
with the working directory, environment, arguments, output files and exit code of a real process.
A fork can give up root's right to ignore permissions. Commands that are about signals or ports need a
real process instead.
"""

import ctypes
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from agent_pipeline.config import settings

MAX_SECONDS = 300
"""Seconds after which a command is ended by SIGALRM: its exit code is then -14."""
MODULES = (
    *(
        f"agent_pipeline.cli.{name}"
        for name in (
            "champions",
            "checking",
            "compare",
            "governing",
            "labels",
            "models",
            "play",
            "report",
            "runs",
            "sessions",
            "status",
            "stores",
        )
    ),
    "agent_pipeline.config.saving",
    "agent_pipeline.promotion.next_steps",
    "agent_pipeline.ingestion.ingestion",
    "agent_pipeline.redaction.detectors",
    "dagster._core.definitions.antlr_asset_selection.antlr_asset_selection",
    "dagster._core.storage.sqlite_storage",
    "dagster._daemon.controller",
    "kingfisher_sdk",
    "pandas",
    "phonenumbers.phonenumbermatcher",
    "pyarrow.parquet",
    "s3fs",
    "stdnum",
)
"""Modules that commands import. `agent_pipeline.definitions` reads the settings when it is imported, so each command imports it."""


class Server:
    """The process that forks, as its parent sees it.

    Attributes:
        home: Where a Dagster home lies that a command has used, once there is one.
    """

    def __init__(self, home: Path) -> None:
        self.home = home
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COLUMNS": "200"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(
        self,
        arguments: list[str],
        folder: Path,
        environment: dict[str, str],
        outputs: Path,
        is_unprivileged: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run `agent-pipeline` in a fork.

        Args:
            arguments: what follows `agent-pipeline` on the command line.
            folder: the working directory.
            environment: all variables of the command.
            outputs: a folder for the files that receive the command's output.
            is_unprivileged: whether root obeys the permissions of files, as other users do.
        """
        assert self._process.stdin and self._process.stdout
        request = {
            "arguments": arguments,
            "folder": str(folder),
            "environment": environment,
            "is_unprivileged": is_unprivileged,
        }
        files = [outputs / "stdout", outputs / "stderr"]
        self._process.stdin.write(json.dumps(request | {"files": list(map(str, files))}) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended; its error is above"
        out, err = (file.read_text(encoding="utf-8") for file in files)
        return subprocess.CompletedProcess(arguments, int(answer), out, err)

    def close(self) -> None:
        """End the process. It ends at the end of its input."""
        assert self._process.stdin
        self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise


def refuse_to_read_settings() -> None:
    raise AssertionError(
        "a module reads the settings when it is imported: every fork would have the settings of the process that forks"
    )


def import_modules() -> None:
    """Import what commands need, and check that nothing reads the settings meanwhile."""
    code = settings.config_file.__code__  # and not the function, which other modules import by name
    settings.config_file.__code__ = refuse_to_read_settings.__code__
    for module in MODULES:
        import_module(module)
    settings.config_file.__code__ = code
    # Compiling the rules of secrets takes longer than all else that a command does.
    import_module("agent_pipeline.redaction.detectors").Detectors(["API_KEY"], ())
    gc.freeze()  # else a fork that ends visits every object, and copies the memory of all of them


CAPABILITIES_VERSION = 0x20080522
MAY_IGNORE_PERMISSIONS = 0b110
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, in the first 32 bits of a process's capabilities."""


def obey_permissions() -> None:
    """Give up root's right to ignore the permissions of files, as `setpriv` does."""
    libc = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    data = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice 32 bits
    if libc.capget(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for number in range(3):
        data[number] &= ~MAY_IGNORE_PERMISSIONS
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def become(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    files: list[str],
    is_unprivileged: bool,
) -> None:
    """Give this process what a process of its own would have been started with."""
    signal.alarm(MAX_SECONDS)
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    for number, file in zip((0, 1, 2), (os.devnull, *files), strict=True):
        opened = os.open(file, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    if is_unprivileged and os.geteuid() == 0:
        obey_permissions()
    sys.argv = ["agent-pipeline", *arguments]
    sys.path[0] = folder


def main() -> None:
    """Answer each request (a line of JSON) with the exit code of its command; return in a fork, which runs the command."""
    import_modules()
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
            runpy.run_module("agent_pipeline.cli.app", run_name="__main__", alter_sys=True)
            return
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == -signal.SIGALRM:
            with suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)  # what the command has started
        print(code, flush=True)


if __name__ == "__main__":
    main()
