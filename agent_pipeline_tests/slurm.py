"""A Slurm of the test's own: a controller and one node on the loopback, in a folder that goes with it."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import mkdtemp

import pytest

from agent_pipeline_tests.ports import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo")

CONFIGURATION = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/linear
ReturnToService=2
MinJobAge=300
NodeName={host} NodeAddr=127.0.0.1 CPUs=1
PartitionName=main Nodes=ALL Default=YES State=UP
"""


@contextmanager
def cluster() -> Iterator[Path]:
    """The configuration, for the variable SLURM_CONF, of a cluster with one idle node."""
    if os.geteuid() != 0 or not all(map(find_program, PROGRAMS)):
        pytest.skip("no Slurm here, or no root: apt-get install slurm-wlm")
    folder, host = Path(mkdtemp(prefix="agent-pipeline-slurm-")), socket.gethostname().split(".")[0]
    folder.chmod(0o755)
    for name in ("state", "spool"):
        (folder / name).mkdir()
    key = folder / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    configuration = folder / "slurm.conf"
    ports = {"controller_port": free_port(), "node_port": free_port()}
    configuration.write_text(CONFIGURATION.format(host=host, folder=folder, **ports))
    munge = ["--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge"]
    munge += [f"--{name}-file={folder}/munge.{name}" for name in ("pid", "log", "seed")]
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(daemon(folder, "munged", *munge))
        stack.enter_context(daemon(folder, "slurmctld", "-D", "-c", "-f", str(configuration)))
        stack.enter_context(daemon(folder, "slurmd", "-D", "-c", "-f", str(configuration)))
        wait_for_node(folder, configuration)
        yield configuration


def find_program(name: str) -> str | None:
    """The path of a program, which Debian may put into a folder that PATH does not name."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")


@contextmanager
def daemon(folder: Path, name: str, *arguments: str) -> Iterator[None]:
    """A daemon that runs in the foreground and writes its log into the folder."""
    with (folder / f"{name}.out").open("wb") as log:
        command = [str(find_program(name)), *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for_node(folder: Path, configuration: Path) -> None:
    """Wait until the node is idle; fail with the logs after five minutes."""
    environment, end = os.environ | {"SLURM_CONF": str(configuration)}, time.monotonic() + 300
    command = [str(find_program("sinfo")), "--noheader", "--format=%T"]
    while time.monotonic() < end:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text(errors="replace") for path in folder.glob("*.out"))
    raise AssertionError(f"Slurm's node did not become idle:\n{done.stdout}{done.stderr}\n{logs}")
