"""Results as metadata for the UI: tables, previews without private text, and pictures.

Charts that the UI shows without a click belong to `charts`.
"""

import base64
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from itertools import islice
from typing import Any

import dagster as dg

from agent_pipeline.defs.specs import warning
from agent_pipeline.ingestion.drift import Drift, Share
from agent_pipeline.promotion.production import ModelWeek

PREVIEW_ROWS = 5
NAMED = 10
"""Maximum number of changes that a check names in its description. The tables of the check contain
all changes.
"""
_FEWEST_PLACES = 6  # so that one bar alone does not fill its picture
_COLOUR, _PALE = "#4f43dd", "#b8b8c4"


def page_link(address: str, key: object, name: str) -> dict[str, dg.MetadataValue]:
    """Return a link to a page of an agent, or nothing if the address of the pages is not known.

    Args:
        address: The setting `pages_url`.
        key: The agent.
        name: The name of the page, such as `sessions`.
    """
    if not address:
        return {}
    return {f"{name}_page": dg.MetadataValue.url(f"{address.rstrip('/')}/{key}/{name}")}


def counts_table(counts: Mapping[str, int], label: str = "reason") -> dg.MetadataValue:
    """Return counts by name as a table with the largest count first, or the text `none`."""
    if not counts:
        return dg.MetadataValue.text("none")
    return table(
        [label, "count"],
        (
            [name, f"{count:,}"]
            for name, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
        ),
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> dg.MetadataValue:
    """Return a table as metadata that the UI shows without a click, unlike Markdown."""
    records = [dg.TableRecord(dict(zip(head, map(str, row), strict=True))) for row in rows]
    return dg.MetadataValue.table(records, dg.TableSchema([dg.TableColumn(name) for name in head]))


def tree(values: Mapping[str, object], head: Sequence[str]) -> dg.MetadataValue:
    """Return nested values as a table with one row per leaf, such as `settings.lora_r` and 16."""
    return table(head, _leaves(values))


def _leaves(values: Mapping[str, object], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in values.items():
        yield from (
            _leaves(value, f"{above}{name}.")
            if isinstance(value, dict)
            else [(above + name, value)]
        )


def numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the known numbers, rounded to four digits, so that Dagster plots them over time."""
    return {name: float(f"{value:.4g}") for name, value in values.items() if value is not None}


def preview(rows: Iterable[Mapping[str, Any]], field: str = "messages") -> dg.MetadataValue:
    """Return the shape of the first conversations (roles, tool names and lengths) without texts."""
    return table(
        ["session", "roles with characters, and calls"],
        ([row["session_id"], shape(row[field])] for row in islice(rows, PREVIEW_ROWS)),
    )


def shape(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return a conversation without its words, such as `user 84 → find_order() → tool 120`."""
    parts = []
    for message in messages[:16]:
        text = len(message.get("content") or message.get("value") or "")
        if text:
            parts.append(f"{message.get('role') or message.get('from')} {text}")
        parts += [f"{call['function']['name']}()" for call in message.get("tool_calls", ())]
    return " → ".join(parts) + (" → …" if len(messages) > 16 else "")


def histogram(values: Sequence[float], title: str, label: str) -> dg.MetadataValue:
    """Draw a histogram as a picture."""
    figure, axes = _figure(title)
    axes.hist(values, bins=min(30, max(5, len(values) // 4)), color=_COLOUR)
    axes.set_xlabel(label)
    axes.set_ylabel("rows")
    return _picture(figure, title)


def drift_result(check: str, drift: Drift) -> dg.AssetCheckResult:
    """Return a check result that warns if new sessions differ from the last version's sessions.

    The metadata names changed tools, and shows the shares of both versions.
    """
    shown = {
        "changed_tools": table(["tool", "change", "argument", "before", "now"], drift.tools),
        "shares": table(
            ["of", "value", "last version", "new sessions", "moved"],
            (
                [
                    share.what,
                    share.value,
                    f"{share.before:.0%}",
                    f"{share.now:.0%}",
                    "moved" if share.moved else "",
                ]
                for share in drift.shares
            ),
        ),
    }
    moved = [f"tool {tool} {change}" for tool, change, *_ in drift.tools]
    moved += [
        f"{share.what} {share.value}: {share.before:.0%} → {share.now:.0%}"
        for share in drift.shares
        if share.moved
    ]
    plot = (
        {
            "plot": side_by_side(
                drift.shares, "share of the last version (grey) and of the new sessions"
            )
        }
        if drift.shares
        else {}
    )
    nothing = "There is nothing to compare: no last version, or no new sessions."
    why = "; ".join([*dict.fromkeys(moved)][:NAMED]) if drift.new else nothing
    return warning(
        check,
        not drift.moved,
        why,
        {"last_version": drift.sessions, "new_sessions": drift.new, **shown, **plot},
    )


def side_by_side(shares: Sequence[Share], title: str) -> dg.MetadataValue:
    """Draw a bar chart of shares before and now."""
    figure, axes = _figure(title)
    for offset, colour, values in (
        (-0.2, _PALE, [share.before for share in shares]),
        (0.2, _COLOUR, [share.now for share in shares]),
    ):
        axes.barh(
            [row_index + offset for row_index in range(len(shares))],
            values,
            height=0.4,
            color=colour,
        )
    axes.set_yticks(
        range(len(shares)), [f"{share.what}: {share.value}" for share in shares], fontsize=7
    )
    axes.set_ylim(max(len(shares), _FEWEST_PLACES) - 0.4, -0.6)
    axes.set_xlim(0, 1)
    return _picture(figure, title)


def weekly_shares(rows: Mapping[str, Sequence[ModelWeek]], title: str) -> dg.MetadataValue:
    """Draw the share of good sessions per week, with its interval, for each model."""
    figure, axes = _figure(title, size=(11, 4.2))
    for server, weeks in rows.items():
        shares = [week.good for week in weeks]
        values = [share.value or 0.0 for share in shares]
        below = [value - (share.low or 0.0) for value, share in zip(values, shares, strict=True)]
        above = [(share.high or 0.0) - value for value, share in zip(values, shares, strict=True)]
        colour = _COLOUR if server == "champion" else None
        days = [date.fromisoformat(week.week) for week in weeks]
        axes.errorbar(
            days, values, [below, above], label=server, marker="o", capsize=3, color=colour
        )
    axes.set_ylabel("share of good sessions")
    axes.set_ylim(0, 1.02)
    axes.legend()
    figure.autofmt_xdate()
    return _picture(figure, title)


def _figure(title: str, size: tuple[float, float] = (6, 2.6)) -> tuple[Any, Any]:
    # The object interface of matplotlib: pyplot keeps global state, and a code server draws from
    # several threads.
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=80, layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _picture(figure: Any, alt: str) -> dg.MetadataValue:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return dg.MetadataValue.md(
        f"![{alt}](data:image/png;base64,{base64.b64encode(file.getvalue()).decode('ascii')})"
    )
