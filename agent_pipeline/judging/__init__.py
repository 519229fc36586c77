"""Verdicts: people's judgments, measures, scores and a language model, heard in the order of a declared policy.

`labels` reads what people say; `measures` registers and parses measures, `library` holds those that come with the pipeline; `policy` makes
one verdict of all opinions; `client` and `llm` ask a language model; `panel` puts it together for a stream of sessions; `agreement`
compares the judges with people; `review` gives people a sample to judge.
"""

from agent_pipeline.judging import library as library  # registers the built-in measures
from agent_pipeline.judging.context import EvaluationContext
from agent_pipeline.judging.labels import Label, Labels, Verdict, labels_signature, read_labels
from agent_pipeline.judging.measures import MEASURES, ConfiguredMeasure, MeasureResult, measure, parse_measure, parse_measures
from agent_pipeline.judging.panel import Panel
from agent_pipeline.judging.policy import JUDGES, Judged, Opinion, Policy
from agent_pipeline.sessions.text import Call

__all__ = [
    "JUDGES",
    "MEASURES",
    "Call",
    "ConfiguredMeasure",
    "EvaluationContext",
    "Judged",
    "Label",
    "Labels",
    "MeasureResult",
    "Opinion",
    "Panel",
    "Policy",
    "Verdict",
    "labels_signature",
    "measure",
    "parse_measure",
    "parse_measures",
    "read_labels",
]
