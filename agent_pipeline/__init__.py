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
    from agent_pipeline.evaluation.capabilities import AgentCapabilityEvaluator, CapabilityReport, CapabilityScore
    from agent_pipeline.recipes.agent import AgentSFTConfig, AgentSFTTrainer, EvalResult, TrainingResult
    from agent_pipeline.recipes.methods import MethodConfig, MethodRegistry
    from agent_pipeline.recipes.rl import RLTrainingConfig
    from agent_pipeline.recipes.sessions import export_traces_for_sft, list_sessions, load_history
    from agent_pipeline.recipes.sft import SFTTrainer, SFTTrainingConfig, SFTTrainingResult, train_sft
    from agent_pipeline.selection.coresets import CoresetSelector
    from agent_pipeline.selection.replay import OnlineContinualLearner

_PLACES = {
    "AgentCapabilityEvaluator": "evaluation.capabilities",
    "AgentSFTConfig": "recipes.agent",
    "AgentSFTTrainer": "recipes.agent",
    "AgentTrajectory": "datasets.trajectories",
    "CapabilityReport": "evaluation.capabilities",
    "CapabilityScore": "evaluation.capabilities",
    "ChatMlExporter": "datasets.exporters",
    "CollectorConfig": "datasets.trajectories",
    "CoresetSelector": "selection.coresets",
    "DpoExporter": "datasets.exporters",
    "EvalResult": "recipes.agent",
    "EvalSetResult": "datasets.exporters",
    "ExportOptions": "datasets.exporters",
    "MethodConfig": "recipes.methods",
    "MethodRegistry": "recipes.methods",
    "MixerConfig": "datasets.mixing",
    "MultiTaskMixer": "datasets.mixing",
    "NothingToExport": "datasets.exporters",
    "OnlineContinualLearner": "selection.replay",
    "RLTrainingConfig": "recipes.rl",
    "SFTConversionConfig": "datasets.trajectories",
    "SFTTrainer": "recipes.sft",
    "SFTTrainingConfig": "recipes.sft",
    "SFTTrainingResult": "recipes.sft",
    "ScoredTrace": "datasets.exporters",
    "ShareGptExporter": "datasets.exporters",
    "TaskSample": "datasets.mixing",
    "TrainingReporter": "datasets.exporters",
    "TrainingResult": "recipes.agent",
    "TrajectoryCollector": "datasets.trajectories",
    "TrajectoryFilter": "datasets.trajectories",
    "TrajectoryStep": "datasets.trajectories",
    "TrajectoryToSFTConverter": "datasets.trajectories",
    "collect_and_convert": "datasets.trajectories",
    "eval_results_to_sft_dataset": "datasets.distillation",
    "export_traces": "datasets.exporters",
    "export_traces_for_sft": "recipes.sessions",
    "list_sessions": "recipes.sessions",
    "load_history": "recipes.sessions",
    "load_trajectories": "datasets.trajectories",
    "train_sft": "recipes.sft",
}

__all__ = [
    "AgentCapabilityEvaluator",
    "AgentSFTConfig",
    "AgentSFTTrainer",
    "AgentTrajectory",
    "CapabilityReport",
    "CapabilityScore",
    "ChatMlExporter",
    "CollectorConfig",
    "CoresetSelector",
    "DpoExporter",
    "EvalResult",
    "EvalSetResult",
    "ExportOptions",
    "MethodConfig",
    "MethodRegistry",
    "MixerConfig",
    "MultiTaskMixer",
    "NothingToExport",
    "OnlineContinualLearner",
    "RLTrainingConfig",
    "SFTConversionConfig",
    "SFTTrainer",
    "SFTTrainingConfig",
    "SFTTrainingResult",
    "ScoredTrace",
    "ShareGptExporter",
    "TaskSample",
    "TrainingReporter",
    "TrainingResult",
    "TrajectoryCollector",
    "TrajectoryFilter",
    "TrajectoryStep",
    "TrajectoryToSFTConverter",
    "collect_and_convert",
    "eval_results_to_sft_dataset",
    "export_traces",
    "export_traces_for_sft",
    "list_sessions",
    "load_history",
    "load_trajectories",
    "train_sft",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
