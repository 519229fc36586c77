"""The tables of figures of an evaluation: the models' values, their differences, and intervals.

The turns in which the models differ belong to `page_items`, and the page to `page`.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from agent_pipeline.evaluation.answer_scoring import AnswerScore
from agent_pipeline.evaluation.evaluation_report import EvaluationReport
from agent_pipeline.evaluation.intervals import ReportedDifference, report_difference, shown
from agent_pipeline.evaluation.model_comparison import METRICS, compare_answers
from agent_pipeline.evaluation.paired import paired
from agent_pipeline.evaluation.stored_entries import SampleEntry, ScoredAnswer

Row = list[str]

NOT_SHARES = ("heldout_loss", "decision_auc")
"""The figures that are not shares of turns, so that they are not shown in percent."""


class Split(NamedTuple):
    """The measurements on one split. Without a champion, the baseline is the base model.

    Attributes:
        name: The name of the split.
        report: The report of the candidate's evaluation.
        samples: The samples of the candidate's evaluation.
        path: The path of the candidate's samples, which the page names.
        champion: The report of the champion's evaluation, if there is a champion.
        champion_samples: The samples of the champion's evaluation.
    """

    name: str
    report: EvaluationReport
    samples: Sequence[SampleEntry] = ()
    path: str = ""
    champion: EvaluationReport | None = None
    champion_samples: Sequence[SampleEntry] = ()

    @property
    def baseline(self) -> str:
        return "champion" if self.champion else "base"


def format_figure(value: float | None, is_share: bool = True) -> str:
    """Return a figure as text. A share is shown in percent.

    Example:
        >>> format_figure(0.125)
        '12.5 %'
    """
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if is_share else f"{value:.3f}"


def format_least(value: float | None) -> str:
    """Return the smallest visible difference of shares as text."""
    return "–" if value is None else f"{100 * value:.1f} points"


def format_difference(
    value: float, low: float | None, high: float | None, is_share: bool = True
) -> str:
    """Return a difference with its interval. A difference of shares is shown in percentage points.

    Example:
        >>> format_difference(0.125, 0.01, 0.24)
        '+12.5 [+1.0, +24.0] points'
    """
    if not is_share:
        return shown(value, low, high)
    # A difference of two shares lies between −100 and 100 points. Older versions wrote more.
    if low is not None and high is not None:
        low, high = 100 * max(low, -1.0), 100 * min(high, 1.0)
    return f"{shown(100 * value, low, high, '+.1f')} points"


def split_tables(split: Split) -> list[tuple[str, list[Row]]]:
    """Return the tables of an evaluation: its figures, and the right turns by class and tool."""
    return [
        (f"Figures on the split {split.name}", figure_rows(split)),
        (f"Right turns by class and tool, {split.name}", group_rows(split)),
    ]


def figure_rows(split: Split) -> list[Row]:
    """Return one table row per metric.

    A row has the models' values, the difference candidate − baseline with its 95 % interval over
    tasks, and the smallest difference that the evaluation could detect.
    """
    reports = [
        split.report.base,
        *([split.champion.adapter] if split.champion else []),
        split.report.adapter,
    ]
    compared = split.report.differences
    if split.champion:
        both = list(pair_entries(split))
        compared = compare_answers(
            [new["task_key"] for new, _ in both],
            *([_score(side) for side in sides] for sides in take_sides(split, both)),
        )
    rows = [
        [
            "figure",
            *_models(split),
            f"candidate − {split.baseline} (95 %)",
            "least visible difference",
            "turns or rows",
            "tasks",
        ]
    ]
    for name in ("heldout_loss", "decision_auc", "verified_calls", *METRICS):
        values = [report.figure(name) for report in reports]
        if any(value is not None for value in values):
            is_share = name not in NOT_SHARES
            means = [format_figure(value, is_share) for value in values]
            difference = _interval(compared.get(name), is_share)
            rows.append([name.replace("_", " "), *means, *difference])
    if any(report.truncated for report in reports):
        rows.append(
            [
                "wrong turns that max_new_tokens ended",
                *(str(report.truncated) for report in reports),
                *_interval(None),
            ]
        )
    return rows


def group_rows(split: Split) -> list[Row]:
    """Return one table row per class and per tool.

    A row has the share of the turns that each model gets right.
    """
    groups: defaultdict[str, list[tuple[SampleEntry, SampleEntry]]] = defaultdict(list)
    for new, old in pair_entries(split):
        groups[new["expected_class"] or "nothing"].append((new, old))
        if new["expected_tool"]:
            groups[f"call: {new['expected_tool']}"].append((new, old))
    rows = [
        [
            "turns with",
            *_models(split),
            f"candidate − {split.baseline} (95 %)",
            "least visible difference",
            "turns",
            "tasks",
        ]
    ]
    for name, both in sorted(groups.items()):
        baseline, candidate = (
            [float(bool(side["right"])) for side in sides] for sides in take_sides(split, both)
        )
        sides = [
            [float(bool(new["base"]["right"])) for new, _ in both],
            *([baseline] if split.champion else []),
            candidate,
        ]
        difference = report_difference(
            paired([new["task_key"] for new, _ in both], candidate, baseline, shares=True)
        )
        rows.append(
            [
                name,
                *(format_figure(sum(side) / len(side)) for side in sides),
                *_interval(difference),
            ]
        )
    return rows


def pair_entries(split: Split) -> Iterable[tuple[SampleEntry, SampleEntry]]:
    """Yield the candidate's and the baseline's entries of each turn that both models answered.

    If the baseline is the base model, its answers are in the candidate's entries.
    """
    champion = (
        {
            (champion_sample["row_id"], champion_sample["turn_index"]): champion_sample
            for champion_sample in split.champion_samples
        }
        if split.champion
        else None
    )
    for new in split.samples:
        old = new if champion is None else champion.get((new["row_id"], new["turn_index"]))
        if old is not None:
            yield new, old


def take_sides(
    split: Split, both: Sequence[tuple[SampleEntry, SampleEntry]]
) -> tuple[list[ScoredAnswer], list[ScoredAnswer]]:
    """Return the scored answers of the baseline and of the candidate to one turn."""
    return [old["adapter" if split.champion else "base"] for _, old in both], [
        new["adapter"] for new, _ in both
    ]


def _score(entry: ScoredAnswer) -> AnswerScore:
    return AnswerScore(
        expected=entry["expected"],
        actual=entry["actual"],
        called=entry["called"],
        right_class=entry["right_class"],
        tool_name=entry["tool_name"],
        arguments=entry["arguments"],
        exact=entry["exact"],
        lenient=entry["lenient"],
        answer=entry["answer"],
        invalid_call=entry["invalid_call"],
        truncated=entry["truncated"],
    )


def _models(split: Split) -> list[str]:
    return ["base", *(["champion"] if split.champion else []), "candidate"]


def _interval(difference: ReportedDifference | None, is_share: bool = True) -> Row:
    if difference is None:
        return ["–"] * 4
    least = format_least(difference.least_visible)
    change = format_difference(difference.difference, difference.low, difference.high, is_share)
    return [change, least, str(difference.samples), str(difference.tasks)]
