"""The HTML page of an evaluation or a decision. The page is a single file that loads nothing.

The page begins with one sentence that needs no statistics, and then shows the reasons, the most
important figures, and the turns in which two models differ. The template and the security policy
belong to `rendering`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from agent_pipeline.reports.figure_tables import Row, Split, figure_rows, group_rows, split_tables
from agent_pipeline.reports.page_items import (
    LONGEST,
    MOST_EPISODES,
    MOST_TURNS,
    PageItem,
    StoredRow,
    bounded,
    differing_turns,
    episode_items,
)
from agent_pipeline.reports.rendering import render_page
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.training.chain import describe_used_template
from agent_pipeline.training.report import TrainingReport, read_step_report

__all__ = [
    "LONGEST",
    "MOST_EPISODES",
    "MOST_TURNS",
    "PAGE",
    "Page",
    "PageItem",
    "Split",
    "bounded",
    "differing_turns",
    "episode_items",
    "figure_rows",
    "group_rows",
    "render",
    "split_tables",
]

PAGE = "report.html"

Points = Sequence[tuple[float, float]]
"""The points of a curve: a training step, and the loss at this step."""

FILTERS: tuple[Literal["split", "class", "tool", "outcome"], ...] = (
    "split",
    "class",
    "tool",
    "outcome",
)

MADE_UP = {"private values": "made up, where the tables have pseudonyms"}
"""A note for readers that the models saw made-up values, so that readers do not take the values for
real people's data.
"""

_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 710, 10, 210
"""The edges of the field in which a curve is drawn."""


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The content of an HTML page about an evaluation or a decision.

    Attributes:
        title: The title.
        headline: The outcome in one sentence that needs no statistics.
        summary: More sentences, which tell the most important figures.
        reasons: The reasons for the outcome.
        reasons_title: The title of the reasons.
        tables: Tables with a title and rows. The first row is the head. The page shows the first
            table at once.
        items: Turns and then episodes.
        items_title: The title of the items.
        curves: Curves with a title and points (step, loss).
        facts: Technical details by name.
        notes: Notes about content that is left out, and where it is stored.
    """

    title: str
    headline: str = ""
    summary: Sequence[str] = ()
    reasons: Sequence[str] = ()
    reasons_title: str = "Reasons"
    tables: Sequence[tuple[str, Sequence[Row]]] = ()
    items: Sequence[PageItem] = ()
    items_title: str = "Where the two models differ"
    curves: Sequence[tuple[str, Points]] = ()
    facts: Mapping[str, str] = {}
    notes: Sequence[str] = ()


class Tick(msgspec.Struct, frozen=True):
    """A labelled place on an axis.

    Attributes:
        at: The coordinate.
        label: The value there.
    """

    at: float
    label: str


class DrawnCurve(msgspec.Struct, frozen=True):
    """A curve in the coordinates of its picture.

    Attributes:
        title: The title.
        line: The points of the line.
        columns: The values on the horizontal axis.
        rows: The values on the vertical axis.
        start: The first value.
        end: The last value.
    """

    title: str
    line: str
    columns: Sequence[Tick]
    rows: Sequence[Tick]
    start: str
    end: str


def render(page: Page) -> str:
    """Return the HTML of a page, as a single file."""
    return render_page("page.jinja", make_context(page))


def make_context(page: Page) -> dict[str, object]:
    """Return the values for the template of a page."""
    curves = [curve for title, points in page.curves if (curve := draw_curve(title, points))]
    values = {
        "split": [item.split for item in page.items],
        "class": [item.turn_class for item in page.items],
        "tool": [item.tool for item in page.items],
        "outcome": [item.outcome for item in page.items],
    }
    choices = {name: sorted({value for value in values[name] if value}) for name in FILTERS}
    context = {name: getattr(page, name) for name in page.__struct_fields__}
    return context | {"curves": curves, "choices": choices}


def evaluation_page(
    partition: str,
    split: Split,
    rows: Mapping[str, StoredRow],
    adapters: Sequence[Artifact],
    with_surrogates: bool = False,
) -> str:
    """Return the page of an evaluation on which no decision was made yet. The page compares the
    candidate with its base model.

    Args:
        partition: The partition.
        split: The measurements.
        rows: The held-out rows by id.
        adapters: The chain of the candidate's adapters. The last adapter is the candidate.
        with_surrogates: Whether the models saw made-up values.
    """
    turns, notes = bounded(differing_turns(split, rows), MOST_TURNS, "turns", split.path)
    adapter = f"{adapters[-1].asset} {adapters[-1].identity}" if adapters else ""
    facts = {
        "adapter": adapter,
        "chat template": describe_used_template(adapters),
        "split": split.name,
    }
    facts |= MADE_UP if with_surrogates else {}
    return render(
        Page(
            title=f"Evaluation of {partition}",
            headline=describe_evaluation(split),
            tables=split_tables(split),
            items=turns,
            curves=training_curves(adapters),
            facts=facts,
            notes=notes,
        )
    )


def describe_evaluation(split: Split) -> str:
    """Return one sentence about how often both models are right."""
    right = {
        name: sum(bool(entry[name]["right"]) for entry in split.samples)
        for name in ("adapter", "base")
    }
    total = len(split.samples)
    if not total:
        return "No turn was evaluated."
    return (
        f"The trained model does what the agent did at {right['adapter'] / total:.0%} of {total} "
        f"held-out turns, its base model at {right['base'] / total:.0%}."
    )


def training_curves(adapters: Sequence[Artifact]) -> list[tuple[str, Points]]:
    """Return the training loss by step of each adapter."""
    curves: list[tuple[str, Points]] = []
    for adapter in adapters:
        report = read_step_report(adapter)
        points: list[tuple[float, float]] = []
        if isinstance(report, TrainingReport):
            points = [(entry["step"], entry["loss"]) for entry in report.log_history]
        curves.append((f"Training loss of {adapter.asset}", points))
    return curves


def draw_curve(title: str, points: Points) -> DrawnCurve | None:
    """Return a curve with labelled axes, or None if fewer than two points are known.

    The vertical axis begins at 0, so that a small change does not look large.
    """
    known = [(step, loss) for step, loss in points if math.isfinite(loss)]
    if len(known) < 2:
        return None
    first, last = known[0][0], known[-1][0]
    top = max(loss for _, loss in known) or 1.0

    def x(step: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * (step - first) / ((last - first) or 1)

    def y(loss: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * loss / top

    columns = sorted({first + (last - first) * part / 4 for part in range(5)})
    return DrawnCurve(
        title=title,
        line=" ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in known),
        columns=[Tick(round(x(step), 1), f"{step:.0f}") for step in columns],
        rows=[Tick(round(y(top * part / 4), 1), f"{top * part / 4:.2f}") for part in range(5)],
        start=f"{known[0][1]:.3f}",
        end=f"{known[-1][1]:.3f}",
    )
