"""The names that people know from elsewhere, each loaded when it is first used: `import
agent_pipeline` itself loads nothing.

`docs/reference/names.md` says where each lives, and which asset uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

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
    from agent_pipeline.compat.sage.agent import (
        AgentSFTConfig,
        AgentSFTTrainer,
        EvalResult,
        TrainingResult,
    )
    from agent_pipeline.compat.sage.capabilities import (
        AgentCapabilityEvaluator,
        CapabilityReport,
        CapabilityScore,
    )
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
        EvalSetResult,
        ExportOptions,
        NothingToExport,
        ScoredTrace,
        ShareGptExporter,
        TrainingReporter,
        export_traces,
    )
    from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample
    from agent_pipeline.selection.buffer import OnlineContinualLearner

_NAMES = {
    "datasets.mixing": ("MixerConfig", "MultiTaskMixer", "TaskSample"),
    "compat.sage.agent": ("AgentSFTConfig", "AgentSFTTrainer", "EvalResult", "TrainingResult"),
    "compat.sage.capabilities": ("AgentCapabilityEvaluator", "CapabilityReport", "CapabilityScore"),
    "compat.sage.coresets": ("CoresetSelector",),
    "compat.omniagents.distillation": ("eval_results_to_sft_dataset",),
    "compat.swink": (
        "ChatMlExporter",
        "DpoExporter",
        "EvalSetResult",
        "ExportOptions",
        "NothingToExport",
        "ScoredTrace",
        "ShareGptExporter",
        "TrainingReporter",
        "export_traces",
    ),
    "compat.sage.methods": ("MethodConfig", "MethodRegistry"),
    "compat.sage.rl": ("RLTrainingConfig",),
    "compat.omniagents.sessions": ("export_traces_for_sft", "list_sessions", "load_history"),
    "compat.omniagents.sft": ("SFTTrainer", "SFTTrainingConfig", "SFTTrainingResult", "train_sft"),
    "compat.sage.trajectories.collector": ("CollectorConfig", "TrajectoryCollector"),
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
    "selection.buffer": ("OnlineContinualLearner",),
}
_PLACES = {name: place for place, names in _NAMES.items() for name in names}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
