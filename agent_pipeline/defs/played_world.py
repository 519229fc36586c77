"""The world that an agent's episodes are played in, by the settings and by what recordings prove.

The asset `episodes` plays in this world, and `champion` uses no episodes of another one.
"""

from dataclasses import dataclass, field

import dagster as dg

from agent_pipeline.defs.metadata import table
from agent_pipeline.defs.resources import Workspace
from agent_pipeline.evaluation.replay_proof import HEAD, prove_tape
from agent_pipeline.evaluation.tape import count_recorded_tasks
from agent_pipeline.evaluation.worlds import PROVEN, REPLAYED
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.comparison import DecidingWorld

MIN_REPLAYED_TASKS = 10
"""Minimum number of held-out tasks with a good recording. Fewer tasks settle next to nothing."""


@dataclass(frozen=True)
class PlayedWorld:
    """The world that the episodes are played in.

    Attributes:
        world: The world: `package.module:Class` or `replayed`.
        why_not: Why no episodes are played; empty if they are.
        task_kinds: The kinds of tasks that are replayed; empty for all kinds.
        metadata: What the recordings prove about the replayed world.
    """

    world: str
    why_not: str = ""
    task_kinds: list[str] = field(default_factory=list)
    metadata: dict[str, dg.MetadataValue] = field(default_factory=dict)

    @property
    def deciding(self) -> DecidingWorld:
        """Return the world of the episodes that a decision may use."""
        if self.why_not:
            return DecidingWorld()
        return DecidingWorld(self.world, tuple(self.task_kinds))


def choose_world(workspace: Workspace, key: PartitionKey) -> PlayedWorld:
    """Return the world of the settings. The replayed world needs recordings, and `auto` a proof."""
    settings = workspace.settings()
    world = settings.episodes_world(key)
    if not world:
        return PlayedWorld(world, "the agent has no world to play in")
    if world not in (REPLAYED, PROVEN):
        return PlayedWorld(world)
    lake = workspace.open_lake()
    tasks = count_recorded_tasks(lake, key)
    if tasks < MIN_REPLAYED_TASKS:
        return PlayedWorld(world, _describe_few(tasks))
    proof = prove_tape(lake, key, settings.redaction.surrogates)
    metadata = {"tape_proof": table(HEAD, proof.rows)}
    if world == REPLAYED:
        return PlayedWorld(REPLAYED, metadata=metadata)
    if not proof.proven:
        why_not = f"recordings do not prove the verdicts of the replayed world ({proof})"
        return PlayedWorld(REPLAYED, why_not, metadata=metadata)
    tasks = sum(kind_proof.heldout_tasks for kind_proof in proof.proven)
    why_not = _describe_few(tasks) if tasks < MIN_REPLAYED_TASKS else ""
    kinds: list[str] = [kind_proof.kind for kind_proof in proof.proven]
    return PlayedWorld(REPLAYED, why_not, kinds, metadata)


def _describe_few(tasks: int) -> str:
    """Return a sentence about too few held-out tasks with a good recording."""
    return (
        f"{tasks} held-out tasks have a good recording on the agent's tape, and "
        f"{MIN_REPLAYED_TASKS} are needed to replay them"
    )
