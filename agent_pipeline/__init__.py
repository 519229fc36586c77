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
    from agent_pipeline.notebook.agent import AgentSFTConfig, AgentSFTTrainer, EvalResult, TrainingResult
    from agent_pipeline.notebook.methods import MethodConfig, MethodRegistry
    from agent_pipeline.notebook.rl import RLTrainingConfig
    from agent_pipeline.notebook.sessions import export_traces_for_sft, list_sessions, load_history
    from agent_pipeline.notebook.sft import SFTTrainer, SFTTrainingConfig, SFTTrainingResult, train_sft
    from agent_pipeline.selection.buffer import OnlineContinualLearner
    from agent_pipeline.selection.coresets import CoresetSelector

_PLACES = {
    "AgentCapabilityEvaluator": "evaluation.capabilities",
    "AgentSFTConfig": "notebook.agent",
    "AgentSFTTrainer": "notebook.agent",
    "AgentTrajectory": "datasets.trajectories",
    "CapabilityReport": "evaluation.capabilities",
    "CapabilityScore": "evaluation.capabilities",
    "ChatMlExporter": "datasets.exporters",
    "CollectorConfig": "datasets.trajectories",
    "CoresetSelector": "selection.coresets",
    "DpoExporter": "datasets.exporters",
    "EvalResult": "notebook.agent",
    "EvalSetResult": "datasets.exporters",
    "ExportOptions": "datasets.exporters",
    "MethodConfig": "notebook.methods",
    "MethodRegistry": "notebook.methods",
    "MixerConfig": "datasets.mixing",
    "MultiTaskMixer": "datasets.mixing",
    "NothingToExport": "datasets.exporters",
    "OnlineContinualLearner": "selection.buffer",
    "RLTrainingConfig": "notebook.rl",
    "SFTConversionConfig": "datasets.trajectories",
    "SFTTrainer": "notebook.sft",
    "SFTTrainingConfig": "notebook.sft",
    "SFTTrainingResult": "notebook.sft",
    "ScoredTrace": "datasets.exporters",
    "ShareGptExporter": "datasets.exporters",
    "TaskSample": "datasets.mixing",
    "TrainingReporter": "datasets.exporters",
    "TrainingResult": "notebook.agent",
    "TrajectoryCollector": "datasets.trajectories",
    "TrajectoryFilter": "datasets.trajectories",
    "TrajectoryStep": "datasets.trajectories",
    "TrajectoryToSFTConverter": "datasets.trajectories",
    "collect_and_convert": "datasets.trajectories",
    "eval_results_to_sft_dataset": "datasets.distillation",
    "export_traces": "datasets.exporters",
    "export_traces_for_sft": "notebook.sessions",
    "list_sessions": "notebook.sessions",
    "load_history": "notebook.sessions",
    "load_trajectories": "datasets.trajectories",
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
