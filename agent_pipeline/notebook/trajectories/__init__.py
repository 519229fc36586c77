"""Trajectories (FireAct, Chen et al. 2023): run an agent on tasks, keep what went well, train on it.

`model` is the form and its files, `collecting` runs agents, `endpoint` is an agent of its own, `conversion` filters and makes rows.
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from agent_pipeline.datasets.splits import TaskSplit, with_splits
from agent_pipeline.errors import DataError
from agent_pipeline.notebook.trajectories.collecting import (
    Agent,
    CollectorConfig,
    InfrastructureError,
    Judge,
    TrajectoryCollector,
)
from agent_pipeline.notebook.trajectories.conversion import SFTConversionConfig, TrajectoryFilter, TrajectoryToSFTConverter
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
    "InfrastructureError",
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


def collect_and_convert(
    agent: Agent,
    tasks: Iterable[Any],
    min_reward: float = 0.5,
    require_success: bool = True,
    *,
    collector: CollectorConfig | None = None,
    conversion: SFTConversionConfig | None = None,
    judge: Judge | None = None,
    split: TaskSplit | None = None,
) -> list[dict[str, Any]]:
    """Rows of the runs that went well, in the order of the tasks; with `split` (a ledger), each has the split of its task.

    Raises:
        DataError: none did; says what became of them.
    """
    collecting = TrajectoryCollector(agent, collector or CollectorConfig(require_success=require_success), judge)
    runs = collecting.collect(tasks)
    chosen = TrajectoryFilter(min_reward, require_success)
    converter = TrajectoryToSFTConverter(conversion)
    rows = converter.convert(chosen.filter(runs))
    if not rows:
        became = collecting.counts | Counter(chosen.get_stats(runs)["dropped"]) | converter.counts
        reasons = ", ".join(f"{name} {count}" for name, count in sorted(became.items()) if count and name != "trajectories")
        raise DataError(f"No run of the agent makes a training row ({reasons}): lower min_reward, or give tasks that it can do.")
    return rows if split is None else list(with_splits(rows, split))
