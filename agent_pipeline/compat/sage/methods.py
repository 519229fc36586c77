"""The ways to train an agent that are compared with one another (SAGE's names), each as a
configuration that does what it says.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_pipeline.compat.examples import counted
from agent_pipeline.compat.sage.agent import AgentSFTConfig
from agent_pipeline.compat.sage.trajectories.conversion import (
    TrajectoryFilter,
    TrajectoryToSFTConverter,
)
from agent_pipeline.compat.sage.trajectories.model import AgentTrajectory, load_trajectories
from agent_pipeline.compat.samples import rows_only
from agent_pipeline.compute.params import common_values, on_this_machine
from agent_pipeline.config.assets import ComparisonConfig
from agent_pipeline.config.methods import METHODS, QUICK, MethodSettings
from agent_pipeline.config.resolution import resolve
from agent_pipeline.config.settings import load_settings
from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer
from agent_pipeline.errors import ArgumentError, DataError
from agent_pipeline.keys import parse_key
from agent_pipeline.method_comparison.plan import comparison
from agent_pipeline.progress import Progress, silent


@dataclass(frozen=True)
class MethodConfig:
    """One way to train. `config` makes the training of it; what is not said here is as in
    `AgentSFTConfig`.

    `use_trajectory_collection`: trains on runs of an agent (FireAct), those that
    `trajectory_filter` lets through. `use_multi_task`: trains on several tasks' data in the shares
    of `task_weights` (AgentTuning); without weights all count alike.
    """

    name: str
    description: str
    use_coreset: bool = False
    coreset_strategy: str = "hybrid"
    use_continual: bool = False
    use_dora: bool = False
    use_lora_plus: bool = False
    use_trajectory_collection: bool = False
    use_multi_task: bool = False
    coreset_target_size: int | None = None
    lora_plus_lr_ratio: float = 16.0
    task_weights: Mapping[str, float] = field(default_factory=dict)
    trajectory_filter: TrajectoryFilter = field(default_factory=TrajectoryFilter)

    def config(self, base_model: str, train_data: object, **options: object) -> AgentSFTConfig:
        """The configuration of a training by this method; `options` are fields of `AgentSFTConfig`,
        and beat the method's own.

        `train_data` is whatever `AgentSFTConfig` takes; for trajectories, `AgentTrajectory` objects
        or a file of them; for several tasks, a mapping from a task's name to its data. Raises
        ArgumentError, DataError for other data; SettingsError.
        """
        if self.use_trajectory_collection:
            train_data = self._of_trajectories(train_data)
        elif self.use_multi_task:
            train_data = self._of_tasks(train_data)
        own_options: dict[str, Any] = {
            name: value
            for name, value in vars(self).items()
            if name in AgentSFTConfig.__dataclass_fields__
        }
        own_options |= {
            "use_coreset_selection": self.use_coreset,
            "use_online_continual": self.use_continual,
        }
        return AgentSFTConfig(base_model, train_data, **(own_options | options))

    def _of_trajectories(self, data: Any) -> list[dict[str, Any]]:
        runs = (
            load_trajectories(data)
            if isinstance(data, str | Path)
            else list(data)
            if isinstance(data, Iterable)
            else [data]
        )
        if not all(isinstance(run, AgentTrajectory) for run in runs):
            raise ArgumentError(
                f"{self.name} trains on trajectories: give AgentTrajectory objects, or a file of "
                f"them."
            )
        converter = TrajectoryToSFTConverter()
        rows = converter.convert(self.trajectory_filter.filter(runs))
        if not rows:
            dropped = Counter(self.trajectory_filter.get_stats(runs)["dropped"]) + converter.counts
            reasons = counted(dropped, "trajectories") or "there are none"
            raise DataError(
                f"None of {len(runs)} trajectories can be trained on ({reasons}): collect runs "
                f"that succeed."
            )
        return rows

    def _of_tasks(self, data: object) -> list[dict[str, object]]:
        if not isinstance(data, Mapping) or not data:
            raise ArgumentError(
                f"{self.name} trains on several tasks: give a mapping from each task's name to its "
                f"data."
            )
        rows = {str(task): rows_only(value)[0] for task, value in data.items()}
        mixer = MultiTaskMixer(
            MixerConfig(self.task_weights, "weighted" if self.task_weights else "balanced")
        )
        return [
            sample.data | {"row_id": f"{sample.task_type}/{sample.data['row_id']}"}
            for sample in mixer.mix(rows)
        ]


def _config(method_id: str, method: MethodSettings) -> MethodConfig:
    """The switches that a method's settings turn on. That data are trajectories is not a setting:
    in the graph they always are.
    """
    coreset, adapter = (method.assets[asset] for asset in ("sft_coreset", "sft_adapter"))
    return MethodConfig(
        method.name,
        method.description,
        use_coreset="strategy" in coreset,
        coreset_strategy=coreset.get("strategy", "hybrid"),
        use_continual=adapter["replay_ratio"] > 0,
        use_dora=adapter["use_dora"],
        use_lora_plus=adapter["use_lora_plus"],
        use_trajectory_collection=method_id == "E_fireact",
        use_multi_task=method.mix,
    )


class MethodRegistry:
    """The methods by their ids."""

    @staticmethod
    def get_all_methods() -> dict[str, MethodConfig]:
        """Every method, in the order of the ids."""
        return {method_id: _config(method_id, method) for method_id, method in METHODS.items()}

    @staticmethod
    def get_quick_methods() -> dict[str, MethodConfig]:
        """A few that say most: nothing special, a coreset, a coreset with replay."""
        return {method_id: _config(method_id, METHODS[method_id]) for method_id in QUICK}

    @staticmethod
    def compare(
        partition: str, *methods: str, progress: Progress = silent, **options: object
    ) -> dict[str, Any]:
        """Train a partition's model by these methods and measure all; the report of
        `method_comparison.results.compared`.

        As the asset `method_comparison`, without Dagster; `options` are its settings (`seeds`,
        `coreset_size`, `split`, `settings`). Raises SettingsError, DataError.
        """
        from agent_pipeline.method_comparison.task import compare_methods

        settings, key = load_settings(), parse_key(partition)
        given_options = options | ({"methods": list(methods)} if methods else {})
        plan = comparison(
            settings, key, resolve(settings, ComparisonConfig, key, given_options).options
        )
        report: dict[str, Any] = compare_methods.run(
            on_this_machine(common_values(settings, key) | plan), progress
        )["report"]
        return report
