"""What an adapter practises on, and what it earns: the agent's world where there is one, else the logged turns."""

from collections.abc import Sequence
from typing import Any

from agent_pipeline.compute.playing import world_source
from agent_pipeline.evaluation.rollouts import turn_rollouts, world_rollouts
from agent_pipeline.evaluation.samples import turn_samples
from agent_pipeline.evaluation.worlds import load_world
from agent_pipeline.training.config import GrpoTraining, OnPolicyTraining
from agent_pipeline.training.trainers.on_policy import Play, Row


def practice(rows: Sequence[Row], config: OnPolicyTraining, world: str = "") -> tuple[list[Row], Play | None, dict[str, Any]]:
    """The rows of `train_on_policy`, the play that rewards them (None where a teacher does), and what the identity names beside them.

    `rows` are SFT rows of the split `train`; with a `world` (`package.module:Class`), the first of each task is played.

    Raises:
        SettingsError: the world cannot be imported.
    """
    if not isinstance(config, GrpoTraining):
        return turn_rollouts(turn_samples(rows, split="train")[0], 0.0)[0], None, {}
    if not (world and config.use_world):
        return *turn_rollouts(turn_samples(rows, split="train")[0], config.harm_penalty), {"reward": "logged turns"}
    tasks = list({row["task_key"]: row for row in reversed(rows)}.values())[::-1]
    play = world_rollouts(load_world(world), config.max_turns, config.max_new_tokens, config.max_length, config.harm_penalty)
    return tasks, play, {"reward": world, "world_sha256": world_source(world)}
