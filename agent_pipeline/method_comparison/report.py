"""The report of a comparison of methods for people: tables, sentences and a chart."""

from collections.abc import Iterator
from pathlib import Path

from agent_pipeline.evaluation.intervals import shown
from agent_pipeline.method_comparison.comparison_report import (
    ComparisonReport,
    MethodDifference,
    MethodFigure,
)
from agent_pipeline.method_comparison.results import PASS_FIGURES, better
from agent_pipeline.sessions.transcript import format_markdown_table

PAGE, CHART = "comparison.md", "comparison.png"
SHOWN = (
    "exact_calls",
    "call_recall",
    "over_call",
    "right_answers",
    *PASS_FIGURES,
    "heldout_loss",
    "tasks_done",
    "harm",
)
CHARTED = ("exact_calls", "over_call", "heldout_loss", "tasks_done", "harm")


def page(report: ComparisonReport, picture: str = CHART) -> str:
    """Return the report as a Markdown page. `picture` is the address of the chart."""
    played = f"; {report.episodes} episodes in {report.world}" if report.episodes else ""
    return "\n\n".join(
        [
            f"# Methods compared: {report.partition}",
            f"{report.seeds} training runs per method, measured on the same data of the split "
            f"`{report.split}`: {report.turns} held-out turns (exact calls, answers) and "
            f"{report.rows} rows (loss, decision AUC, verified calls){played}.",
            *findings(report),
            f"![figures of the methods]({picture})",
            figures_table(report),
            "Means over tasks and training runs, with the 95 % interval over both. Decision AUC "
            "and verified calls have their range over training runs.",
            "## Differences",
            differences_table(report),
            "## Cost of a training run",
            cost_table(report),
        ]
    )


def findings(report: ComparisonReport) -> Iterator[str]:
    """Yield the conclusions of a comparison, each as a sentence or a list."""
    clear = [comparison for comparison in report.comparisons if comparison.beyond_noise]
    lines = [
        f"- **{comparison.method}** against {comparison.against}: {_words(comparison.figure)} "
        f"{verdict(comparison, report.seeds)}"
        for comparison in clear
    ]
    if report.seeds < 2:
        lines.append(
            "- Each method was trained once, so every difference may come from the random seed. "
            "Set `seeds` to 3 or more."
        )
    elif not clear:
        lines.append(
            "- **No difference is beyond noise**: choose the cheapest method, or measure with more "
            "seeds or more held-out tasks."
        )
    for name, method in report.methods.items():
        if method.same_as:
            lines.append(
                f"- {name} trained exactly the same adapters as {method.same_as}: with this data, "
                "the two methods do the same."
            )
        lines += [f"- {name}: {note}" for note in method.notes]
    for name, correlation in report.rank_correlation.items():
        words = "not known, because it needs four methods that differ"
        if correlation:
            words = f"{correlation.rho:+.2f} over {correlation.methods} methods"
        lines.append(
            f"- Rank correlation of {'less ' if name == 'heldout_loss' else ''}{_words(name)} with "
            f"exact calls: {words}"
        )
    yield "\n".join(lines)


def verdict(comparison: MethodDifference, seeds: int) -> str:
    """Return a phrase that tells whether a difference is larger than noise."""
    if seeds < 2:
        return "unknown: one seed"
    if not comparison.beyond_noise:
        return "within noise"
    return (
        f"{'better' if better(comparison) else 'worse'}, beyond noise ({_difference(comparison)})"
    )


def figures_table(report: ComparisonReport) -> str:
    """Return a table with one line per method. The base model comes first."""
    names = report.measured_figures(SHOWN)
    base_values = [report.base_figure(name) for name in names]
    base = ["–" if value is None else f"{value:.3f}" for value in base_values]
    lines = [["method", *map(_words, names)], ["base model", *base]]
    lines += [
        [method_id, *(_shown(method.figures[name]) for name in names)]
        for method_id, method in report.methods.items()
    ]
    return format_markdown_table(lines)


def differences_table(report: ComparisonReport) -> str:
    """Return a table with one line per difference and its meaning."""
    lines = [["method", "against", "figure", "difference", "interval", "tasks", "verdict"]]
    for comparison in report.comparisons:
        difference, _, interval = _difference(comparison).partition(" ")
        words = verdict(comparison, report.seeds).partition(" (")[0]
        lines.append(
            [
                comparison.method,
                comparison.against,
                _words(comparison.figure),
                difference,
                interval or "–",
                str(comparison.tasks),
                words,
            ]
        )
    return format_markdown_table(lines)


def cost_table(report: ComparisonReport) -> str:
    """Return a table with the rows, tokens and seconds of a training run, as means over seeds."""
    lines = [["method", "rows", "row tokens", "seconds to choose rows", "seconds to train"]]
    for name, method in report.methods.items():
        cost = method.cost
        numbers = [
            f"{cost.rows:,.0f}",
            f"{cost.tokens:,.0f}",
            f"{cost.selection_seconds:,.1f}",
        ]
        lines.append([name, *numbers, f"{'more than ' if cost.resumed else ''}{cost.seconds:,.1f}"])
    return format_markdown_table(lines)


def chart(report: ComparisonReport, path: Path) -> None:
    """Draw a chart with one panel per figure, and write the picture to a file.

    A panel shows the mean of each method with its interval, each training run as a dot, and the
    base model as a line.
    """
    from matplotlib.figure import Figure

    methods = list(report.methods)
    shown = report.measured_figures(CHARTED)
    figure = Figure(
        figsize=(2.8 * len(shown) + 1.6, 1.2 + 0.34 * len(methods)), dpi=100, layout="constrained"
    )
    for number, (name, axes) in enumerate(
        zip(shown, figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], strict=True)
    ):
        for line, method in enumerate(methods):
            method_figure = report.methods[method].figures[name]
            if method_figure is None:
                continue
            if method_figure.low is not None and method_figure.high is not None:
                axes.plot(
                    [method_figure.low, method_figure.high],
                    [line, line],
                    color="#b8b8c4",
                    linewidth=3,
                    solid_capstyle="butt",
                )
            by_seed = method_figure.by_seed
            axes.plot(by_seed, [line] * len(by_seed), "o", color="#8d8d99", markersize=3)
            axes.plot([method_figure.mean], [line], "o", color="#4f43dd", markersize=7)
        base_value = report.base_figure(name)
        if base_value is not None:
            axes.axvline(base_value, color="#b42318", linewidth=1, linestyle=":")
        axes.set_title(_words(name), fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
        if not number:
            axes.set_yticks(range(len(methods)), methods)
            axes.invert_yaxis()
    figure.savefig(path)


def _words(name: str) -> str:
    return {
        "decision_auc": "decision AUC",
        "heldout_loss": "held-out loss",
        "over_call": "over-call",
    }.get(name, name.replace("_", " "))


def _shown(figure: MethodFigure | None) -> str:
    if figure is None:
        return "–"
    low, high = figure.low, figure.high
    if low is None:
        low, high = min(figure.by_seed), max(figure.by_seed)
    return shown(figure.mean, low, high, ".3f")


def _difference(comparison: MethodDifference) -> str:
    return shown(comparison.difference, comparison.low, comparison.high)
