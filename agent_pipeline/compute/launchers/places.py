"""The choice of a launcher according to the setting `compute`."""

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
    """Return the launcher for the worker that builds an agent's asset.

    Args:
        settings: The settings.
        asset: The asset, or the group of options of a training step.
        key: The agent's partition.
        pipes: The client that starts processes of this machine.

    Raises:
        SettingsError: the chosen place cannot be used.
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
