"""Trajectories (FireAct, Chen et al. 2023): run an agent on tasks, keep what went well, train on it.

`model` is the form and its files, `collecting` runs agents, `endpoint` is an agent of its own, `conversion` filters and makes rows.
"""

from agent_pipeline.notebook.trajectories.collecting import CollectorConfig, TrajectoryCollector
from agent_pipeline.notebook.trajectories.conversion import (
    SFTConversionConfig,
    TrajectoryFilter,
    TrajectoryToSFTConverter,
    collect_and_convert,
)
from agent_pipeline.notebook.trajectories.endpoint import EndpointAgent
from agent_pipeline.notebook.trajectories.model import (
    AgentTrajectory,
    TrajectoryStep,
    load_trajectories,
    save_trajectories,
    session_of,
    trajectory_of,
)

__all__ = [
    "AgentTrajectory",
    "CollectorConfig",
    "EndpointAgent",
    "SFTConversionConfig",
    "TrajectoryCollector",
    "TrajectoryFilter",
    "TrajectoryStep",
    "TrajectoryToSFTConverter",
    "collect_and_convert",
    "load_trajectories",
    "save_trajectories",
    "session_of",
    "trajectory_of",
]
