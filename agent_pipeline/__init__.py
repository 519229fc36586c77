"""The names that people know from elsewhere, each loaded when it is first used: `import agent_pipeline` itself loads nothing.

`docs/names.md` says where each lives, and which asset uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample
    from agent_pipeline.notebook.agent import AgentSFTConfig, AgentSFTTrainer, EvalResult, TrainingResult
    from agent_pipeline.notebook.capabilities import AgentCapabilityEvaluator, CapabilityReport, CapabilityScore
    from agent_pipeline.notebook.coresets import CoresetSelector
    from agent_pipeline.notebook.distillation import eval_results_to_sft_dataset
    from agent_pipeline.notebook.exporters import (
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
    from agent_pipeline.notebook.methods import MethodConfig, MethodRegistry
    from agent_pipeline.notebook.rl import RLTrainingConfig
    from agent_pipeline.notebook.sessions import export_traces_for_sft, list_sessions, load_history
    from agent_pipeline.notebook.sft import SFTTrainer, SFTTrainingConfig, SFTTrainingResult, train_sft
    from agent_pipeline.notebook.trajectories import (
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
    from agent_pipeline.selection.buffer import OnlineContinualLearner

_PLACES = {
    "AgentCapabilityEvaluator": "notebook.capabilities",
    "AgentSFTConfig": "notebook.agent",
    "AgentSFTTrainer": "notebook.agent",
    "AgentTrajectory": "notebook.trajectories",
    "CapabilityReport": "notebook.capabilities",
    "CapabilityScore": "notebook.capabilities",
    "ChatMlExporter": "notebook.exporters",
    "CollectorConfig": "notebook.trajectories",
    "CoresetSelector": "notebook.coresets",
    "DpoExporter": "notebook.exporters",
    "EvalResult": "notebook.agent",
    "EvalSetResult": "notebook.exporters",
    "ExportOptions": "notebook.exporters",
    "MethodConfig": "notebook.methods",
    "MethodRegistry": "notebook.methods",
    "MixerConfig": "datasets.mixing",
    "MultiTaskMixer": "datasets.mixing",
    "NothingToExport": "notebook.exporters",
    "OnlineContinualLearner": "selection.buffer",
    "RLTrainingConfig": "notebook.rl",
    "SFTConversionConfig": "notebook.trajectories",
    "SFTTrainer": "notebook.sft",
    "SFTTrainingConfig": "notebook.sft",
    "SFTTrainingResult": "notebook.sft",
    "ScoredTrace": "notebook.exporters",
    "ShareGptExporter": "notebook.exporters",
    "TaskSample": "datasets.mixing",
    "TrainingReporter": "notebook.exporters",
    "TrainingResult": "notebook.agent",
    "TrajectoryCollector": "notebook.trajectories",
    "TrajectoryFilter": "notebook.trajectories",
    "TrajectoryStep": "notebook.trajectories",
    "TrajectoryToSFTConverter": "notebook.trajectories",
    "collect_and_convert": "notebook.trajectories",
    "eval_results_to_sft_dataset": "notebook.distillation",
    "export_traces": "notebook.exporters",
    "export_traces_for_sft": "notebook.sessions",
    "list_sessions": "notebook.sessions",
    "load_history": "notebook.sessions",
    "load_trajectories": "notebook.trajectories",
    "train_sft": "notebook.sft",
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
