"""Playing of tasks: open models as players, choose the tasks, and play them.

How an episode runs stands in `evaluation.episodes`, and what its report contains in
`reports.episode_report`.
"""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.errors import InfrastructureError
from agent_pipeline.evaluation.episodes import (
    Episode,
    Player,
    fresh_task_id,
    play,
    play_side_by_side,
)
from agent_pipeline.evaluation.players import endpoint_player, model_player, recorded_player
from agent_pipeline.evaluation.variants import RENAMED_TOOL, VARIANT
from agent_pipeline.evaluation.worlds import load_world, make_fresh_tasks
from agent_pipeline.export.serving_folder import Form
from agent_pipeline.judging.llm_client import Endpoint
from agent_pipeline.judging.preconditions import Preconditions
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import fast_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.reports.episode_report import EpisodeReport, make_episode_report
from agent_pipeline.sessions.session import Message, hash_json

Played = tuple[EpisodeReport, dict[str, list[Episode]]]
OpenedPlayer = AbstractContextManager[Player | list[Player]]
"""A model that can play. There is either one player that answers many conversations at once, or
several players that play one episode at a time.
"""


def tasks_to_play(
    world: str,
    rows: Sequence[Mapping[str, Any]],
    max_tasks: int,
    fresh_tasks: int,
    fresh_seed: int,
    like: str = "",
    in_store: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Return the tasks to play: first held-out tasks, then fresh tasks that are in no session.

    Each task is the value that the world's `reset` gets.

    Args:
        world: The name of the world.
        rows: The held-out rows. The first row of each task stands for the task.
        max_tasks: The largest number of held-out tasks; a hash of the task's name chooses them.
        fresh_tasks: The number of fresh tasks.
        fresh_seed: The seed of the fresh tasks.
        like: How the agent's task names begin, for a world of several agents if there are no rows.
        in_store: Tasks of sessions in the store. Such a task is not fresh any more, so the next
            one replaces it.

    Raises:
        SettingsError: the world cannot make fresh tasks.
    """
    first = {row["task_key"]: dict(row) for row in reversed(rows)}
    chosen = [first[key] for key in sorted(first, key=hash_json)[:max_tasks]]
    if fresh_tasks:
        offered = make_fresh_tasks(
            world, fresh_tasks + len(in_store), fresh_seed, like=next(iter(first), like)
        )
        chosen += [
            dict(task)
            for task in offered
            if fresh_task_id(str(task.get("task_key")), task.get("seed")) not in in_store
        ][:fresh_tasks]
    return chosen


def play_all(
    world: str,
    tasks: Sequence[Mapping[str, Any]],
    players: Mapping[str, OpenedPlayer | list[Episode]],
    recorded: Mapping[str, Sequence[Message]],
    max_turns: int,
    trials: int,
    progress: Progress = silent,
) -> Played:
    """Let each player play the tasks, and return the report and the episodes, by player.

    The recorded agent plays the tasks for which `recorded` has a session. Models are opened one
    after the other, because two models in memory would share cores and memory. Only the player
    `model` plays tasks in a variant.

    Args:
        world: The name of the world.
        tasks: The tasks to play. `variant` names the variant in which a task is played.
        players: The models by name, each opened when its turn comes, or a model's episodes.
        recorded: The messages of one logged session per task.
        max_turns: The largest number of turns per episode.
        trials: How often each task is played.
        progress: Called after each turn.

    Raises:
        InfrastructureError: a server answered no conversation at all.
    """
    plain = [task for task in tasks if not task.get(VARIANT)]
    played = {}
    for name, opened in players.items():
        if isinstance(opened, list):
            played[name] = opened
        else:
            report = count_episodes_of(name, progress)
            own_tasks = tasks if name == "model" else plain
            played[name] = play_by(world, own_tasks, opened, max_turns, trials, report)
    make = load_world(world)
    if again := [task for task in plain if "seed" not in task and task["task_key"] in recorded]:
        played["recorded"] = play(
            make,
            again,
            recorded_player([recorded[task["task_key"]] for task in again]),
            10 * max_turns,
        )
    return make_episode_report(world, tasks, trials, played), played


def check_preconditions(
    played: Mapping[str, list[Episode]], preconditions: Preconditions
) -> dict[str, list[Episode]]:
    """Return the episodes of all players with the preconditions that their calls broke.

    The preconditions name tools as the world does, so episodes with a renamed tool are not checked.
    """
    if not preconditions:
        return dict(played)
    return {
        player: [
            episode
            if episode.variant == RENAMED_TOOL
            else replace(
                episode,
                broken_preconditions=[
                    str(broken)
                    for broken in preconditions.find_broken(episode.messages, episode.tools)
                ],
            )
            for episode in episodes
        ]
        for player, episodes in played.items()
    }


def play_by(
    world: str,
    tasks: Sequence[Mapping[str, Any]],
    opened: OpenedPlayer,
    max_turns: int,
    trials: int,
    progress: Progress = silent,
) -> list[Episode]:
    """Let one player play the tasks, and return the episodes. The player is closed afterwards.

    Args:
        world: The name of the world.
        tasks: The tasks to play.
        opened: The player.
        max_turns: The largest number of turns per episode.
        trials: How often each task is played.
        progress: Called after each turn.

    Raises:
        InfrastructureError: a server answered no conversation at all.
    """
    make = load_world(world)
    with opened as player:
        if isinstance(player, list):
            episodes = play_side_by_side(make, tasks, player, max_turns, trials, progress)
            if episodes and all(episode.end == "refused" for episode in episodes):
                raise InfrastructureError(
                    "The model did not answer any conversation (first error: "
                    f"{episodes[0].complaint.rstrip('.')}): check the settings of the model."
                )
        else:
            episodes = play(make, tasks, player, max_turns, trials, progress=progress)
        del player  # it holds its model
    gc.collect()
    return episodes


def count_episodes_of(name: str, progress: Progress) -> Progress:
    """Return a progress callback that mentions the player's name."""

    def report(done: int, total: int, text: str) -> None:
        progress(done, total, f"{text} by the {name}")

    return report


@contextmanager
def gguf_player(
    form: Form,
    max_new_tokens: int,
    max_length: int,
    temperature: float,
    side_by_side: bool = True,
) -> Iterator[list[Player]]:
    """Open an exported model as a player, in one or two servers of llama.cpp.

    A server remembers the conversation that it read last, so each server plays one episode after
    the other.

    Args:
        form: The files to serve.
        max_new_tokens: The largest number of tokens per answer.
        max_length: The size of the context in tokens.
        temperature: The sampling temperature; 0 is greedy.
        side_by_side: Whether two servers share the threads, which is faster for many episodes. One
            server is faster for one conversation.

    Yields:
        One player per server.
    """
    from agent_pipeline.export.llama import LlamaCpp, two_servers

    template = form.chat_template.read_text(encoding="utf-8") if form.chat_template else ""
    parameters = {
        "temperature": temperature,
        "max_tokens": max_new_tokens,
        "parallel_tool_calls": True,
        # The confidence of each turn. A token takes 2 % longer (docs/results.md).
        "logprobs": True,
        "top_logprobs": 1,
    }
    options: dict[str, Any] = {
        "n_ctx": max_length,
        "lora": form.lora,
        "chat_template": template,
    }
    with ExitStack() as stack:
        if side_by_side:
            servers = stack.enter_context(two_servers(form.model, **options))
        else:
            servers = [stack.enter_context(LlamaCpp(form.model, **options))]
        of_server = [
            (url, form.model.stem, key, parameters)
            for url, key in (server.endpoint for server in servers)
        ]
        yield [
            endpoint_player(
                Endpoint(*report, concurrency=1, seconds=600), "llama.cpp", one_of_several=True
            )
            for report in of_server
        ]


@contextmanager
def memory_player(
    base: BaseModel,
    tokenizer_dir: Path,
    adapter_dir: Path | None,
    max_new_tokens: int,
    max_length: int,
) -> Iterator[Player]:
    """Open the base model in memory as a player, with or without an adapter.

    Args:
        base: The base model.
        tokenizer_dir: The folder of the tokenizer and the chat template.
        adapter_dir: The folder of the adapter, or None for the base model alone.
        max_new_tokens: The largest number of tokens per answer.
        max_length: The size of the context in tokens.

    Yields:
        A player that answers many conversations at once.
    """
    model = load_model(base, fast_device(), adapter_dir).requires_grad_(False)
    speed_up_linear_modules(model)
    renderer = load_renderer(tokenizer_dir, base.trust_remote_code)
    yield model_player(model, renderer, max_new_tokens, max_length)
