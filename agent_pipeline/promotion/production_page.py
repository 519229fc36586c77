"""The page of the asset `production`, and the sentences about its comparisons.

The figures belong to `production`. The page has no text of a session.
"""

from collections.abc import Sequence

from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.production import (
    Estimate,
    ModelWeek,
    ProductionComparison,
    ProductionReport,
    SameTasks,
)
from agent_pipeline.promotion.request_changes import compare_models
from agent_pipeline.reports.page import Page
from agent_pipeline.storage.lake import Lake

NAMES = {"agent": "the agent that it replaces", "previous champion": "the previous champion"}
"""What a sentence calls the other model."""

FIGURES_HEAD = [
    "model",
    "sessions",
    "tasks",
    "with help",
    "good",
    "good (people)",
    "good (judges)",
    "failed",
    "turns",
    "input tokens",
    "output tokens",
    "US dollars",
]
"""The head of the tables of figures. `describe_figures` returns their rows."""


UNKNOWN = ("–", "– of 0")
"""How a table shows a figure that is not known."""


def make_production_page(lake: Lake, key: PartitionKey, report: ProductionReport) -> Page:
    """Return the page about the sessions of production.

    Raises:
        DataError: A table is damaged, or an older version wrote it.
    """
    weeks = [[week.week, *describe_figures(week)] for week in report.weeks]
    tables = [("All weeks", make_figures_table(report))] if report.totals else []
    for comparison in report.comparisons:
        if comparison.same_tasks:
            title = f"Tasks that both the champion and {NAMES[comparison.rival]} did"
            tables.append((title, describe_same_tasks(comparison.same_tasks)))
    if weeks:
        tables.append(("Per week and model", drop_unknown([["week", *FIGURES_HEAD], *weeks])))
    requests = [str(comparison) for comparison in compare_models(lake, key)[:1]]
    return Page(
        title=f"Production of {key}",
        headline=describe_report(report),
        summary=[
            describe_comparison(comparison) for comparison in report.comparisons if comparison.pairs
        ],
        reasons=describe_limits(report),
        reasons_title="Sessions that the figures do not count",
        tables=tables,
        facts={
            "champion": report.champion or "none",
            "previous champion": report.previous or "none",
            **{
                f"p-value against {NAMES[comparison.rival]}": (
                    f"{comparison.p_value:.2g} (shown to be worse at "
                    f"{comparison.allowed_error:.2g} or less)"
                )
                for comparison in report.comparisons
            },
            "requests": "; ".join(requests) or "no model",
        },
    )


def describe_report(report: ProductionReport) -> str:
    """Return one sentence about the champion that needs no statistics."""
    if not report.champion:
        return "No model of this agent is served yet."
    if worse := report.worse_than:
        names = " and than ".join(NAMES[comparison.rival] for comparison in worse)
        return f"The champion is worse than {names}."
    if not any(comparison.pairs for comparison in report.comparisons):
        return (
            "It is not known whether the champion is worse, because no judged tasks can be "
            "compared."
        )
    return "The champion is not shown to be worse than the models before it."


def describe_comparison(comparison: ProductionComparison) -> str:
    """Return the figures of a comparison in one or two sentences."""
    name = NAMES[comparison.rival]
    champion, other = comparison.champion_share, comparison.rival_share
    if not comparison.pairs:
        return f"Nothing is compared with {name}, because one of the two has no judged sessions."
    shares = (
        f"{format_share(champion)} of the champion's {champion.count} tasks are good, and "
        f"{format_share(other)} of {other.count} tasks of {name}."
    )
    drop = comparison.drop
    if comparison.is_worse:
        return (
            f"{shares} The champion was shown to be worse after {comparison.alarm_after} compared "
            f"tasks: by {_points(drop.low)} to {_points(drop.high)} points."
        )
    if (drop.high or 0.0) >= 1:
        return (
            f"{shares} {comparison.pairs} tasks are compared, which is too few to show a "
            "difference."
        )
    return (
        f"{shares} After {comparison.pairs} compared tasks, it is at most {_points(drop.high)} "
        "points worse."
    )


def describe_limits(report: ProductionReport) -> list[str]:
    """Return a sentence about everything that the figures leave out."""
    sentences = list(report.notes)
    if report.without_time:
        sentences.append(f"sessions without a time: {report.without_time}")
    if report.without_model:
        sentences.append(f"sessions that name no model: {report.without_model}")
    unjudged = sum(row.sessions - row.good.count for row in report.totals)
    if unjudged:
        sessions = sum(row.sessions for row in report.totals)
        sentences.append(f"nobody judged {unjudged} of the {sessions} sessions")
    return [sentence.rstrip(".") for sentence in sentences]


def make_figures_table(report: ProductionReport) -> list[list[str]]:
    """Return the figures of all weeks, per model. The first row is the head."""
    return drop_unknown([FIGURES_HEAD, *map(describe_figures, report.totals)])


def drop_unknown(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return a table without the columns of which no row knows a value."""
    known = [
        index
        for index in range(len(rows[0]))
        if any(row[index] not in UNKNOWN for row in rows[1:]) or len(rows) == 1
    ]
    return [[row[index] for index in known] for row in rows]


def describe_figures(row: ModelWeek) -> list[str]:
    """Return the figures of a model as cells of a table."""
    return [
        f"{row.server} {row.model}".rstrip(),
        str(row.sessions),
        str(row.tasks),
        str(row.with_help),
        f"{format_share(row.good)} of {row.good.count}",
        f"{format_share(row.good_by_people)} of {row.good_by_people.count}",
        f"{format_share(row.good_by_judges)} of {row.good_by_judges.count}",
        format_share(row.failed),
        format_mean(row.turns, ".1f"),
        format_mean(row.input_tokens, ".0f"),
        format_mean(row.output_tokens, ".0f"),
        format_mean(row.cost_usd, ".4f"),
    ]


def describe_same_tasks(same: SameTasks) -> list[list[str]]:
    """Return the table of the tasks that both models did. The first row is the head."""
    difference = same.difference
    interval = (
        f" [{_points(difference.low, '+')}, {_points(difference.high, '+')}]"
        if difference.low is not None
        else ""
    )
    return [
        ["tasks", "champion", "other model", "difference in points"],
        [
            str(difference.count),
            format_share(same.champion),
            format_share(same.rival),
            f"{_points(difference.value, '+')}{interval}",
        ],
    ]


def format_share(share: Estimate) -> str:
    """Return a share in percent with its interval, or a dash."""
    if share.value is None:
        return "–"
    if share.low is None or share.high is None:
        return f"{share.value:.1%}".replace("%", " %")
    return f"{100 * share.value:.1f} % [{100 * share.low:.1f}, {100 * share.high:.1f}]"


def format_mean(mean: Estimate, form: str) -> str:
    """Return a mean with its interval, or a dash.

    Args:
        mean: The mean.
        form: The format of its numbers, such as `.1f`.
    """
    if mean.value is None:
        return "–"
    if mean.low is None or mean.high is None:
        return f"{mean.value:{form}}"
    return f"{mean.value:{form}} [{mean.low:{form}}, {mean.high:{form}}]"


def _points(value: float | None, sign: str = "") -> str:
    """Return a share as points, such as 9.8."""
    return "–" if value is None else f"{100 * value:{sign}.1f}"


def list_shares(report: ProductionReport) -> dict[str, list[ModelWeek]]:
    """Return the weeks of each server in which sessions were judged, the oldest first."""
    rows: dict[str, list[ModelWeek]] = {}
    for row in reversed(report.weeks):
        if row.good.value is not None:
            rows.setdefault(row.server, []).append(row)
    return rows
