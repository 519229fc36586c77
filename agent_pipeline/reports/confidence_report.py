"""The figures about a model's confidence in its episodes, for the report of episodes.

How the confidence of a turn is measured belongs to `evaluation.confidence`.
"""

import math
from collections.abc import Sequence

import msgspec

from agent_pipeline.evaluation.confidence import (
    UNSURE_PROBABILITY,
    ScoredWrite,
    choose_threshold,
    measure_area,
)
from agent_pipeline.evaluation.episodes import Episode
from agent_pipeline.sessions.transcript import format_markdown_table

MOST_POINTS = 21
"""Maximum number of thresholds of a curve."""

NOT_MEASURED = "not measured"


class CurvePoint(msgspec.Struct, frozen=True):
    """The writes that pass at one threshold.

    Attributes:
        threshold: The smallest confidence that passes.
        harm_left: The number of wrong writes that pass.
        work_kept: The number of right writes that pass.
    """

    threshold: float
    harm_left: int
    work_kept: int


class ConfidenceFigures(msgspec.Struct, frozen=True):
    """The figures about a player's confidence.

    An episode that writes counts once, with its least sure turn that writes.

    Attributes:
        turns: The number of turns with log-probabilities.
        unsure: The number of turns with a token below the probability 0.7.
        forced: The number of turns in which a grammar forced a token.
        right: The number of episodes that write and do no harm.
        wrong: The number of episodes that write wrongly.
        area: The area under the ROC curve; `None` without both right and wrong writes.
        threshold: The smallest confidence at which every wrong write is stopped; `None` if no
            write passes.
        curve: The writes that pass by threshold, from the lowest threshold.
    """

    turns: int
    unsure: int
    forced: int = 0
    right: int = 0
    wrong: int = 0
    area: float | None = None
    threshold: float | None = None
    curve: list[CurvePoint] = []


def measure_confidence(episodes: Sequence[Episode]) -> ConfidenceFigures | None:
    """Return the figures of a player, or `None` if no turn has log-probabilities."""
    turns = [turn for episode in episodes for turn in episode.confidence if turn]
    if not turns:
        return None
    writes = list_writes(episodes)
    threshold = choose_threshold(writes)
    return ConfidenceFigures(
        turns=len(turns),
        unsure=sum(turn.is_unsure for turn in turns),
        forced=sum(turn.forced for turn in turns),
        right=sum(not write.is_wrong for write in writes),
        wrong=sum(write.is_wrong for write in writes),
        area=measure_area(writes),
        threshold=threshold if math.isfinite(threshold) else None,
        curve=_make_curve(writes),
    )


def list_writes(episodes: Sequence[Episode]) -> list[ScoredWrite]:
    """Return the writes of the episodes whose harm and confidence are known."""
    writes = []
    for episode in episodes:
        confidences = [turn.words for turn in episode.confidence if turn and turn.writes]
        if confidences and episode.wrong_changes is not None:
            writes.append(ScoredWrite(min(confidences), bool(episode.wrong_changes)))
    return writes


def _make_curve(writes: Sequence[ScoredWrite]) -> list[CurvePoint]:
    """Return the curve of harm left against work kept, at evenly spaced ranks of the confidence."""
    thresholds = sorted({write.confidence for write in writes})
    count = min(MOST_POINTS, len(thresholds))
    steps = max(count - 1, 1)
    chosen = [thresholds[index * (len(thresholds) - 1) // steps] for index in range(count)]
    points = []
    for threshold in chosen:
        passed = [write for write in writes if write.confidence >= threshold]
        harm_left = sum(write.is_wrong for write in passed)
        points.append(CurvePoint(threshold, harm_left, len(passed) - harm_left))
    return points


def describe_unsure_turns(figures: ConfidenceFigures | None) -> str:
    """Return the number of unsure turns in words."""
    if figures is None:
        return NOT_MEASURED
    return f"{figures.unsure} of {figures.turns}"


def describe_confidence(figures: ConfidenceFigures | None) -> str:
    """Return in words how well the confidence tells wrong writes from right writes."""
    if figures is None:
        return NOT_MEASURED
    counts = f"{figures.wrong} wrong and {figures.right} right writes"
    if figures.area is None:
        return f"not known: {counts}"
    return f"area under the ROC curve {figures.area:.2f} ({counts})"


def format_curve(figures: ConfidenceFigures) -> str:
    """Return the figures and the curve as Markdown."""
    lines = [
        f"Turns with a token below the probability {UNSURE_PROBABILITY}: "
        f"{describe_unsure_turns(figures)}. Turns with a token that a grammar forced: "
        f"{figures.forced}. Wrong against right writes: {describe_confidence(figures)}.",
    ]
    if figures.curve:
        rows = [["at least this confidence", "wrong writes left", "right writes kept"]]
        rows += [
            [
                f"{point.threshold:.2f}",
                f"{point.harm_left} of {figures.wrong}",
                f"{point.work_kept} of {figures.right}",
            ]
            for point in figures.curve
        ]
        lines.append(format_markdown_table(rows))
    return "\n\n".join(lines)
