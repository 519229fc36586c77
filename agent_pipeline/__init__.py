"""The public Python names of the package.

A name is loaded when it is first used, so `import agent_pipeline` is fast. docs/reference/names.md
lists all names. The definitions of most names belong to `compat`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent_pipeline.compat.omniagents.distillation import eval_results_to_sft_dataset
    from agent_pipeline.compat.omniagents.sessions import (
        export_traces_for_sft,
        list_sessions,
        load_history,
    )
    from agent_pipeline.compat.omniagents.sft import (
        SFTTrainer,
        SFTTrainingConfig,
        SFTTrainingResult,
        train_sft,
    )
    from agent_pipeline.compat.sage.agent import AgentSFTTrainer
    from agent_pipeline.compat.sage.capabilities import AgentCapabilityEvaluator
    from agent_pipeline.compat.sage.capability_report import CapabilityReport, CapabilityScore
    from agent_pipeline.compat.sage.config import AgentSFTConfig, EvalResult, TrainingResult
    from agent_pipeline.compat.sage.coresets import CoresetSelector
    from agent_pipeline.compat.sage.methods import MethodConfig, MethodRegistry
    from agent_pipeline.compat.sage.rl import RLTrainingConfig
    from agent_pipeline.compat.sage.trajectories.collector import (
        CollectorConfig,
        TrajectoryCollector,
    )
    from agent_pipeline.compat.sage.trajectories.conversion import (
        SFTConversionConfig,
        TrajectoryFilter,
        TrajectoryToSFTConverter,
        collect_and_convert,
    )
    from agent_pipeline.compat.sage.trajectories.trajectory import (
        AgentTrajectory,
        TrajectoryStep,
        load_trajectories,
    )
    from agent_pipeline.compat.swink import (
        ChatMlExporter,
        DpoExporter,
        ExportOptions,
        NothingToExport,
        ShareGptExporter,
        TrainingReporter,
        export_traces,
    )
    from agent_pipeline.compat.swink_results import EvalSetResult, ScoredTrace
    from agent_pipeline.component import AgentPipelineComponent
    from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample
    from agent_pipeline.selection.buffer import OnlineContinualLearner

_NAMES_BY_MODULE = {
    "compat.omniagents.distillation": ("eval_results_to_sft_dataset",),
    "compat.omniagents.sessions": (
        "export_traces_for_sft",
        "list_sessions",
        "load_history",
    ),
    "compat.omniagents.sft": (
        "SFTTrainer",
        "SFTTrainingConfig",
        "SFTTrainingResult",
        "train_sft",
    ),
    "compat.sage.agent": ("AgentSFTTrainer",),
    "compat.sage.capabilities": ("AgentCapabilityEvaluator",),
    "compat.sage.capability_report": (
        "CapabilityReport",
        "CapabilityScore",
    ),
    "compat.sage.config": (
        "AgentSFTConfig",
        "EvalResult",
        "TrainingResult",
    ),
    "compat.sage.coresets": ("CoresetSelector",),
    "compat.sage.methods": (
        "MethodConfig",
        "MethodRegistry",
    ),
    "compat.sage.rl": ("RLTrainingConfig",),
    "compat.sage.trajectories.collector": (
        "CollectorConfig",
        "TrajectoryCollector",
    ),
    "compat.sage.trajectories.conversion": (
        "SFTConversionConfig",
        "TrajectoryFilter",
        "TrajectoryToSFTConverter",
        "collect_and_convert",
    ),
    "compat.sage.trajectories.trajectory": (
        "AgentTrajectory",
        "TrajectoryStep",
        "load_trajectories",
    ),
    "compat.swink": (
        "ChatMlExporter",
        "DpoExporter",
        "ExportOptions",
        "NothingToExport",
        "ShareGptExporter",
        "TrainingReporter",
        "export_traces",
    ),
    "compat.swink_results": (
        "EvalSetResult",
        "ScoredTrace",
    ),
    "component": ("AgentPipelineComponent",),
    "datasets.mixing": (
        "MixerConfig",
        "MultiTaskMixer",
        "TaskSample",
    ),
    "selection.buffer": ("OnlineContinualLearner",),
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
