"""Verdicts on sessions, and the permitted use of each judged session.

People, measures, scores and a language model judge sessions, in the order of a declared policy. The
forms that trainers read do not belong here (`datasets`).

The names of the run and of labels are loaded when they are first used, because they need libraries
that the environment of a gateway lacks.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from agent_pipeline.judging import (
    builtin_measures as builtin_measures,  # registers the measures that come with the pipeline
)
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.measures import (
    MEASURES,
    ConfiguredMeasure,
    MeasureResult,
    measure,
    parse_measure,
    parse_measures,
)
from agent_pipeline.sessions.transcript import PairedCall

if TYPE_CHECKING:
    from agent_pipeline.judging.judging_run import JudgingRun
    from agent_pipeline.judging.labels import (
        Label,
        Labels,
        Verdict,
        compute_labels_signature,
        read_labels,
    )
    from agent_pipeline.judging.verdict_policy import JUDGES, JudgedSession, Opinion, VerdictPolicy

_MODULES = {
    "JudgingRun": "judging_run",
    **dict.fromkeys(
        ("Label", "Labels", "Verdict", "compute_labels_signature", "read_labels"), "labels"
    ),
    **dict.fromkeys(("JUDGES", "JudgedSession", "Opinion", "VerdictPolicy"), "verdict_policy"),
}

__all__ = [
    "JUDGES",
    "MEASURES",
    "ConfiguredMeasure",
    "EvaluationContext",
    "JudgedSession",
    "JudgingRun",
    "Label",
    "Labels",
    "MeasureResult",
    "Opinion",
    "PairedCall",
    "Verdict",
    "VerdictPolicy",
    "compute_labels_signature",
    "measure",
    "parse_measure",
    "parse_measures",
    "read_labels",
]


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
