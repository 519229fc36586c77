"""The launcher of each place that the setting `compute` may name."""

import dagster as dg

from agent_pipeline.compute.launchers.kubernetes import Kubernetes
from agent_pipeline.compute.launchers.launcher import LakeMessages, Launcher
from agent_pipeline.compute.launchers.ray import Ray
from agent_pipeline.compute.launchers.slurm import Slurm
from agent_pipeline.compute.launchers.subprocess import Subprocess
from agent_pipeline.config.checks import check_place
from agent_pipeline.config.settings import Settings
from agent_pipeline.keys import PartitionKey


def launcher(
    settings: Settings, asset: str, key: PartitionKey, pipes: dg.PipesSubprocessClient
) -> Launcher:
    """What starts the worker for an agent's asset; `pipes` starts processes of this machine.

    Raises:
        SettingsError: tasks cannot run where the settings say.
    """
    if (place := settings.place(asset, key)) == "local":
        return Subprocess(pipes)
    check_place(settings, place)
    messages = LakeMessages(settings, asset, key)
    if place == "ray":
        return Ray(settings.ray, messages)
    return (
        Kubernetes(settings.kubernetes, messages)
        if place == "kubernetes"
        else Slurm(settings.slurm, messages)
    )
