"""The names that people know from elsewhere, each loaded when it is first used: `import agent_pipeline` itself loads nothing.

`docs/names.md` says where each lives, and which asset uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_pipeline.datasets.distillation import eval_results_to_sft_dataset
    from agent_pipeline.datasets.exporters import (
        ChatMlExporter,
        DpoExporter,
        EvalSetResult,
        ExportOptions,
        NothingToExport,
        ScoredTrace,
        ShareGptExporter,
        TrainingReporter,
        export_traces,
    )
    from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample
    from agent_pipeline.datasets.trajectories import (
        AgentTrajectory,
        CollectorConfig,
        SFTConversionConfig,
        TrajectoryCollector,
        TrajectoryFilter,
        TrajectoryStep,
        TrajectoryToSFTConverter,
        collect_and_convert,
        load_trajectories,
    )
    from agent_pipeline.selection.coresets import CoresetSelector
    from agent_pipeline.selection.replay import OnlineContinualLearner

_PLACES = {
    "AgentTrajectory": "datasets.trajectories",
    "ChatMlExporter": "datasets.exporters",
    "CollectorConfig": "datasets.trajectories",
    "CoresetSelector": "selection.coresets",
    "DpoExporter": "datasets.exporters",
    "EvalSetResult": "datasets.exporters",
    "ExportOptions": "datasets.exporters",
    "MixerConfig": "datasets.mixing",
    "MultiTaskMixer": "datasets.mixing",
    "NothingToExport": "datasets.exporters",
    "OnlineContinualLearner": "selection.replay",
    "SFTConversionConfig": "datasets.trajectories",
    "ScoredTrace": "datasets.exporters",
    "ShareGptExporter": "datasets.exporters",
    "TaskSample": "datasets.mixing",
    "TrainingReporter": "datasets.exporters",
    "TrajectoryCollector": "datasets.trajectories",
    "TrajectoryFilter": "datasets.trajectories",
    "TrajectoryStep": "datasets.trajectories",
    "TrajectoryToSFTConverter": "datasets.trajectories",
    "collect_and_convert": "datasets.trajectories",
    "eval_results_to_sft_dataset": "datasets.distillation",
    "export_traces": "datasets.exporters",
    "load_trajectories": "datasets.trajectories",
}

__all__ = [
    "AgentTrajectory",
    "ChatMlExporter",
    "CollectorConfig",
    "CoresetSelector",
    "DpoExporter",
    "EvalSetResult",
    "ExportOptions",
    "MixerConfig",
    "MultiTaskMixer",
    "NothingToExport",
    "OnlineContinualLearner",
    "SFTConversionConfig",
    "ScoredTrace",
    "ShareGptExporter",
    "TaskSample",
    "TrainingReporter",
    "TrajectoryCollector",
    "TrajectoryFilter",
    "TrajectoryStep",
    "TrajectoryToSFTConverter",
    "collect_and_convert",
    "eval_results_to_sft_dataset",
    "export_traces",
    "load_trajectories",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
