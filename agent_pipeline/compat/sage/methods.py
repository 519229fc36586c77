"""Training methods that can be compared, with the names of SAGE.

The settings of the methods belong to `config.methods`, and the comparison to `method_comparison`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent_pipeline.compat.examples import format_counts
from agent_pipeline.compat.sage.config import AgentSFTConfig
from agent_pipeline.compat.sage.trajectories.conversion import (
    TrajectoryFilter,
    TrajectoryToSFTConverter,
)
from agent_pipeline.compat.sage.trajectories.trajectory import AgentTrajectory, load_trajectories
from agent_pipeline.compat.samples import read_conversations
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
    """A training method. Options that it does not set have the defaults of `AgentSFTConfig`.

    Attributes:
        use_trajectory_collection: Whether the method trains on runs of an agent (FireAct).
        use_multi_task: Whether the method trains on the data of several tasks (AgentTuning).
        task_weights: The share of each task; without weights, all tasks have the same share.
        trajectory_filter: Which runs are trained on.
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
        """Return the options with which this method trains a model.

        Args:
            base_model: The base model.
            train_data: Data that `AgentSFTConfig` accepts. With `use_trajectory_collection`:
                `AgentTrajectory` objects, or a file of them. With `use_multi_task`: a mapping from
                the name of a task to its data.
            **options: Fields of `AgentSFTConfig`, which override those of the method.

        Raises:
            ArgumentError: The data has another form.
            DataError: The data cannot be trained on.
            SettingsError: An option is invalid.
        """
        if self.use_trajectory_collection:
            train_data = self._convert_runs(train_data)
        elif self.use_multi_task:
            train_data = self._mix_tasks(train_data)
        method_options: dict[str, Any] = {
            "use_coreset_selection": self.use_coreset,
            "coreset_strategy": self.coreset_strategy,
            "coreset_target_size": self.coreset_target_size,
            "use_online_continual": self.use_continual,
            "use_dora": self.use_dora,
            "use_lora_plus": self.use_lora_plus,
            "lora_plus_lr_ratio": self.lora_plus_lr_ratio,
        }
        return AgentSFTConfig(base_model, train_data, **(method_options | options))

    def _convert_runs(self, data: Any) -> list[dict[str, object]]:
        if isinstance(data, str | Path):
            data = load_trajectories(data)
        runs = list(data) if isinstance(data, Iterable) else [data]
        if not all(isinstance(run, AgentTrajectory) for run in runs):
            raise ArgumentError(
                f"The method {self.name} trains on trajectories: give AgentTrajectory objects, or "
                "a file of trajectories."
            )
        converter = TrajectoryToSFTConverter()
        rows = converter.convert(self.trajectory_filter.filter(runs))
        if not rows:
            dropped = self.trajectory_filter.count_dropped(runs) + converter.counts
            reasons = format_counts(dropped, "trajectories") or "there are none"
            raise DataError(
                f"None of {len(runs)} trajectories can be used for training ({reasons}): collect "
                "runs that succeed."
            )
        return rows

    def _mix_tasks(self, data: object) -> list[dict[str, object]]:
        if not isinstance(data, Mapping) or not data:
            raise ArgumentError(
                f"The method {self.name} trains on several tasks: give a mapping from the name of "
                "each task to its data."
            )
        rows = {str(task): read_conversations(task_data).rows for task, task_data in data.items()}
        mixer_config = MixerConfig(
            self.task_weights, "weighted" if self.task_weights else "balanced"
        )
        samples = MultiTaskMixer(mixer_config).mix(rows)
        return [
            sample.data | {"row_id": f"{sample.task_type}/{sample.data['row_id']}"}
            for sample in samples
        ]


def _make_method(method_id: str, settings: MethodSettings) -> MethodConfig:
    """Return a method whose switches follow from its settings.

    No setting states that data are runs of an agent, because in the graph all data are runs of an
    agent.
    """
    coreset, adapter = settings.assets["sft_coreset"], settings.assets["sft_adapter"]
    return MethodConfig(
        settings.name,
        settings.description,
        use_coreset="strategy" in coreset,
        coreset_strategy=coreset.get("strategy", "hybrid"),
        use_continual=adapter["replay_ratio"] > 0,
        use_dora=adapter["use_dora"],
        use_lora_plus=adapter["use_lora_plus"],
        use_trajectory_collection=method_id == "E_fireact",
        use_multi_task=settings.mix,
    )


class MethodRegistry:
    """The training methods by their ids."""

    @staticmethod
    def get_all_methods() -> dict[str, MethodConfig]:
        """Return all methods, sorted by id."""
        return {method_id: _make_method(method_id, METHODS[method_id]) for method_id in METHODS}

    @staticmethod
    def get_quick_methods() -> dict[str, MethodConfig]:
        """Return three quick methods: the baseline, a coreset, and a coreset with replay."""
        return {method_id: _make_method(method_id, METHODS[method_id]) for method_id in QUICK}

    @staticmethod
    def compare(
        partition: str, *methods: str, progress: Progress = silent, **options: object
    ) -> dict[str, Any]:
        """Train the model of a partition with several methods, and return the report.

        The asset `method_comparison` does the same in the graph.

        Args:
            partition: The partition.
            *methods: The ids of the methods; by default those of the settings.
            progress: The progress to report to.
            **options: Settings of the asset: `seeds`, `coreset_size`, `split` and `settings`.

        Raises:
            SettingsError: An option is invalid.
            DataError: The data cannot be trained on.
        """
        from agent_pipeline.method_comparison.task import compare_methods

        settings, key = load_settings(), parse_key(partition)
        if methods:
            options["methods"] = list(methods)
        resolved = resolve(settings, ComparisonConfig, key, options).options
        params = common_values(settings, key) | comparison(settings, key, resolved)
        report: dict[str, Any] = compare_methods.run(on_this_machine(params), progress)["report"]
        return report
