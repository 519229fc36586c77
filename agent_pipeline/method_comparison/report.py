"""A comparison of methods for people: tables, sentences and a chart."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agent_pipeline.evaluation.intervals import shown
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


def page(report: Mapping[str, Any], picture: str = CHART) -> str:
    """Return the report as Markdown; `picture` is the address of the chart."""
    played = f"; {report['episodes']} episodes in {report['world']}" if report["episodes"] else ""
    return "\n\n".join(
        [
            f"# Methods compared: {report['partition']}",
            f"{report['seeds']} trainings of each method, measured on the same {report['turns']} "
            f"held-out turns (exact calls, answers) and "
            f"{report['rows']} rows (loss; of all their turns decision AUC and verified calls) of "
            f"the split `{report['split']}`{played}.",
            *findings(report),
            f"![figures of the methods]({picture})",
            figures_table(report),
            "Means over tasks and trainings [95 % interval over both]; decision AUC and verified "
            "calls with their range over trainings.",
            "## Differences",
            differences_table(report),
            "## Cost of a training",
            cost_table(report),
        ]
    )


def findings(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the conclusions, each as a sentence or a list."""
    clear = [comparison for comparison in report["comparisons"] if comparison["beyond_noise"]]
    lines = [
        f"- **{each['method']}** against {each['against']}: {_words(each['figure'])} "
        f"{verdict(each, report['seeds'])}"
        for each in clear
    ]
    if report["seeds"] < 2:
        lines.append(
            "- One training of each method: no difference can be told from the luck of its seed. "
            "Set `seeds` to 3 or more."
        )
    elif not clear:
        lines.append(
            "- **No difference is beyond noise**: choose the cheapest method, or measure with more "
            "seeds or more held-out tasks."
        )
    for name, method in report["methods"].items():
        if method["same_as"]:
            lines.append(
                f"- {name} trained the very same adapters as {method['same_as']}: here the two do "
                f"the same."
            )
        lines += [f"- {name}: {note}" for note in method["notes"]]
    for name, found in report["rank_correlation"].items():
        words = (
            f"{found['rho']:+.2f} over {found['methods']} methods"
            if found
            else "not known: it takes four methods that differ"
        )
        lines.append(
            f"- Rank correlation of {'less ' if name == 'heldout_loss' else ''}{_words(name)} with "
            f"exact calls: {words}"
        )
    yield "\n".join(lines)


def verdict(comparison: Mapping[str, Any], seeds: int) -> str:
    """Return what a difference means in words."""
    if seeds < 2:
        return "cannot be told: one seed"
    if not comparison["beyond_noise"]:
        return "within noise"
    return (
        f"{'better' if better(comparison) else 'worse'}, beyond noise ({_difference(comparison)})"
    )


def figures_table(report: Mapping[str, Any]) -> str:
    """Return a table with one line per method, the base model first."""
    shown = [
        name for name in SHOWN if any(each["figures"][name] for each in report["methods"].values())
    ]
    base = [
        "–" if report["base"][name] is None else f"{report['base'][name]:.3f}" for name in shown
    ]
    lines = [["method", *map(_words, shown)], ["base model", *base]]
    lines += [
        [name, *(_shown(method["figures"][each]) for each in shown)]
        for name, method in report["methods"].items()
    ]
    return format_markdown_table(lines)


def differences_table(report: Mapping[str, Any]) -> str:
    """Return a table with one line per difference, and what it means."""
    lines = [["method", "against", "figure", "difference", "interval", "tasks", "verdict"]]
    for comparison in report["comparisons"]:
        difference, _, interval = _difference(comparison).partition(" ")
        words = verdict(comparison, report["seeds"]).partition(" (")[0]
        lines.append(
            [
                comparison["method"],
                comparison["against"],
                _words(comparison["figure"]),
                difference,
                interval or "–",
                str(comparison["tasks"]),
                words,
            ]
        )
    return format_markdown_table(lines)


def cost_table(report: Mapping[str, Any]) -> str:
    """Rows, tokens and seconds of a training, the mean over seeds."""
    lines = [["method", "rows", "row tokens", "seconds to choose rows", "seconds to train"]]
    for name, method in report["methods"].items():
        cost = method["cost"]
        numbers = [
            f"{cost['rows']:,.0f}",
            f"{cost['tokens']:,.0f}",
            f"{cost['selection_seconds']:,.1f}",
        ]
        lines.append(
            [name, *numbers, f"{'more than ' if cost['resumed'] else ''}{cost['seconds']:,.1f}"]
        )
    return format_markdown_table(lines)


def chart(report: Mapping[str, Any], path: Path) -> None:
    """Draw one panel per figure, and write the picture to a file.

    A panel has the mean of each method with its interval, each training run as a dot, and the base
    model as a line.
    """
    from matplotlib.figure import Figure

    methods = list(report["methods"])
    shown = [
        name
        for name in CHARTED
        if any(each["figures"][name] for each in report["methods"].values())
    ]
    figure = Figure(
        figsize=(2.8 * len(shown) + 1.6, 1.2 + 0.34 * len(methods)), dpi=100, layout="constrained"
    )
    for number, (name, axes) in enumerate(
        zip(shown, figure.subplots(1, len(shown), sharey=True, squeeze=False)[0], strict=True)
    ):
        for place, method in enumerate(methods):
            if found := report["methods"][method]["figures"][name]:
                if found["low"] is not None:
                    axes.plot(
                        [found["low"], found["high"]],
                        [place, place],
                        color="#b8b8c4",
                        linewidth=3,
                        solid_capstyle="butt",
                    )
                axes.plot(
                    found["by_seed"],
                    [place] * len(found["by_seed"]),
                    "o",
                    color="#8d8d99",
                    markersize=3,
                )
                axes.plot([found["mean"]], [place], "o", color="#4f43dd", markersize=7)
        if report["base"][name] is not None:
            axes.axvline(report["base"][name], color="#b42318", linewidth=1, linestyle=":")
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


def _shown(found: Mapping[str, Any] | None) -> str:
    if found is None:
        return "–"
    low, high = (
        (found["low"], found["high"])
        if found["low"] is not None
        else (min(found["by_seed"]), max(found["by_seed"]))
    )
    return shown(found["mean"], low, high, ".3f")


def _difference(found: Mapping[str, Any]) -> str:
    return shown(found["difference"], found["low"], found["high"])
