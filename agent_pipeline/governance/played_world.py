"""The world that an agent's episodes are played in, by the settings and by what recordings prove.

The asset `episodes` plays in this world. Episodes of another world are not in force
(`promotion.episodes_in_force`).
"""

from dataclasses import dataclass, field

from agent_pipeline.config.settings import Settings
from agent_pipeline.evaluation.replay_proof import TapeProof, prove_tape
from agent_pipeline.evaluation.tape import count_recorded_tasks
from agent_pipeline.evaluation.worlds import PROVEN, REPLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.episodes_in_force import NO_WORLD, DecidingWorld
from agent_pipeline.storage.lake import Lake

MIN_REPLAYED_TASKS = 10
"""Minimum number of held-out tasks with a good recording. Fewer tasks settle next to nothing."""


@dataclass(frozen=True)
class PlayedWorld:
    """The world that the episodes are played in.

    Attributes:
        world: The world: `package.module:Class` or `replayed`.
        why_not: Why no episodes are played; empty if they are.
        task_kinds: The kinds of tasks that are replayed; empty for all kinds.
        proof: What the recordings prove about the replayed world; None if it was not examined.
    """

    world: str
    why_not: str = ""
    task_kinds: list[str] = field(default_factory=list)
    proof: TapeProof | None = None

    @property
    def deciding(self) -> DecidingWorld:
        """Return the world in which episodes are in force."""
        if self.why_not:
            return DecidingWorld(why_not=self.why_not)
        return DecidingWorld(self.world, tuple(self.task_kinds))


def choose_world(settings: Settings, lake: Lake, key: PartitionKey) -> PlayedWorld:
    """Return the world of the settings. The replayed world needs recordings, and `auto` a proof.

    Raises:
        DataError: A table is damaged.
    """
    world = settings.episodes_world(key)
    if not world:
        return PlayedWorld(world, NO_WORLD.why_not)
    if world not in (REPLAYED, PROVEN):
        return PlayedWorld(world)
    tasks = count_recorded_tasks(lake, key)
    if tasks < MIN_REPLAYED_TASKS:
        return PlayedWorld(world, _describe_few(tasks))
    proof = prove_tape(lake, key, settings.redaction.surrogates)
    if world == REPLAYED:
        return PlayedWorld(REPLAYED, proof=proof)
    if not proof.proven:
        why_not = (
            "the recorded sessions do not show that the verdicts of the replayed world can be "
            f"trusted ({proof})"
        )
        return PlayedWorld(REPLAYED, why_not, proof=proof)
    tasks = sum(kind_proof.heldout_tasks for kind_proof in proof.proven)
    why_not = _describe_few(tasks) if tasks < MIN_REPLAYED_TASKS else ""
    kinds: list[str] = [kind_proof.kind for kind_proof in proof.proven]
    return PlayedWorld(REPLAYED, why_not, kinds, proof)


def find_deciding_world(settings: Settings, lake: Lake, key: PartitionKey) -> DecidingWorld:
    """Return the world in which the episodes of an agent are in force today.

    Raises:
        DataError: A table is damaged.
    """
    return choose_world(settings, lake, key).deciding


def _describe_few(tasks: int) -> str:
    """Return a sentence about too few held-out tasks with a good recording."""
    return (
        f"only {tasks} held-out tasks have a good recorded session, and {MIN_REPLAYED_TASKS} such "
        "tasks are needed"
    )
