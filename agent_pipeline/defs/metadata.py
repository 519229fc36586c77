"""Results as a person wants to see them in the UI: counts, a preview that shows no private text, small pictures."""

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import cycle
from typing import Any

import dagster as dg

from agent_pipeline.ingestion.drift import Drift, Share
from agent_pipeline.sessions.session import Message

PREVIEW_ROWS = 5
SHOWN_WEEKS = 26
_FEWEST_PLACES = 6  # so that one bar alone does not fill its picture
_COLOURS = (
    "#4f43dd", "#b8b8c4", "#8d8d99", "#8c564b", "#3f3f46", "#b42318", "#c2559d",
    "#0e7490", "#f5c451", "#f08c2e", "#e0606b", "#f5b5bb", "#69b7ae", "#5a9e4b",
)  # fmt: skip


def counts_table(counts: Mapping[str, int], label: str = "reason") -> dg.MetadataValue:
    """Counts by name, the largest first, as a Markdown table."""
    rows = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    body = "\n".join(f"| {name} | {count:,} |" for name, count in rows) or "| – | 0 |"
    return dg.MetadataValue.md(f"| {label} | count |\n|---|---:|\n{body}")


def numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, as Dagster plots them over time; those that are not known are left out."""
    return {name: float(value) for name, value in values.items() if value is not None}


def preview(rows: Iterable[Mapping[str, Any]], field: str = "messages") -> dg.MetadataValue:
    """The shape of the first conversations: roles, tool names and argument names, and the lengths of texts; never the texts themselves."""
    lines = ["| session | shape |", "|---|---|"]
    for row, _ in zip(rows, range(PREVIEW_ROWS), strict=False):
        lines.append(f"| `{row['session_id']}` | {shape(row[field])} |")
    return dg.MetadataValue.md("\n".join(lines))


def shape(messages: Sequence[Message]) -> str:
    """`user 84 → find_order(order_id) → tool 120 → assistant 60`: a conversation without its words."""
    parts = []
    for message in messages[:16]:
        text = len(message.get("content") or message.get("value") or "")
        for call in message.get("tool_calls", ()):
            parts.append(f"**{call['function']['name']}**")
        if text:
            parts.append(f"{message.get('role') or message.get('from')} {text}")
    return " → ".join(parts) + (" → …" if len(messages) > 16 else "")


def histogram(values: Sequence[float], title: str, label: str) -> dg.MetadataValue:
    """A small histogram, as an inline picture."""
    figure, axes = _figure(title)
    axes.hist(values, bins=min(30, max(5, len(values) // 4)), color=_COLOURS[0])
    axes.set_xlabel(label)
    axes.set_ylabel("rows")
    return _picture(figure, title)


def bars(counts: Mapping[str, int], title: str) -> dg.MetadataValue:
    """A small horizontal bar chart, the largest on top."""
    pairs = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    figure, axes = _figure(title)
    container = axes.barh([name for name, _ in pairs], [count for _, count in pairs], color=_COLOURS[0])
    axes.bar_label(container, padding=3, fmt="{:,.0f}")
    axes.set_ylim(max(len(pairs), _FEWEST_PLACES) - 0.4, -0.6)
    axes.margins(x=0.12)
    axes.spines["bottom"].set_visible(False)
    axes.set_xticks([])  # every bar says its count
    return _picture(figure, title)


def weeks(found: Iterable[tuple[datetime | None, str]], names: Sequence[str], title: str) -> dg.MetadataValue:
    """A small chart of stacked bars, one a week of the last 26 that have any, and one for what has no time; the label counts what is older.

    `names` are all that there may be: each has its place in the stack, from the bottom up, and its colour, whatever else is there.
    """
    by_week: dict[str, Counter[str]] = defaultdict(Counter)
    for time, name in found:
        by_week["no time" if time is None else f"{time:%G-W%V}"][name] += 1
    timed = sorted(week for week in by_week if week != "no time")
    older, recent = timed[:-SHOWN_WEEKS], timed[-SHOWN_WEEKS:]
    shown = {week: by_week[week] for week in ["no time", *recent] if week in by_week}
    total = sum(by_week.values(), Counter[str]())
    figure, axes = _figure(title)
    bottom = [0] * len(shown)
    for colour, name in zip(cycle(_COLOURS), names, strict=False):
        if total[name]:
            heights = [counts[name] for counts in shown.values()]
            axes.bar(range(len(shown)), heights, bottom=bottom, color=colour, label=f"{name} {total[name]:,}")
            bottom = [under + height for under, height in zip(bottom, heights, strict=True)]
    axes.set_xlim(-0.6, max(len(shown), _FEWEST_PLACES) - 0.4)
    axes.set_xticks(range(len(shown)), list(shown), rotation=45 if len(shown) <= _FEWEST_PLACES else 90, fontsize=7)
    if older:
        axes.set_xlabel(f"and {sum(by_week[week].total() for week in older):,} from {older[0]} to {older[-1]}", fontsize=7)
    if total:
        axes.legend(fontsize=7, frameon=False, reverse=True, loc="center left", bbox_to_anchor=(1, 0.5))
    return _picture(figure, title)


def drift_result(check: str, drift: Drift) -> dg.AssetCheckResult:
    """A warning where the new sessions differ from the last version's; changed tools by name, and shares side by side."""
    tools = ["| " + " | ".join(part.replace("|", "\\|") for part in each) + " |" for each in drift.tools]
    shares = [
        f"| {each.what} | {each.value} | {each.before:.0%} | {each.now:.0%} | {'moved' if each.moved else ''} |" for each in drift.shares
    ]
    shown = {
        "changed_tools": ["| tool | change | argument | before | now |", "|---|---|---|---|---|", *(tools or ["| none | | | | |"])],
        "shares": ["| of | value | last version | new sessions | |", "|---|---|---:|---:|---|", *shares],
    }
    plot = {"plot": side_by_side(drift.shares, "share of the last version (grey) and of the new sessions")} if drift.shares else {}
    return dg.AssetCheckResult(
        check_name=check,
        passed=not drift.moved,
        severity=dg.AssetCheckSeverity.WARN,
        description=None if drift.new else "There is nothing to compare: no last version, or no new sessions.",
        metadata={
            "last_version": drift.sessions,
            "new_sessions": drift.new,
            **{name: dg.MetadataValue.md("\n".join(lines)) for name, lines in shown.items()},
            **plot,
        },
    )


def side_by_side(shares: Sequence[Share], title: str) -> dg.MetadataValue:
    """A small bar chart of shares before and now."""
    figure, axes = _figure(title)
    for offset, colour, values in (
        (-0.2, _COLOURS[1], [each.before for each in shares]),
        (0.2, _COLOURS[0], [each.now for each in shares]),
    ):
        axes.barh([at + offset for at in range(len(shares))], values, height=0.4, color=colour)
    axes.set_yticks(range(len(shares)), [f"{each.what}: {each.value}" for each in shares], fontsize=7)
    axes.set_ylim(max(len(shares), _FEWEST_PLACES) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    return _picture(figure, title)


def curve(points: Sequence[tuple[float, float]], title: str, x: str, y: str) -> dg.MetadataValue:
    """A small line chart."""
    figure, axes = _figure(title)
    axes.plot([point[0] for point in points], [point[1] for point in points], color=_COLOURS[0], marker=".")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    return _picture(figure, title)


def _figure(title: str) -> tuple[Any, Any]:
    # The object interface of matplotlib: pyplot keeps global state, and a code server draws from several threads.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 2.6), dpi=80, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _picture(figure: Any, alt: str) -> dg.MetadataValue:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return dg.MetadataValue.md(f"![{alt}](data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')})")
