"""The command play: a model does an agent's tasks, and the sessions are written as a store."""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_pipeline.errors import SettingsError
from agent_pipeline.keys import PartitionKey, parse_key
from agent_pipeline.progress import throttled

if TYPE_CHECKING:
    from agent_pipeline.evaluation.episodes import Episode


def play(
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
    out: Annotated[
        Path,
        typer.Option(help="Folder for the sessions (a .jsonl file) and the page of transcripts."),
    ],
    model: Annotated[
        str,
        typer.Option(
            help="Model that plays: champion, gguf or adapter (the latest), base, a .gguf file, "
            "or URL#name of an OpenAI-compatible endpoint."
        ),
    ] = "gguf",
    tasks: Annotated[int, typer.Option(min=1, help="Number of tasks.")] = 60,
    seed: Annotated[
        int,
        typer.Option(
            help=(
                "Seed of new tasks that are not in any session. With seed 0, the held-out tasks "
                "are played."
            )
        ),
    ] = 0,
    trials: Annotated[
        int,
        typer.Option(
            min=1, help="Number of trials per task. If it is more than 1, set --temperature."
        ),
    ] = 1,
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature. 0 means greedy decoding.")
    ] = 0.0,
    max_turns: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of assistant messages after which an episode is cut off. Default: the "
            "setting episodes.max_turns.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum length of a message, in tokens. Default: the same as in episodes.",
        ),
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Folder for one file per session, in the format of the trace viewer on the "
                "Hugging Face hub. The folder must not be inside --out."
            )
        ),
    ] = None,
) -> None:
    """Let a model do an agent's tasks in the agent's world, and write the sessions as a store."""
    from agent_pipeline.cli.players import find_limits, open_player
    from agent_pipeline.compute.params import common_params
    from agent_pipeline.compute.playing import play_all, tasks_to_play
    from agent_pipeline.config.assets import EpisodesConfig
    from agent_pipeline.config.resolution import resolve
    from agent_pipeline.config.settings import load_settings
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.reports.episode_report import make_table, write_transcripts
    from agent_pipeline.sessions.session import hash_json

    key, settings = parse_key(partition), load_settings()
    if not (world := settings.world(key)):
        raise SettingsError(
            f'{key} has no world to play in: set `world` in [agents."{key}"] of pipeline.toml '
            "(docs/how-to/write-a-world.md)."
        )
    if (store := out / f"{key.project}.jsonl").exists():
        raise SettingsError(
            f"{store} already contains the sessions of an earlier `play`: choose another folder "
            f"for --out, or delete {store}."
        )
    if traces is not None and traces.resolve().is_relative_to(out.resolve()):
        raise SettingsError(
            f"The folder {traces} of --traces is inside {out}, so the pipeline would read each "
            f"session twice: choose a folder outside {out} for --traces."
        )
    if trials > 1 and not temperature:
        raise SettingsError(
            f"All {trials} trials of a task would be equal, because decoding is greedy: set "
            "--temperature, or play one trial."
        )
    usual = resolve(settings, EpisodesConfig, key).options
    lake = settings.open_lake()
    limits = find_limits(settings, key, model, max_new_tokens)
    rows = [] if seed else common_params(settings, key).shown_to_models(heldout_rows(lake, key))
    chosen = tasks_to_play(world, rows, tasks, tasks if seed else 0, seed, like=f"{key.agent}-")
    ids = _session_ids(
        settings.reading(key).task_pattern,
        chosen,
        trials,
        hash_json([str(out.resolve()), model])[:8],
    )
    players = {"model": open_player(model, key, temperature, limits)}
    progress = throttled(partial(typer.echo, err=True))
    report, played = play_all(
        world, chosen, players, {}, max_turns or usual.max_turns, trials, progress
    )
    out.mkdir(parents=True, exist_ok=True)
    write_transcripts(out, report, played)
    sessions = [
        _session(key, model, session_id, episode)
        for session_id, episode in zip(ids, played["model"], strict=True)
    ]
    store.write_text(
        "".join(json.dumps(session, ensure_ascii=False) + "\n" for session in sessions),
        encoding="utf-8",
    )
    (out / "episodes.jsonl").unlink()
    if traces is not None:
        _write_traces(traces, sessions)
    if errors := [session["error"] for session in sessions if "error" in session]:
        counted = (
            f"{len(errors)} of {len(sessions)} episodes were refused or cut off. In the store, "
            "they have an error instead of a verdict"
        )
        typer.echo(f"{counted}: {'; '.join(sorted(set(errors))[:3])}", err=True)
    shown = f" The files for the Hub's trace viewer are in {traces}." if traces else ""
    typer.echo(
        f"{make_table(report)}\n\nThe sessions are in {store}. Read them in "
        f"{out / 'episodes.md'}.{shown}"
    )


