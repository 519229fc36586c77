"""The results of an evaluation in the format of swink-agent-eval.

How they are exported belongs to `swink`.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session, hash_json
from agent_pipeline.sources.benchmarks.swink import SwinkSource
from agent_pipeline.sources.formats.fields import chosen, elements, number, objects, section
from agent_pipeline.sources.formats.record_files import RecordLocation
from agent_pipeline.sources.formats.session_fields import new_session

PROMPT_KEYS = ("system_prompt", "user_messages")


class EvalSetResult(TypedDict, total=False):
    """The results of one run of an evaluation set, in the format of swink-agent-eval."""

    eval_set_id: str
    case_results: list[dict[str, Any]]
    summary: dict[str, Any]
    timestamp: object


class ScoredTrace(msgspec.Struct):
    """One run of an evaluation case, with its score.

    Attributes:
        invocation: The run, as swink-agent-eval writes it, or a `Session`.
        score: The score, from 0 to 1.
        case_id: The case.
        scored: Whether a metric has a value. If not, the score is 0.0, and the run is neither good
            nor bad.
    """

    invocation: object
    score: float
    case_id: str
    scored: bool = True


def list_scored_traces(
    result: EvalSetResult | Mapping[str, object],
    eval_set: Mapping[str, object] | None = None,
    counts: Counter[str] | None = None,
) -> list[ScoredTrace]:
    """Return the cases in the results of one run, each with the mean of its metrics.

    Args:
        result: The run.
        eval_set: The set, which has the prompts.
        counts: Receives `cases_without_an_invocation`.

    Raises:
        DataError: The result has no conversations.
    """
    prompts_by_case = {
        case.get("id"): chosen(case, PROMPT_KEYS) for case in objects((eval_set or {}).get("cases"))
    }
    case_results = objects(result.get("case_results"))
    traces: list[ScoredTrace] = []
    for case in case_results:
        if not isinstance(case.get("invocation"), Mapping):
            continue
        values = [
            number(section(metric, "score").get("value"))
            for metric in elements(case.get("metric_results"))
        ]
        scores = [value for value in values if value is not None]
        record = chosen(case, ("case_id", "invocation", *PROMPT_KEYS))
        if not case.get("user_messages"):
            record |= prompts_by_case.get(case.get("case_id"), {})
        session = read_session(record | chosen(result, ("timestamp",)))
        score = sum(scores) / len(scores) if scores else 0.0
        traces.append(ScoredTrace(session, score, str(case.get("case_id")), bool(scores)))
    if not traces:
        raise DataError(
            "The evaluation result does not contain a case with an invocation: give the full "
            "result, not its summary."
        )
    if counts is not None and len(case_results) > len(traces):
        counts["cases_without_an_invocation"] += len(case_results) - len(traces)
    return traces


def read_session(record: dict[str, object]) -> Session:
    """Convert a case's run into a session as the reader `swink_eval` does."""
    record = {"timestamp": hash_json(record["invocation"])[:16], **record}
    source = SwinkSource(Path("results"))
    session_id = f"{record.get('case_id')}:{record['timestamp']}"
    fields = source.fields(record, RecordLocation(Path("results"), 0), session_id)
    return new_session(source.name, PartitionKey("evaluation", "agent"), session_id, **fields)
