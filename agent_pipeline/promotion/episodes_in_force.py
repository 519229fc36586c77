"""The last episodes of an export, and whether they are in force.

Episodes are in force if they were played in the agent's world of today. Every reader of an
export's last episodes finds them here, so that no reader uses episodes that a decision would not
use. The choice of the world is in `governance.played_world`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_pipeline.evaluation.stored_kinds import describe_kind
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import DECISION_PAGES, EXPORT
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake

EPISODES = "episodes"
MOST_DECISIONS = 10
"""Number of decisions whose episodes are searched. The champion plays again for each decision."""


@dataclass(frozen=True)
class DecidingWorld:
    """The world in which an export must have played, so that its episodes are in force.

    Attributes:
        world: `package.module:Class` or `replayed`; empty if no episodes are in force.
        task_kinds: The kinds of tasks that are replayed; empty for all kinds.
        why_not: Why no episodes are in force, if there is no world.
    """

    world: str = ""
    task_kinds: tuple[str, ...] = ()
    why_not: str = field(default="the agent has no world to play in", compare=False)


NO_WORLD = DecidingWorld()
"""The world of an agent without a world: no episodes are in force."""


@dataclass(frozen=True)
class LastEpisodes:
    """The last episodes of an export.

    Attributes:
        played: The last episodes, in force or not; None if the export played none.
        why_not: Why they are not in force, or why there are none; empty if they are in force.
    """

    played: Artifact | None
    why_not: str

    @property
    def in_force(self) -> Artifact | None:
        """Return the episodes if they are in force."""
        return None if self.why_not else self.played


def find_last_episodes(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> LastEpisodes:
    """Return the last episodes that this export played, even if other exports have played since.

    If they are not in force, episodes count that the export played as the champion, to be compared
    with a candidate in the world of today.

    Args:
        lake: The lake.
        key: The partition.
        export: The identity of the export.
        deciding_world: The agent's world of today.

    Raises:
        DamageError: An episodes artifact in the history is damaged, so it may be the one that is
            searched.
    """
    last = None
    for played in _list_played(lake, key):
        if played.manifest["made_from"].get(EXPORT) == export:
            last = LastEpisodes(played, _why_not_in_force(played, deciding_world))
            break
    if last and last.in_force:
        return last
    for played in _list_compared(lake, key) if deciding_world.world else ():
        is_own = played.manifest["made_from"].get(EXPORT) == export
        if is_own and not _why_not_in_force(played, deciding_world):
            return LastEpisodes(played, "")
    why_not = "it has played none" if deciding_world.world else deciding_world.why_not
    return last or LastEpisodes(None, why_not)


def find_latest_episodes(
    lake: Lake, key: PartitionKey, deciding_world: DecidingWorld
) -> LastEpisodes:
    """Return the last episodes of a partition, by whichever export played them.

    Args:
        lake: The lake.
        key: The partition.
        deciding_world: The agent's world of today.

    Raises:
        DataError: The partition has no episodes.
        DamageError: The episodes are damaged.
    """
    played = lake.latest(EPISODES, key)
    return LastEpisodes(played, _why_not_in_force(played, deciding_world))


def _list_played(lake: Lake, key: PartitionKey) -> Iterator[Artifact]:
    """Yield the episodes of a partition, newest first."""
    history = reversed(lake.history(EPISODES, key))
    for identity in dict.fromkeys(entry.latest for entry in history if entry.latest):
        played = lake.find_undamaged(EPISODES, key, identity)
        if played:
            yield played


def _list_compared(lake: Lake, key: PartitionKey) -> Iterator[Artifact]:
    """Yield the episodes of both models of the last decisions, newest first."""
    history = reversed(lake.history(DECISION_PAGES, key))
    pages = dict.fromkeys(entry.latest for entry in history if entry.latest)
    for page_identity in list(pages)[:MOST_DECISIONS]:
        page = lake.find_undamaged(DECISION_PAGES, key, page_identity)
        for identity in page.manifest["made_from"].get("shown", ()) if page else ():
            played = lake.find_undamaged(EPISODES, key, identity)
            if played:
                yield played


def _why_not_in_force(played: Artifact, deciding_world: DecidingWorld) -> str:
    """Return why episodes are not in force, or an empty text.

    The proof of the replayed world is made again when the recordings change. If it does not hold
    any more, or holds for other kinds of tasks, earlier episodes prove nothing.
    """
    if not deciding_world.world:
        return deciding_world.why_not
    made_from = played.manifest["made_from"]
    world = made_from.get("world") or "an unknown world"
    if world != deciding_world.world:
        return f"they were played in {world}, and the agent's world is now {deciding_world.world}"
    kinds = set(made_from.get("task_kinds", ()))
    if kinds != set(deciding_world.task_kinds):
        return (
            f"they replay {_describe_kinds(kinds)}, and the recordings now prove "
            f"{_describe_kinds(set(deciding_world.task_kinds))}"
        )
    # Older versions did not count the tasks that they left out.
    if world == REPLAYED and "not_played" not in made_from:
        return "an older version played them, which did not count the tasks that it left out"
    return ""


def _describe_kinds(kinds: set[str]) -> str:
    """Return kinds of tasks, in words."""
    return " and ".join(describe_kind(kind) for kind in sorted(kinds)) or "all tasks"