def _write_traces(folder: Path, sessions: Sequence[Mapping[str, Any]]) -> None:
    """Write each session as a file that the Hugging Face Hub's trace viewer shows."""
    from agent_pipeline.sessions.session_trace import format_session_trace

    folder.mkdir(parents=True, exist_ok=True)
    for session in sessions:
        head = {
            name: session.get(name)
            for name in ("project", "agent", "task_id", "trial", "judgment", "error")
        }
        trace = format_session_trace(
            session["session_id"],
            session["messages"],
            model=session["model"],
            name=session["task_id"],
            **head,
        )
        (folder / f"{session['session_id']}.jsonl").write_text(trace, encoding="utf-8")


def _session_ids(
    task_pattern: str, tasks: Sequence[Mapping[str, Any]], trials: int, store: str
) -> list[str]:
    """Return the ids of the sessions, in the order of the episodes.

    Args:
        task_pattern: The agent's pattern that finds a task in a session's id.
        tasks: The tasks that are played.
        trials: How often each task is played.
        store: A text that distinguishes the sessions of two stores.

    Raises:
        SettingsError: the pattern would find another task than the one that is played, so that
            the task
            would change its split.
    """
    from agent_pipeline.evaluation.episodes import PLAYED, fresh_task_id
    from agent_pipeline.ingestion.reading import compile_task_pattern, find_task_key
    from agent_pipeline.sessions.session import Session

    pattern, ids = compile_task_pattern(task_pattern), []
    for task in tasks:
        task_id = fresh_task_id(str(task["task_key"]), task.get("seed"))
        for trial in range(trials):
            ids.append(session_id := f"{PLAYED}{task_id}-{trial}-{store}")
            session = Session(
                session_id=session_id, project="", agent="", source="", task_id=task_id
            )
            if (named := find_task_key(session, pattern, "")) != task_id:
                raise SettingsError(
                    f"The setting `task_pattern` ({task_pattern!r}) finds the task {named!r} in "
                    f"the session id {session_id}, but this session would play the task "
                    f"{task_id!r}. A held-out task could be trained on: begin the pattern with "
                    "^(?!played-), or name tasks with `task_field`."
                )
    return ids


def _session(key: PartitionKey, model: str, session_id: str, episode: "Episode") -> dict[str, Any]:
    """Return an episode in the session format of the reader `openai_chat`.

    The world gave the verdict, if the model's last message is complete.
    """
    from agent_pipeline.evaluation.episodes import fresh_task_id

    task_id = fresh_task_id(episode.task_key, episode.seed)
    verdict = {
        "judgment": "acceptable" if episode.done and not episode.wrong_changes else "unacceptable"
    }
    # A beginning of an answer is no example of one.
    cut = (
        "max_new_tokens cut off a message of the model"
        if episode.end == "cut off" or episode.unended
        else ""
    )
    error = episode.complaint if episode.end == "refused" else cut
    return {
        "session_id": session_id,
        "project": key.project,
        "agent": key.agent,
        "model": model,
        "task_id": task_id,
        "trial": str(episode.trial),
        **({"error": error} if error else verdict),
        "tools": episode.tools,
        "messages": episode.messages,
    }
