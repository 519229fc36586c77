"""Verdicts on sessions, and the permitted use of each judged session.

People, measures, scores and a language model judge sessions, in the order of a declared policy. The
forms that trainers read do not belong here (`datasets`).
"""

from agent_pipeline.judging import (
    builtin_measures as builtin_measures,  # registers the measures that come with the pipeline
)
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.judging_run import JudgingRun
from agent_pipeline.judging.labels import (
    Label,
    Labels,
    Verdict,
    compute_labels_signature,
    read_labels,
)
from agent_pipeline.judging.measures import (
    MEASURES,
    ConfiguredMeasure,
    MeasureResult,
    measure,
    parse_measure,
    parse_measures,
)
from agent_pipeline.judging.verdict_policy import JUDGES, JudgedSession, Opinion, VerdictPolicy
from agent_pipeline.sessions.transcript import PairedCall

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
