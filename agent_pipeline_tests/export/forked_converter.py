"""A process that has imported what llama.cpp's converter needs, and converts each model in a fork.

A converter in a process of its own spends four fifths of its time on imports. A fork runs the same
script with the arguments, output and exit code of a real process. The tests of the converter's
process, and the test of the whole graph, run the real one.
"""

import json
import os
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any

from agent_pipeline.export import converter

MODULES = (
    "conversion.base",
    "conversion.llama",
    "safetensors.torch",
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.gpt2.tokenization_gpt2",
    "transformers.models.llama.configuration_llama",
)
"""Modules that the scripts import. What the list lacks, each fork imports."""


class ForkedConverter:
    """The process that forks, as its parent sees it; it starts with the first model."""

    def __init__(self) -> None:
        self._lock, self._process = Lock(), None
        self._run_process = converter.run

    def run(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a script of the converter in a fork, and any other program as it is."""
        scripts = [part for part in command[1:3] if part.endswith(".py")]
        if command[0] != sys.executable or not scripts:
            return self._run_process(command, **options)
        arguments = command[command.index(scripts[0]) :]
        with self._lock, TemporaryDirectory() as folder:
            files = [Path(folder) / name for name in ("stdout", "stderr")]
            process = self._process = self._process or self._start(options["env"])
            request = {"arguments": arguments, "files": list(map(str, files))}
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            code = int(process.stdout.readline())
            out, err = (file.read_text("utf-8", "replace") for file in files)
        return subprocess.CompletedProcess(command, code, out, err)

    @staticmethod
    def _start(environment: dict[str, str]) -> "subprocess.Popen[str]":
        # The converter's own packages come first, as in a process of its own.
        path = os.pathsep.join([environment["PYTHONPATH"], *filter(None, sys.path)])
        return subprocess.Popen(
            [sys.executable, "-m", __name__],
            env=environment | {"PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process. It ends at the end of its input."""
        if self._process:
            self._process.communicate(timeout=300)


def become(arguments: list[str], files: list[str]) -> None:
    """Give this process the arguments and the output files of a process of its own."""
    for number, file in zip((0, 1, 2), (os.devnull, *files), strict=True):
        opened = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.argv = arguments


def main() -> None:
    """Answer each request (a line of JSON) with the exit code of its script."""
    for module in MODULES:
        import_module(module)
    while line := sys.stdin.readline():
        child = os.fork()
        if child == 0:
            become(**json.loads(line))
            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
