"""Launcher that runs the worker as a job of a Slurm cluster, by `sbatch --wait`."""

import shlex
import subprocess
import sys
from dataclasses import dataclass
from uuid import uuid4

import dagster as dg

from agent_pipeline.compute.launchers.launcher import WORKER, LakeMessages, Launcher
from agent_pipeline.config.compute import SlurmSettings
from agent_pipeline.errors import LESS_MEMORY


@dataclass(frozen=True)
class Slurm(Launcher):
    """A launcher that submits the worker to Slurm and waits for the job."""

    settings: SlurmSettings
    messages: LakeMessages
    where = "on Slurm"
    advice = (
        "its output is in slurm-<number>.out. If the task ran out of memory or time, raise --mem "
        f"or --time in `slurm.arguments`, or {LESS_MEMORY}."
    )

    def start(
        self, context: dg.AssetExecutionContext, extras: dict[str, object]
    ) -> dg.PipesClientCompletedInvocation:
        client = dg.PipesSubprocessClient(
            message_reader=self.messages, context_injector=dg.PipesEnvContextInjector()
        )
        job = f"agent-pipeline-{uuid4().hex[:12]}"
        try:
            return client.run(context=context, command=sbatch(self.settings, job), extras=extras)
        except BaseException:  # an sbatch that is interrupted leaves its job
            subprocess.run(["scancel", f"--name={job}"], check=False)
            raise


def sbatch(settings: SlurmSettings, job: str) -> list[str]:
    """Return the command that submits the worker to Slurm and waits for the job.

    The environment carries the parameters.
    """
    partition = [f"--partition={settings.partition}"] if settings.partition else []
    script = [
        "set -e",
        *settings.setup,
        f"exec {shlex.join([settings.python or sys.executable, *WORKER])}",
    ]
    return [
        "sbatch",
        "--wait",
        "--export=ALL",
        f"--job-name={job}",
        *partition,
        *settings.arguments,
        "--wrap=" + "\n".join(script),
    ]
