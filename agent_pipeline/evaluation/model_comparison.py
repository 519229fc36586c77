"""Two models side by side, from the scores of each, turn by turn."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from agent_pipeline.evaluation.answer_scoring import AnswerScore
from agent_pipeline.evaluation.intervals import reported, share_interval
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
"""Name of a mean → what it is the mean of; None where a turn cannot say.

`right_decision`: the class of the turn, of four. `call_recall`: calls where one was expected; `over_call`: calls where none was, the fewer
the better. `answer_accuracy`: the right class, and values that agree (see `scoring`), where no call was expected.
"""


def accuracies(tasks: Sequence[str], scores: Sequence[AnswerScore]) -> dict[str, Any]:
    """The means of a model's scores (None where no turn can say), and the 95 % intervals of two of them.

    `decisions`: expected class → class of the reply → turns. `truncated`: wrong turns that the limit on new tokens ended;
    `invalid_calls`: calls that cannot be read.
    """
    report: dict[str, Any] = {}
    for name, metric in METRICS.items():
        judged = [
            (task, value)
            for task, score in zip(tasks, scores, strict=True)
            if (value := metric(score)) is not None
        ]
        report[name] = sum(value for _, value in judged) / len(judged) if judged else None
        if name in ("call_recall", "over_call"):
            report[f"{name}_interval"] = (
                list(share_interval(*zip(*judged, strict=True))) if judged else None
            )
    decisions: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for score in scores:
        decisions[score.expected or "nothing"][score.actual or "nothing"] += 1
    return {
        **report,
        "decisions": {expected: dict(actual) for expected, actual in sorted(decisions.items())},
        "invalid_calls": sum(score.invalid_call for score in scores),
        "truncated": sum(score.truncated for score in scores),
    }


def differences(
    tasks: Sequence[str], base: Sequence[AnswerScore], adapter: Sequence[AnswerScore]
) -> dict[str, dict[str, Any] | None]:
    """For each metric the interval of adapter − base over the turns that both can say, turn i being of task `tasks[i]`."""
    report: dict[str, dict[str, Any] | None] = {}
    for name, metric in METRICS.items():
        before, after = ([metric(each) for each in scores] for scores in (base, adapter))
        judged = [i for i in range(len(tasks)) if before[i] is not None and after[i] is not None]
        first, second = ([float(each[i] or 0) for i in judged] for each in (before, after))
        report[name] = reported(paired([tasks[i] for i in judged], second, first, shares=True))
    return report


def by_tool(
    tools: Sequence[str | None],
    tasks: Sequence[str],
    base: Sequence[AnswerScore],
    adapter: Sequence[AnswerScore],
) -> dict[str, dict[str, Any]]:
    """For each tool that was expected first (None: no call was), the turns and both models' means there."""
    members: defaultdict[str, list[int]] = defaultdict(list)
    for index, tool in enumerate(tools):
        if tool is not None:
            members[tool].append(index)

    def means(scores: Sequence[AnswerScore], indices: list[int]) -> dict[str, Any]:
        return accuracies([tasks[i] for i in indices], [scores[i] for i in indices])

    return {
        tool: {"n": len(indices), "base": means(base, indices), "adapter": means(adapter, indices)}
        for tool, indices in sorted(members.items())
    }
