"""The names that people know from elsewhere, each loaded when it is first used: `import
agent_pipeline` itself loads nothing.

`docs/reference/names.md` says where each lives, and which asset uses it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_pipeline.datasets.mixing import MixerConfig, MultiTaskMixer, TaskSample
    from agent_pipeline.notebook.agent import (
        AgentSFTConfig,
        AgentSFTTrainer,
        EvalResult,
        TrainingResult,
    )
    from agent_pipeline.notebook.capabilities import (
        AgentCapabilityEvaluator,
        CapabilityReport,
        CapabilityScore,
    )
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
    from agent_pipeline.notebook.sft import (
        SFTTrainer,
        SFTTrainingConfig,
        SFTTrainingResult,
        train_sft,
    )
    from agent_pipeline.notebook.trajectories.collecting import CollectorConfig, TrajectoryCollector
    from agent_pipeline.notebook.trajectories.conversion import (
        SFTConversionConfig,
        TrajectoryFilter,
        TrajectoryToSFTConverter,
        collect_and_convert,
    )
    from agent_pipeline.notebook.trajectories.model import (
        AgentTrajectory,
        TrajectoryStep,
        load_trajectories,
    )
    from agent_pipeline.selection.buffer import OnlineContinualLearner

_NAMES = {
    "datasets.mixing": ("MixerConfig", "MultiTaskMixer", "TaskSample"),
    "notebook.agent": ("AgentSFTConfig", "AgentSFTTrainer", "EvalResult", "TrainingResult"),
    "notebook.capabilities": ("AgentCapabilityEvaluator", "CapabilityReport", "CapabilityScore"),
    "notebook.coresets": ("CoresetSelector",),
    "notebook.distillation": ("eval_results_to_sft_dataset",),
    "notebook.exporters": (
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
    "notebook.methods": ("MethodConfig", "MethodRegistry"),
    "notebook.rl": ("RLTrainingConfig",),
    "notebook.sessions": ("export_traces_for_sft", "list_sessions", "load_history"),
    "notebook.sft": ("SFTTrainer", "SFTTrainingConfig", "SFTTrainingResult", "train_sft"),
    "notebook.trajectories.collecting": ("CollectorConfig", "TrajectoryCollector"),
    "notebook.trajectories.conversion": (
        "SFTConversionConfig",
        "TrajectoryFilter",
        "TrajectoryToSFTConverter",
        "collect_and_convert",
    ),
    "notebook.trajectories.model": ("AgentTrajectory", "TrajectoryStep", "load_trajectories"),
    "selection.buffer": ("OnlineContinualLearner",),
}
_PLACES = {name: place for place, names in _NAMES.items() for name in names}

__all__ = sorted(_PLACES)


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PLACES})
