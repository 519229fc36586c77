"""The last episodes of an export, and whether they are in force.

Episodes are in force if they were played in the agent's world of today. Every reader of an
export's last episodes finds them here, so that no reader uses episodes that a decision would not
use. The choice of the world is in `governance.played_world`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from agent_pipeline.errors import DamageError, DataError
from agent_pipeline.evaluation.stored_kinds import describe_kind
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.ledger import DECISION_PAGES, EXPORT
from agent_pipeline.storage.artifacts import Artifact
from agent_pipeline.storage.lake import Lake

EPISODES = "episodes"
MOST_DECISIONS = 10
"""Number of decisions per export whose episodes count.

The champion plays again for each decision.
"""


@dataclass(frozen=True)
class DecidingWorld:
    """The world in which an export must have played, so that its episodes are in force.

    Attributes:
        world: `package.module:Class` or `replayed`; empty if no episodes are in force.
        task_kinds: The kinds of tasks that are replayed; empty for all kinds.
        why_not: Why no episodes are in force, if there is no world.
        is_unreadable: Whether they are not in force because a table cannot be read.
        world_sha256: The hash of the replayed world's code; empty for any other world, whose code
            is not compared.
    """

    world: str = ""
    task_kinds: tuple[str, ...] = ()
    why_not: str = field(default="the agent has no world to play in", compare=False)
    is_unreadable: bool = field(default=False, compare=False)
    world_sha256: str = field(default="", compare=False)


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


@dataclass(frozen=True)
class SeenEpisodes:
    """All episodes of an export in which harm may have been seen.

    Attributes:
        episodes: The episodes, in force or not, newest first.
        damage: Sentences about episodes that cannot be read, so that nobody knows what they show.
        pages: The identities of the decisions' pages that name the compared episodes.
    """

    episodes: list[LastEpisodes]
    damage: list[str]
    pages: list[str]


@dataclass(frozen=True)
class _Played:
    """Episodes, and the time (UTC) at which they were played or compared."""

    artifact: Artifact
    when: str


@dataclass(frozen=True)
class _Compared:
    """Episodes of the last decisions, the pages that name them, and sentences about damage."""

    played: list[_Played]
    damage: list[str]
    pages: list[str]


def find_last_episodes(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> LastEpisodes:
    """Return the last episodes that this export played, even if other exports have played since.

    An export plays its own episodes, and plays again as the champion, to be compared with a
    candidate. The newest episodes that are in force count. If none are in force, its own last
    episodes are returned. A damaged page of an earlier decision is skipped.

    Args:
        lake: The lake.
        key: The partition.
        export: The identity of the export.
        deciding_world: The agent's world of today.

    Raises:
        DamageError: An episodes artifact in the history is damaged, so it may be the one that is
            searched.
    """
    own_episodes = _find_own(lake, key, export)
    compared = _find_compared(lake, key, export).played if deciding_world.world else []
    for played in sorted([*compared, *own_episodes], key=lambda played: played.when, reverse=True):
        if not _why_not_in_force(played.artifact, deciding_world):
            return LastEpisodes(played.artifact, "")
    for played in own_episodes:
        return LastEpisodes(played.artifact, _why_not_in_force(played.artifact, deciding_world))
    why_not = "it has played none" if deciding_world.world else deciding_world.why_not
    return LastEpisodes(None, why_not)


def find_readable_episodes(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> LastEpisodes:
    """Return the last episodes of an export, or none if they are damaged. Raise no error.

    Serving needs an answer in any case: without episodes in force, an export has no threshold, and
    the large model makes all writes. A decision uses `find_last_episodes`. The arguments are the
    same.
    """
    try:
        return find_last_episodes(lake, key, export, deciding_world)
    except (DataError, OSError) as error:
        return LastEpisodes(None, f"they cannot be read ({str(error).rstrip('.')})")


def find_seen_episodes(
    lake: Lake, key: PartitionKey, export: str, deciding_world: DecidingWorld
) -> SeenEpisodes:
    """Return all episodes of an export in which harm may have been seen. Raise no error.

    They are its own last episodes, and all that its last decisions compared. Newer episodes without
    harm do not hide earlier episodes. The arguments are those of `find_last_episodes`.
    """
    damage: list[str] = []
    pages: list[str] = []
    every: list[_Played] = []
    try:
        compared = _find_compared(lake, key, export)
        every += compared.played
        damage += compared.damage
        pages += compared.pages
    except (DataError, OSError) as error:
        damage.append(str(error))
    try:
        every += _find_own(lake, key, export)
    except (DataError, OSError) as error:
        damage.append(str(error))
    every.sort(key=lambda played: played.when, reverse=True)
    distinct: dict[str, LastEpisodes] = {}
    for played in every:
        why_not = _why_not_in_force(played.artifact, deciding_world)
        distinct.setdefault(played.artifact.identity, LastEpisodes(played.artifact, why_not))
    return SeenEpisodes(list(distinct.values()), list(dict.fromkeys(damage)), pages)


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


def _list_played(lake: Lake, key: PartitionKey) -> Iterator[_Played]:
    """Yield the episodes of a partition, newest first."""
    for identity, when in _list_named(lake, EPISODES, key).items():
        artifact = lake.find_undamaged(EPISODES, key, identity)
        if artifact:
            yield _Played(artifact, when)


def _list_named(lake: Lake, asset: str, key: PartitionKey) -> dict[str, str]:
    """Return the time at which each artifact became the latest of its asset, newest first."""
    times: dict[str, str] = {}
    for entry in reversed(lake.history(asset, key)):
        if entry.latest:
            times[entry.latest] = entry.when  # the first time, if it became the latest twice
    return times


def _find_own(lake: Lake, key: PartitionKey, export: str) -> list[_Played]:
    """Return an export's own last episodes, or an empty list.

    Raises:
        DamageError: As in `find_last_episodes`.
    """
    for played in _list_played(lake, key):
        if played.artifact.manifest["made_from"].get(EXPORT) == export:
            return [played]
    return []


def _find_compared(lake: Lake, key: PartitionKey, export: str) -> _Compared:
    """Return the episodes of an export that its last decisions compared, newest first.

    Decisions that are older than the export cannot have compared it, so they are not read.

    Raises:
        DamageError: The history of the decisions, or of the exports, is damaged.
    """
    compared = _Compared([], [], [])
    exported = _list_named(lake, EXPORT, key).get(export, "")
    for page_identity, when in _list_named(lake, DECISION_PAGES, key).items():
        if when < exported or len(compared.pages) == MOST_DECISIONS:
            break
        compares_export = False
        try:
            page = lake.find_undamaged(DECISION_PAGES, key, page_identity)
            for identity in page.manifest["made_from"].get("shown", ()) if page else ():
                artifact = lake.find_undamaged(EPISODES, key, identity)
                if artifact and artifact.manifest["made_from"].get(EXPORT) == export:
                    compared.played.append(_Played(artifact, when))
                    compares_export = True
        except DamageError as error:
            compared.damage.append(str(error))
        if compares_export:
            compared.pages.append(page_identity)
    return compared


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
    code = made_from.get("world_sha256", "")
    if code and deciding_world.world_sha256 and code != deciding_world.world_sha256:
        return f"the code of the world {world} has changed since"
    # Older versions did not count the tasks that they left out.
    if world == REPLAYED and "not_played" not in made_from:
        return "an older version played them, which did not count the tasks that it left out"
    return ""


def _describe_kinds(kinds: set[str]) -> str:
    """Return kinds of tasks, in words."""
    return " and ".join(describe_kind(kind) for kind in sorted(kinds)) or "all tasks"
