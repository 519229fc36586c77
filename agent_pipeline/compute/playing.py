"""Playing a partition's tasks: the exported model or the adapter, the base model beside it, and the recorded agent."""

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from agent_pipeline.engine.packed_linear import speed_up_linear_modules
from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.evaluation.episodes import (
    Episode,
    Player,
    fresh_task_id,
    play,
    play_side_by_side,
)
from agent_pipeline.evaluation.players import endpoint_player, model_player, recorded_player
from agent_pipeline.evaluation.worlds import load_world
from agent_pipeline.export.serving_folder import Form
from agent_pipeline.judging.client import Endpoint
from agent_pipeline.models.base_model import BaseModel
from agent_pipeline.models.chat_renderer import load_renderer
from agent_pipeline.models.device import fast_device
from agent_pipeline.models.loading import load_model
from agent_pipeline.progress import Progress, silent
from agent_pipeline.reports.episode_report import figures, verdict
from agent_pipeline.sessions.session import Message, hash_json

Played = tuple[dict[str, Any], dict[str, list[Episode]]]
OpenedPlayer = AbstractContextManager[Player | list[Player]]
"""A model to play: one player that answers many conversations at once, or several that play an episode to its end each."""


def tasks_to_play(
    world: str,
    rows: Sequence[Mapping[str, Any]],
    max_tasks: int,
    fresh_tasks: int,
    fresh_seed: int,
    like: str = "",
    in_store: Collection[str] = (),
) -> list[dict[str, Any]]:
    """What `reset` is given: the first row of each held-out task, at most `max_tasks` chosen by hash, then tasks of a fresh seed.

    `like` is how the agent's task names begin, for a world of several agents and no rows. `in_store` are the tasks of the store's sessions:
    one that was played into it is fresh no more, and gives way to the next.

    Raises:
        SettingsError: the world makes no fresh tasks.
    """
    first = {row["task_key"]: dict(row) for row in reversed(rows)}
    chosen = [first[key] for key in sorted(first, key=hash_json)[:max_tasks]]
    if fresh_tasks:
        fresh: Any = getattr(load_world(world), "fresh_tasks", None)
        if fresh is None:
            raise SettingsError(
                f"The world {world} makes no fresh tasks: set fresh_tasks to 0, or give it a class method fresh_tasks."
            )
        offered = fresh(fresh_tasks + len(in_store), fresh_seed, like=next(iter(first), like))
        chosen += [
            each
            for each in offered
            if fresh_task_id(str(each.get("task_key")), each.get("seed")) not in in_store
        ][:fresh_tasks]
    return chosen


def play_all(
    world: str,
    tasks: Sequence[Mapping[str, Any]],
    players: Mapping[str, OpenedPlayer],
    recorded: Mapping[str, Sequence[Message]],
    max_turns: int,
    trials: int,
    progress: Progress = silent,
) -> Played:
    """The report and the episodes of each player; the recorded agent plays those tasks of which `recorded` has a session's messages.

    A model is opened when it is its turn, and closed before the next one's: two models in memory would share cores and memory.
    """
    make = load_world(world)
    played = {}
    for name, opened in players.items():
        with opened as player:
            text = f"episodes played by the {name}"
            if isinstance(player, list):
                played[name] = episodes = play_side_by_side(
                    make, tasks, player, max_turns, trials, progress, text
                )
                if episodes and all(each.end == "refused" for each in episodes):
                    raise InfrastructureError(
                        f"{episodes[0].complaint}, and no other conversation was answered: correct its settings."
                    )
            else:
                played[name] = play(
                    make, tasks, player, max_turns, trials, progress=progress, text=text
                )
            del player  # it holds its model
        gc.collect()
    if again := [task for task in tasks if "seed" not in task and task["task_key"] in recorded]:
        played["recorded"] = play(
            make,
            again,
            recorded_player([recorded[task["task_key"]] for task in again]),
            10 * max_turns,
        )
    report = {
        "world": world,
        "tasks": len(tasks),
        "fresh_tasks": sum("seed" in task for task in tasks),
        "trials": trials,
        "players": {name: figures(episodes) for name, episodes in played.items()},
    }
    return {**report, "against": verdict(report)}, played


@contextmanager
def gguf_player(
    form: Form, max_new_tokens: int, max_length: int, temperature: float
) -> Iterator[list[Player]]:
    """An exported model, played through llama.cpp's own OpenAI-compatible servers, as whoever serves it would. A server keeps what it has
    read of one conversation, so it plays them one by one."""
    from agent_pipeline.export.llama import two_servers

    template = form.chat_template.read_text(encoding="utf-8") if form.chat_template else ""
    parameters = {
        "temperature": temperature,
        "max_tokens": max_new_tokens,
        "parallel_tool_calls": True,
    }
    with two_servers(
        form.model, n_ctx=max_length, lora=form.lora, chat_template=template
    ) as servers:
        of_server = [
            (url, form.model.stem, key, parameters)
            for url, key in (server.endpoint for server in servers)
        ]
        yield [
            endpoint_player(
                Endpoint(*of, concurrency=1, seconds=600), "llama.cpp", one_of_several=True
            )
            for of in of_server
        ]


@contextmanager
def memory_player(
    base: BaseModel,
    tokenizer_dir: Path,
    adapter_dir: Path | None,
    max_new_tokens: int,
    max_length: int,
) -> Iterator[Player]:
    """The base model in memory, with an adapter on it or alone, asked in the template of `tokenizer_dir`."""
    model = load_model(base, fast_device(), adapter_dir).requires_grad_(False)
    speed_up_linear_modules(model)
    renderer = load_renderer(tokenizer_dir, base.trust_remote_code)
    yield model_player(model, renderer, max_new_tokens, max_length)
