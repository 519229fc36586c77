"""The world that an agent's episodes are played in, by the settings and by what recordings prove.

The asset `episodes` plays in this world. Episodes of another world are not in force
(`promotion.episodes_in_force`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from agent_pipeline.config.settings import Settings
from agent_pipeline.errors import PipelineError
from agent_pipeline.evaluation.replay_proof import TapeProof, find_stored_proof, prove_tape
from agent_pipeline.evaluation.tape import count_recorded_tasks
from agent_pipeline.evaluation.worlds import PROVEN, REPLAYED, hash_world_source
from agent_pipeline.keys import PartitionKey
from agent_pipeline.promotion.episodes_in_force import NO_WORLD, DecidingWorld
from agent_pipeline.storage.lake import Lake

MIN_REPLAYED_TASKS = 10
"""Minimum number of held-out tasks with a good recording. Fewer tasks settle next to nothing."""

FindProof = Callable[[Lake, PartitionKey, bool], TapeProof | None]
"""`prove_tape`, which may replay sessions for minutes, or `find_stored_proof`, which does not."""


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
        # The code of another world is the user's. Only a worker imports it, because it may fail.
        code = hash_world_source(REPLAYED) if self.world == REPLAYED else ""
        return DecidingWorld(self.world, tuple(self.task_kinds), world_sha256=code)


def choose_world(
    settings: Settings, lake: Lake, key: PartitionKey, find_proof: FindProof = prove_tape
) -> PlayedWorld:
    """Return the world of the settings. The replayed world needs recordings, and `auto` a proof.

    Args:
        settings: The settings.
        lake: The lake.
        key: The partition.
        find_proof: Makes the proof, or finds the stored one.

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
    proof = find_proof(lake, key, settings.redaction.surrogates)
    if world == REPLAYED:
        return PlayedWorld(REPLAYED, proof=proof)
    if proof is None:
        why_not = (
            "nobody has examined the recordings since they, or the code of agent-pipeline, changed "
            "(the asset `episodes` examines them)"
        )
        return PlayedWorld(REPLAYED, why_not)
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
    """Return the world in which the episodes of an agent are in force today, for a decision.

    A decision must not be made without evidence that exists but cannot be read. Every other caller
    uses `find_world_in_force`.

    Raises:
        DataError: A table is damaged.
    """
    return choose_world(settings, lake, key).deciding


def find_world_in_force(
    settings: Settings, lake: Lake, key: PartitionKey, find_proof: FindProof = find_stored_proof
) -> DecidingWorld:
    """Return the world in which the episodes of an agent are in force today. Raise no error.

    Serving, rolling back and stopping the traffic must not fail because of damaged recordings. If
    the recordings cannot be read, no episodes are in force, so the large model makes all writes.

    Args:
        settings: The settings.
        lake: The lake.
        key: The partition.
        find_proof: As in `choose_world`. By default, nothing is replayed.
    """
    try:
        return choose_world(settings, lake, key, find_proof).deciding
    except (PipelineError, OSError, pa.ArrowException) as error:
        why_not = f"the recordings cannot be read ({str(error).rstrip('.')})"
        return DecidingWorld(why_not=why_not, is_unreadable=True)


def _describe_few(tasks: int) -> str:
    """Return a sentence about too few held-out tasks with a good recording."""
    return (
        f"only {tasks} held-out tasks have a good recorded session, and {MIN_REPLAYED_TASKS} such "
        "tasks are needed"
    )
