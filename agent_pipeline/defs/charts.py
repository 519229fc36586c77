"""Small line charts as metadata, which Dagster's UI shows large and without a click.

The UI shows Markdown in a row of the metadata only if it has fewer than 1,000 characters. A picture
made of pixels is never that short, so these charts are SVG with few points. Histograms and bars,
which open with a click, belong to `metadata`.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from urllib.parse import quote

import dagster as dg

MAX_INLINE = 999
"""Number of characters up to which the UI shows Markdown inline."""
MAX_POINTS = 32
"""Number of points of all lines of a chart together."""
RUNS = 30
"""Number of earlier runs in a chart of the last runs."""

Point = tuple[float, float]

_COLOURS = ("slateblue", "darkorange")
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 400, 24, 180


def line_chart(
    lines: Mapping[str, Sequence[Point]], x_labels: tuple[str, str], top: float | None = None
) -> dg.MetadataValue:
    """Draw one or two lines over a vertical axis that begins at 0.

    The chart shows the last value of each line as a number.

    Args:
        lines: The points of each line, by the name of the line. A line has at least two points.
        x_labels: The texts at both ends of the horizontal axis.
        top: The upper end of the vertical axis; None for the largest value.
    """
    thinned = {name: thin_out(points, MAX_POINTS // len(lines)) for name, points in lines.items()}
    every = [point for points in thinned.values() for point in points]
    first, last = min(x for x, _ in every), max(x for x, _ in every)
    height = top or max(y for _, y in every) or 1.0

    def place(point: Point) -> tuple[int, int]:
        x, y = point
        return (
            round(_LEFT + (_RIGHT - _LEFT) * (x - first) / ((last - first) or 1)),
            round(_BOTTOM - (_BOTTOM - _TOP) * y / height),
        )

    parts = [
        f"<path d='M{_LEFT},{_TOP}V{_BOTTOM}H{_RIGHT}' fill='none' stroke='gray'/>",
        _text(0, _TOP + 4, f"{height:.3g}"),
        _text(0, _BOTTOM, "0"),
        _text(_LEFT, _BOTTOM + 17, x_labels[0]),
        f"<text x='{_RIGHT}' y='{_BOTTOM + 17}' text-anchor='end'>{x_labels[1]}</text>",
    ]
    for number, (name, points) in enumerate(thinned.items()):
        colour = _COLOURS[number]
        path = _draw([place(point) for point in points])
        parts.append(f"<path d='{path}' fill='none' stroke='{colour}' stroke-width='2'/>")
        label = f"{name}: {lines[name][-1][1]:.3g}"
        parts.append(_text(_LEFT + 190 * number, 14, label, f" fill='{colour}'"))
    head = (
        "<svg xmlns='http://www.w3.org/2000/svg' width='404' height='200' fill='gray' "
        "font-family='sans-serif' font-size='13'>"
    )
    svg = f"{head}{''.join(parts)}</svg>"
    encoded = quote(svg, safe="/:=,-'")
    return dg.MetadataValue.md(f"![chart](data:image/svg+xml,{encoded})")


def thin_out(points: Sequence[Point], most: int) -> list[Point]:
    """Return a line with at most `most` points. A point is the mean of neighbouring points.

    The first and the last point stay as they are.
    """
    if len(points) <= most:
        return list(points)
    inner = points[1:-1]
    bounds = [len(inner) * part // (most - 2) for part in range(most - 1)]
    means = [
        (
            sum(x for x, _ in inner[start:end]) / (end - start),
            sum(y for _, y in inner[start:end]) / (end - start),
        )
        for start, end in pairwise(bounds)
    ]
    return [points[0], *means, points[-1]]


def step_chart(name: str, points: Sequence[Point], top: float | None = None) -> dg.MetadataValue:
    """Draw a figure by training step, or return it as text if it was measured less than twice."""
    known = [point for point in points if math.isfinite(point[1])]
    if len(known) < 2:
        return dg.MetadataValue.text(f"{known[0][1]:.4g}" if known else "none")
    labels = (f"step {known[0][0]:.0f}", f"step {known[-1][0]:.0f}")
    return line_chart({name: known}, labels, top)


def run_chart(
    context: dg.AssetExecutionContext, figures: Mapping[str, float | None]
) -> dict[str, dg.MetadataValue]:
    """Return a chart of shares over the last runs of the partition.

    The chart is left out if no earlier run has the figures.

    Args:
        context: The run.
        figures: The run's own figures, by metadata key. Each figure is a share.
    """
    wanted = dg.AssetRecordsFilter(
        asset_key=context.asset_key, asset_partitions=[context.partition_key]
    )
    records = context.instance.fetch_materializations(wanted, limit=RUNS).records[::-1]
    lines: dict[str, Sequence[Point]] = {}
    for name, figure in figures.items():
        earlier = [
            (float(number), value)
            for number, record in enumerate(records)
            if (value := _read_number(record, name)) is not None
        ]
        if figure is not None and earlier:
            lines[name.replace("_", " ")] = [*earlier, (float(len(records)), figure)]
    if not lines:
        return {}
    ago = f"{len(records)} runs ago" if len(records) > 1 else "the run before"
    return {"last_runs": line_chart(lines, (ago, "this run"), top=1.0)}


def _read_number(record: dg.EventLogRecord, name: str) -> float | None:
    """Return a number in the metadata of a materialization, or None."""
    event = record.asset_materialization
    value = event.metadata[name].value if event and name in event.metadata else None
    return float(value) if isinstance(value, int | float) else None


def _draw(places: Sequence[tuple[int, int]]) -> str:
    """Return a line as the path of an SVG, with steps relative to the last point."""
    steps = [f"{end[0] - start[0]},{end[1] - start[1]}" for start, end in pairwise(places)]
    return f"M{places[0][0]},{places[0][1]}l{','.join(steps)}"


def _text(x: int, y: int, text: str, attributes: str = "") -> str:
    return f"<text x='{x}' y='{y}'{attributes}>{text}</text>"
