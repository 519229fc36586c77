"""Verdicts: people's judgments, measures, scores and a language model, heard in the order of a declared policy."""

from agent_pipeline.judging import library as library  # registers the built-in measures
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import Label, Labels, Verdict, labels_signature, read_labels
from agent_pipeline.judging.measures import (
    MEASURES,
    ConfiguredMeasure,
    MeasureResult,
    measure,
    parse_measure,
    parse_measures,
)
from agent_pipeline.judging.panel import Panel
from agent_pipeline.judging.policy import JUDGES, Judged, Opinion, Policy
from agent_pipeline.sessions.transcript import PairedCall

__all__ = [
    "JUDGES",
    "MEASURES",
    "ConfiguredMeasure",
    "EvaluationContext",
    "Judged",
    "Label",
    "Labels",
    "MeasureResult",
    "Opinion",
    "PairedCall",
    "Panel",
    "Policy",
    "Verdict",
    "labels_signature",
    "measure",
    "parse_measure",
    "parse_measures",
    "read_labels",
]
