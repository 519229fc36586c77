"""Results as a person wants to see them in the UI: counts, a preview that shows no private text, small pictures."""

import base64
import io
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from agent_pipeline.traces.session import Message

if TYPE_CHECKING:
    import numpy as np

PREVIEW_ROWS = 5
SHOWN_WEEKS = 26
SHOWN_POINTS = 2000


def counts_table(counts: Mapping[str, int], label: str = "reason") -> dg.MetadataValue:
    """Counts by name, the largest first, as a Markdown table."""
    rows = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    body = "\n".join(f"| {name} | {count:,} |" for name, count in rows) or "| – | 0 |"
    return dg.MetadataValue.md(f"| {label} | count |\n|---|---:|\n{body}")


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
    axes.hist(values, bins=min(30, max(5, len(values) // 4)), color="#4f43dd")
    axes.set_xlabel(label)
    axes.set_ylabel("rows")
    return _picture(figure, title)


def bars(counts: Mapping[str, int], title: str) -> dg.MetadataValue:
    """A small horizontal bar chart, the largest on top."""
    pairs = sorted(counts.items(), key=lambda pair: pair[1])
    figure, axes = _figure(title)
    container = axes.barh([name for name, _ in pairs], [count for _, count in pairs], color="#4f43dd")
    axes.bar_label(container, padding=3)
    return _picture(figure, title)


def weeks(found: Iterable[tuple[datetime | None, str]], title: str) -> dg.MetadataValue:
    """A small chart of stacked bars, one a week (of the last 26 that have any; what is older or has no time is one bar at the left)."""
    by_week: dict[str, Counter[str]] = defaultdict(Counter)
    for time, name in found:
        by_week["no time" if time is None else f"{time:%G-W%V}"][name] += 1
    timed = sorted(week for week in by_week if week != "no time")
    older = timed[:-SHOWN_WEEKS]
    shown = {"earlier": sum((by_week[week] for week in older), Counter())} | {week: by_week[week] for week in timed[len(older) :]}
    if "no time" in by_week:
        shown = {"no time": by_week["no time"]} | shown
    shown = {week: counts for week, counts in shown.items() if counts}
    total = sum(shown.values(), Counter[str]())
    figure, axes = _figure(title)
    bottom = [0] * len(shown)
    for name in sorted(total, key=lambda each: (each != "kept", -total[each], each)):
        heights = [counts[name] for counts in shown.values()]
        axes.bar(list(shown), heights, bottom=bottom, label=name)
        bottom = [under + height for under, height in zip(bottom, heights, strict=True)]
    axes.tick_params(axis="x", labelrotation=90, labelsize=6)
    if total:
        axes.legend(fontsize=6, frameon=False)
    return _picture(figure, title)


def curve(points: Sequence[tuple[float, float]], title: str, x: str, y: str) -> dg.MetadataValue:
    """A small line chart."""
    figure, axes = _figure(title)
    axes.plot([point[0] for point in points], [point[1] for point in points], color="#4f43dd", marker=".")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_ylim(bottom=0)
    return _picture(figure, title)


def scatter(points: "np.ndarray", marked: Sequence[int], title: str) -> dg.MetadataValue:
    """A small map of `points` (n, 2), those `marked` by index on top; of very many, two thousand of each kind, evenly taken."""
    figure, axes = _figure(title)
    others = sorted(set(range(len(points))) - set(marked))
    size = min(max(6000 / max(len(points), 1), 3), 20)
    for indices, colour, scale, label in ((others, "#c9c9d4", 1, "not chosen"), (sorted(marked), "#4f43dd", 2, "chosen")):
        shown = indices[:: max(1, -(-len(indices) // SHOWN_POINTS))]
        axes.scatter(points[shown, 0], points[shown, 1], s=scale * size, c=colour, linewidths=0, label=label)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.legend(fontsize=6, frameon=False, loc="best")
    return _picture(figure, title)


def counted(values: Iterable[str | None]) -> Counter[str]:
    """How often each value occurs; null is shown as `none`."""
    return Counter("none" if value is None else value for value in values)


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
