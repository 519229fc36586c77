"""The figures of episodes in the replayed world: what the recordings settle.

They also list the tasks for which one more recording would settle the most episodes. The figures of
every world belong to `episode_report`.
"""

from collections import Counter
from collections.abc import Sequence

import msgspec

from agent_pipeline.evaluation.episodes import Episode
from agent_pipeline.evaluation.stored_kinds import describe_kind
from agent_pipeline.sessions.transcript import format_markdown_table

MOST_LISTED = 20
"""The largest number of tasks that the list of tasks to record has."""
HEAD_TO_RECORD = ["task", "undecided episodes", "first deviation"]
"""The head of the list of tasks to record."""
MOST_CHARACTERS = 120
"""The largest number of characters of a deviation in the list of tasks to record."""


class ReplayFigures(msgspec.Struct, frozen=True):
    """What the replayed world settled of a player's episodes.

    Attributes:
        episodes: The number of episodes.
        undecided: The number of episodes without a verdict.
        suspected: The number of undecided episodes that ended with a suspected harm.
        harm_seen: The number of episodes with harm that was seen.
        done: The number of episodes that are settled and done.
        deviations: The number of undecided episodes by the kind of the first deviation.
        to_record: By task, the number of undecided episodes, most first.
        harm_unknown: The number of episodes about whose harm nothing is known.
        first_deviations: By task, the first turn of an undecided episode that nobody recorded.
    """

    episodes: int
    undecided: int
    suspected: int
    harm_seen: int
    done: int
    deviations: dict[str, int] = {}
    to_record: dict[str, int] = {}
    harm_unknown: int = 0
    first_deviations: dict[str, str] = {}

    @property
    def settled(self) -> int:
        """Return the number of episodes with a verdict."""
        return self.episodes - self.undecided


def measure_replay(episodes: Sequence[Episode]) -> ReplayFigures | None:
    """Compute the figures of one player, or return None if the episodes were not replayed.

    Replayed episodes are those that name the sessions of their results, and those without a
    verdict.
    """
    undecided = [episode for episode in episodes if episode.unsettled]
    if not undecided and not any(episode.sources for episode in episodes):
        return None
    tasks = Counter(episode.task_key for episode in undecided)
    return ReplayFigures(
        episodes=len(episodes),
        undecided=len(undecided),
        suspected=sum(episode.is_suspect for episode in undecided),
        harm_seen=sum(bool(episode.wrong_changes) for episode in episodes),
        done=sum(episode.done for episode in episodes),
        deviations=dict(
            Counter(episode.unsettled.kind for episode in undecided if episode.unsettled)
        ),
        to_record=dict(sorted(tasks.items(), key=lambda item: (-item[1], item[0]))),
        harm_unknown=sum(episode.wrong_changes is None for episode in episodes),
        first_deviations={
            episode.task_key: " ".join(
                f"{describe_kind(episode.unsettled.kind)}: {episode.unsettled.text}".split()
            )[:MOST_CHARACTERS]
            for episode in reversed(undecided)
            if episode.unsettled
        },
    )


def replay_rows(figures: Sequence[ReplayFigures | None]) -> list[list[str]]:
    """Return the rows of a table about the replayed world, or none for any other world.

    Args:
        figures: The figures of each player.
    """
    if not any(figures):
        return []
    kinds = sorted({kind for player in figures if player for kind in player.deviations})
    rows = [
        ["settled by the recordings", *(_settled(player) for player in figures)],
        ["tasks done, at least to at most", *(_done(player) for player in figures)],
        ["harm, seen to suspected", *(_harm(player) for player in figures)],
        ["harm not known", *(_unknown_harm(player) for player in figures)],
    ]
    for kind in kinds:
        counts = [str(player.deviations.get(kind, 0)) if player else "–" for player in figures]
        rows.append([f"undecided: {describe_kind(kind)}", *counts])
    return rows


def _settled(figures: ReplayFigures | None) -> str:
    """Return how many episodes are settled."""
    return f"{figures.settled} of {figures.episodes}" if figures else "–"


def _done(figures: ReplayFigures | None) -> str:
    """Return the bounds of the tasks done."""
    if figures is None:
        return "–"
    return _bounds(figures.done, figures.done + figures.undecided, figures.episodes)


def _harm(figures: ReplayFigures | None) -> str:
    """Return the bounds of the episodes with harm."""
    if figures is None:
        return "–"
    most = figures.harm_seen + figures.suspected
    return _bounds(figures.harm_seen, most, figures.episodes)


def _bounds(least: int, most: int, episodes: int) -> str:
    """Return two bounds of a number of episodes, or the number if both are the same."""
    return f"{least} of {episodes}" if least == most else f"{least} to {most} of {episodes}"


def _unknown_harm(figures: ReplayFigures | None) -> str:
    """Return the number of episodes about whose harm nothing is known."""
    return f"{figures.harm_unknown} of {figures.episodes}" if figures else "–"


def describe_replay(replay: ReplayFigures) -> str:
    """Return what the replayed world found about a model, in one sentence."""
    return (
        f"replayed from recordings: {_settled(replay)} episodes are settled, it does "
        f"{_done(replay)} tasks, and harms in {_harm(replay)} (not known in {replay.harm_unknown})"
    )


def describe_replayed_page(model: ReplayFigures, base: ReplayFigures | None) -> str:
    """Return the headline of a page of replayed episodes: bounds, and how much is undecided."""
    of_base = f", its base model {_done(base)}" if base else ""
    return (
        f"The model did {_done(model)} tasks{of_base}. It did harm in "
        f"{_harm(model)} episodes. The recordings do not settle {model.undecided} of "
        f"{model.episodes} episodes."
    )


def list_tasks_to_record(figures: ReplayFigures) -> list[list[str]]:
    """Return the tasks for which one more recording would settle most, as rows of a table."""
    tasks = list(figures.to_record.items())[:MOST_LISTED]
    return [[task, str(count), figures.first_deviations.get(task, "")] for task, count in tasks]


def format_tasks_to_record(figures: ReplayFigures) -> str:
    """Return the tasks for which one more recording would settle most, as Markdown."""
    return format_markdown_table([HEAD_TO_RECORD, *list_tasks_to_record(figures)])
