"""The public Python names of the package.

A name is loaded when it is first used, so `import agent_pipeline` is fast. docs/reference/names.md
lists all names. The definitions of most names belong to `compat`.
"""

from typing import TYPE_CHECKING

from agent_pipeline.lazy_names import load_when_used

if TYPE_CHECKING:
    from agent_pipeline.compat.omniagents.distillation import (
        eval_results_to_sft_dataset as eval_results_to_sft_dataset,
    )
    from agent_pipeline.compat.omniagents.sessions import (
        export_traces_for_sft as export_traces_for_sft,
    )
    from agent_pipeline.compat.omniagents.sessions import list_sessions as list_sessions
    from agent_pipeline.compat.omniagents.sessions import load_history as load_history
    from agent_pipeline.compat.omniagents.sft import SFTTrainer as SFTTrainer
    from agent_pipeline.compat.omniagents.sft import SFTTrainingConfig as SFTTrainingConfig
    from agent_pipeline.compat.omniagents.sft import SFTTrainingResult as SFTTrainingResult
    from agent_pipeline.compat.omniagents.sft import train_sft as train_sft
    from agent_pipeline.compat.sage.agent import AgentSFTTrainer as AgentSFTTrainer
    from agent_pipeline.compat.sage.capabilities import (
        AgentCapabilityEvaluator as AgentCapabilityEvaluator,
    )
    from agent_pipeline.compat.sage.capability_report import CapabilityReport as CapabilityReport
    from agent_pipeline.compat.sage.capability_report import CapabilityScore as CapabilityScore
    from agent_pipeline.compat.sage.config import AgentSFTConfig as AgentSFTConfig
    from agent_pipeline.compat.sage.config import EvalResult as EvalResult
    from agent_pipeline.compat.sage.config import TrainingResult as TrainingResult
    from agent_pipeline.compat.sage.coresets import CoresetSelector as CoresetSelector
    from agent_pipeline.compat.sage.methods import MethodConfig as MethodConfig
    from agent_pipeline.compat.sage.methods import MethodRegistry as MethodRegistry
    from agent_pipeline.compat.sage.rl import RLTrainingConfig as RLTrainingConfig
    from agent_pipeline.compat.sage.trajectories.collector import CollectorConfig as CollectorConfig
    from agent_pipeline.compat.sage.trajectories.collector import (
        TrajectoryCollector as TrajectoryCollector,
    )
    from agent_pipeline.compat.sage.trajectories.conversion import (
        SFTConversionConfig as SFTConversionConfig,
    )
    from agent_pipeline.compat.sage.trajectories.conversion import (
        TrajectoryFilter as TrajectoryFilter,
    )
    from agent_pipeline.compat.sage.trajectories.conversion import (
        TrajectoryToSFTConverter as TrajectoryToSFTConverter,
    )
    from agent_pipeline.compat.sage.trajectories.conversion import (
        collect_and_convert as collect_and_convert,
    )
    from agent_pipeline.compat.sage.trajectories.trajectory import (
        AgentTrajectory as AgentTrajectory,
    )
    from agent_pipeline.compat.sage.trajectories.trajectory import TrajectoryStep as TrajectoryStep
    from agent_pipeline.compat.sage.trajectories.trajectory import (
        load_trajectories as load_trajectories,
    )
    from agent_pipeline.compat.swink import ChatMlExporter as ChatMlExporter
    from agent_pipeline.compat.swink import DpoExporter as DpoExporter
    from agent_pipeline.compat.swink import ExportOptions as ExportOptions
    from agent_pipeline.compat.swink import NothingToExport as NothingToExport
    from agent_pipeline.compat.swink import ShareGptExporter as ShareGptExporter
    from agent_pipeline.compat.swink import TrainingReporter as TrainingReporter
    from agent_pipeline.compat.swink import export_traces as export_traces
    from agent_pipeline.compat.swink_results import EvalSetResult as EvalSetResult
    from agent_pipeline.compat.swink_results import ScoredTrace as ScoredTrace
    from agent_pipeline.component import AgentPipelineComponent as AgentPipelineComponent
    from agent_pipeline.datasets.mixing import MixerConfig as MixerConfig
    from agent_pipeline.datasets.mixing import MultiTaskMixer as MultiTaskMixer
    from agent_pipeline.datasets.mixing import TaskSample as TaskSample
    from agent_pipeline.selection.buffer import OnlineContinualLearner as OnlineContinualLearner

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
__getattr__, __dir__ = load_when_used(__name__, _MODULES)
