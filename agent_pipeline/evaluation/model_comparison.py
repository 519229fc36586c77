"""The figures of one model's answers, and the differences between two models' answers on the same
turns.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from agent_pipeline.evaluation.answer_scoring import AnswerScore
from agent_pipeline.evaluation.evaluation_report import AnswerFigures, ToolFigures
from agent_pipeline.evaluation.intervals import (
    ReportedDifference,
    report_difference,
    share_interval,
)
from agent_pipeline.evaluation.paired import paired

METRICS: dict[str, Callable[[AnswerScore], bool | None]] = {
    "right_decision": lambda score: score.right_class,
    "call_recall": lambda score: score.called if score.expected == "call" else None,
    "over_call": lambda score: score.called if score.expected != "call" else None,
    "tool_name_accuracy": lambda score: score.tool_name,
    "arguments_accuracy": lambda score: score.arguments,
    "exact_call_accuracy": lambda score: score.exact,
    "lenient_call_accuracy": lambda score: score.lenient,
    "answer_accuracy": lambda score: score.answer,
}
"""The metrics of `AnswerFigures`, by name. A metric is `None` for a turn to which it does not
apply.
"""
METRICS_WITH_INTERVAL = ("call_recall", "over_call")


def measure_answers(tasks: Sequence[str], scores: Sequence[AnswerScore]) -> AnswerFigures:
    """Return the figures of a model's answers.

    Args:
        tasks: The task of each turn.
        scores: The scores of the model's answers at these turns.
    """
    means: dict[str, float | None] = {}
    intervals: dict[str, tuple[float, float] | None] = {}
    for name, metric in METRICS.items():
        judged_tasks: list[str] = []
        values: list[float] = []
        for task, score in zip(tasks, scores, strict=True):
            value = metric(score)
            if value is not None:
                judged_tasks.append(task)
                values.append(value)
        means[name] = sum(values) / len(values) if values else None
        if name in METRICS_WITH_INTERVAL:
            intervals[name] = share_interval(judged_tasks, values) if values else None
    decisions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for score in scores:
        decisions[score.expected or "nothing"][score.actual or "nothing"] += 1
    return AnswerFigures(
        right_decision=means["right_decision"],
        call_recall=means["call_recall"],
        call_recall_interval=intervals["call_recall"],
        over_call=means["over_call"],
        over_call_interval=intervals["over_call"],
        tool_name_accuracy=means["tool_name_accuracy"],
        arguments_accuracy=means["arguments_accuracy"],
        exact_call_accuracy=means["exact_call_accuracy"],
        lenient_call_accuracy=means["lenient_call_accuracy"],
        answer_accuracy=means["answer_accuracy"],
        decisions={expected: dict(actual) for expected, actual in sorted(decisions.items())},
        invalid_calls=sum(score.invalid_call for score in scores),
        truncated=sum(score.truncated for score in scores),
    )


def compare_answers(
    tasks: Sequence[str], base: Sequence[AnswerScore], adapter: Sequence[AnswerScore]
) -> dict[str, ReportedDifference | None]:
    """Return, for each metric, the difference adapter − base over the turns for which both models
    have a value.

    Args:
        tasks: The task of each turn.
        base: The scores of the base model's answers.
        adapter: The scores of the adapter's answers.
    """
    differences: dict[str, ReportedDifference | None] = {}
    for name, metric in METRICS.items():
        judged_tasks: list[str] = []
        base_values: list[float] = []
        adapter_values: list[float] = []
        for task, base_score, adapter_score in zip(tasks, base, adapter, strict=True):
            base_value, adapter_value = metric(base_score), metric(adapter_score)
            if base_value is not None and adapter_value is not None:
                judged_tasks.append(task)
                base_values.append(float(base_value))
                adapter_values.append(float(adapter_value))
        difference = paired(judged_tasks, adapter_values, base_values, shares=True)
        differences[name] = report_difference(difference)
    return differences


def measure_by_tool(
    tools: Sequence[str | None],
    tasks: Sequence[str],
    base: Sequence[AnswerScore],
    adapter: Sequence[AnswerScore],
) -> dict[str, ToolFigures]:
    """Return the figures of both models for each tool.

    Args:
        tools: The first tool that is expected at each turn; `None` if no call is expected.
        tasks: The task of each turn.
        base: The scores of the base model's answers.
        adapter: The scores of the adapter's answers.
    """
    turns_by_tool: defaultdict[str, list[int]] = defaultdict(list)
    for turn_index, tool in enumerate(tools):
        if tool is not None:
            turns_by_tool[tool].append(turn_index)

    def measure(scores: Sequence[AnswerScore], turns: list[int]) -> AnswerFigures:
        return measure_answers([tasks[turn] for turn in turns], [scores[turn] for turn in turns])

    return {
        tool: ToolFigures(len(turns), measure(base, turns), measure(adapter, turns))
        for tool, turns in sorted(turns_by_tool.items())
    }
