"""Two models side by side, from the list of what each got right, sample by sample."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from agent_pipeline.evaluation.bootstrap import paired_bootstrap

METRICS = {
    "call_or_answer": "call_or_answer_accuracy",
    "tool_name": "tool_name_accuracy",
    "arguments": "arguments_accuracy",
    "exact": "exact_call_accuracy",
}
"""Field of a `Score` → the name of its mean. All but the first are means over the turns where a call was expected."""


def accuracies(scores: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The means of a model's scores; null where no turn can say. `invalid_calls` counts calls that were no JSON call."""
    report: dict[str, Any] = {}
    for field, name in METRICS.items():
        judged = [score[field] for score in scores if score[field] is not None]
        report[name] = sum(judged) / len(judged) if judged else None
    return {**report, "invalid_calls": sum(score["invalid_call"] for score in scores)}


def differences(
    tasks: Sequence[str], base: Sequence[dict[str, Any]], adapter: Sequence[dict[str, Any]], seed: int
) -> dict[str, dict[str, Any] | None]:
    """For each metric the paired bootstrap of adapter − base, sample i being of task `tasks[i]` (see `Interval`)."""
    report: dict[str, dict[str, Any] | None] = {}
    for field, name in METRICS.items():
        judged = [i for i, score in enumerate(base) if score[field] is not None]
        before, after = ([float(scores[i][field]) for i in judged] for scores in (base, adapter))
        interval = paired_bootstrap([tasks[i] for i in judged], before, after, seed=seed)
        report[name] = asdict(interval) if interval else None
    return report


def by_tool(tools: Sequence[str | None], base: Sequence[dict[str, Any]], adapter: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each tool that was expected first (None: an answer was), the turns and both models' accuracies there."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, tool in enumerate(tools):
        if tool is not None:
            members[tool].append(index)
    return {
        tool: {
            "n": len(indices),
            "base": accuracies([base[i] for i in indices]),
            "adapter": accuracies([adapter[i] for i in indices]),
        }
        for tool, indices in sorted(members.items())
    }
