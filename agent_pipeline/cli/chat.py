"""The command chat, in which a person or a script talks to an agent's model.

The conversation itself belongs to `evaluation.chat`.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_pipeline.cli.report import printable
from agent_pipeline.config.settings import Settings, load_settings
from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.worlds import REPLAYED
from agent_pipeline.keys import PartitionKey, parse_key

if TYPE_CHECKING:
    from agent_pipeline.evaluation.chat import Chat, ChatEvent
    from agent_pipeline.evaluation.episodes import Player
    from agent_pipeline.evaluation.worlds import World
    from agent_pipeline.sessions.session import Message, Tool
    from agent_pipeline.storage.lake import Lake

console = Console()

COMMANDS = (
    "/again starts over, /system and /tools show what the model gets, and Ctrl-D ends the chat"
)
LONGEST_RESULT = 500
"""Number of characters of a tool's result that are shown."""
STYLES = {"call": "cyan", "result": "dim", "stopped": "bold red"}

TOOL_ANSWERERS = ("world", "tape", "ask", "none")
"""Values of the option --tools: who answers the model's calls."""


@dataclass(frozen=True)
class Scene:
    """What surrounds a chat: who answers the calls, and how the chat begins.

    Attributes:
        world: The name of the agent's world; empty if the person answers the calls.
        row: The task that the world plays.
        system: The system messages, if there is no world.
        tools: The tools, if there is no world.
        can_call: Whether the model gets tools.
    """

    world: str
    row: Mapping[str, Any]
    system: "list[Message]"
    tools: "list[Tool]"
    can_call: bool = True


@dataclass(frozen=True)
class Talk:
    """The chat with one model.

    Attributes:
        name: The name of the model.
        chat: The chat.
        world: The world that answers the calls, or None.
        question: The message with which a user of the task begins; empty without a world.
    """

    name: str
    chat: "Chat"
    world: "World | None"
    question: str


def chat(
    partition: Annotated[str, typer.Argument(help="Partition, as project/agent.")],
    model: Annotated[
        str,
        typer.Option(
            help="Model to talk to: champion, candidate (the latest), base, a .gguf file, or "
            "URL#name of an OpenAI-compatible endpoint. Default: the champion, or the candidate if "
            "there is no champion."
        ),
    ] = "",
    compare: Annotated[
        str,
        typer.Option(
            "--compare",
            help="A second model. Its answers are shown next to the answers of the first model.",
        ),
    ] = "",
    tools: Annotated[
        str,
        typer.Option(
            help=(
                "Who answers the model's tool calls: world (the agent's world), tape (recorded "
                "sessions of the task), ask (you type the results), or none (the model gets no "
                "tools). Default: the world of the setting `world`, or ask if there is none."
            )
        ),
    ] = "",
    task: Annotated[
        str,
        typer.Option(
            help=(
                "Id of a task of the world or of the recorded sessions. Default: the first "
                "held-out task."
            )
        ),
    ] = "",
    temperature: Annotated[
        float, typer.Option(min=0, help="Sampling temperature. 0 means greedy decoding.")
    ] = 0.0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Maximum length of a message, in tokens. Default: the same as in episodes.",
        ),
    ] = None,
) -> str:
    """Talk to an agent's model, with the agent's own system prompt and tools.

    Each line is a message. An empty line sends the message with which the task begins. If the input
    is not a terminal, each line of standard input is a message, or the result of a tool call if the
    chat asks for it.
    """
    from agent_pipeline.cli.players import find_limits, open_player
    from agent_pipeline.config.assets import EpisodesConfig
    from agent_pipeline.config.resolution import resolve

    key, settings = parse_key(partition), load_settings()
    lake = settings.open_lake()
    names = [_resolve_model(lake, key, name) for name in [model, *([compare] if compare else [])]]
    scene = _open_scene(settings, key, names[0], tools, task)
    usual = resolve(settings, EpisodesConfig, key).options
    with ExitStack() as stack:
        players: dict[str, Player] = {}
        for name in names:
            _print(f"Loading {name} of {key} ...")
            limits = find_limits(settings, key, name, max_new_tokens)
            opened = stack.enter_context(
                open_player(name, key, temperature, limits, side_by_side=False)
            )
            players[name] = opened[0] if isinstance(opened, list) else opened

        def start() -> list[Talk]:
            return [
                _start_talk(name, player, scene, usual.max_turns)
                for name, player in players.items()
            ]

        _talk(start, key, scene)
    return f"play {key} --out played" if scene.world else f"report {key}"


def _resolve_model(lake: "Lake", key: PartitionKey, name: str) -> str:
    """Return the name of a model as `open_player` takes it."""
    from agent_pipeline.promotion.ledger import EXPORT

    pointers = lake.pointers(EXPORT, key)
    if not name:
        name = "champion" if pointers.champion else "candidate"
    if name == "candidate":
        return "gguf" if pointers.latest else "adapter"
    return name


def _open_scene(settings: Settings, key: PartitionKey, model: str, tools: str, task: str) -> Scene:
    """Find out who answers the calls, and how the chat begins.

    Args:
        settings: The settings.
        key: The agent's partition.
        model: The first model, which begins with the system prompt and tools of its training.
        tools: The option --tools.
        task: The option --task.

    Raises:
        SettingsError: The options do not fit the agent.
        DataError: The agent has no rows.
    """
    from agent_pipeline.compute.params import common_params
    from agent_pipeline.promotion.model_prompt import read_model_prompt

    lake, world = settings.open_lake(), settings.world(key)
    usual = "tape" if settings.episodes_world(key) == REPLAYED else "ask"
    choice = tools or ("world" if world else usual)
    if choice not in TOOL_ANSWERERS:
        raise SettingsError(f"--tools cannot be {choice!r}: choose world, tape, ask or none.")
    if choice == "world" and not world:
        raise SettingsError(
            f'{key} has no world that answers calls: set `world` in [agents."{key}"] of '
            "pipeline.toml (docs/how-to/write-a-world.md), or use --tools tape or --tools ask."
        )
    params = common_params(settings, key)
    if choice == "world":
        return Scene(world, _choose_task(params, world, lake, key, task), [], [])
    if choice == "tape":
        return Scene(REPLAYED, _choose_task(params, REPLAYED, lake, key, task), [], [])
    if task:
        raise SettingsError(
            "--task cannot be used with this value of --tools: leave out --task, or use --tools "
            "world or --tools tape."
        )
    prompt = read_model_prompt(lake, key, model, params.shown_to_models)
    if prompt.variants > 1:
        _print(
            f"note: The sessions of {key} begin with {prompt.variants} different combinations of "
            "system prompt and tools. The chat uses the most frequent combination."
        )
    return Scene("", {}, prompt.system, prompt.tools, can_call=choice == "ask")


def _choose_task(
    params: Any, world: str, lake: "Lake", key: PartitionKey, task: str
) -> Mapping[str, Any]:
    """Return the arguments with which the world starts a task.

    Args:
        params: The common parameters, which show rows as models see them.
        world: The name of the world.
        lake: The lake.
        key: The agent's partition.
        task: The name of the task; empty for the first held-out task, or a new task if there is no
            held-out task.

    Raises:
        SettingsError: The agent has no such held-out task, or the world cannot make tasks.
        DataError: The recorded sessions of held-out tasks cannot be read.
    """
    from agent_pipeline.compute.playing import tasks_to_play
    from agent_pipeline.errors import DataError
    from agent_pipeline.evaluation.heldout import heldout_rows
    from agent_pipeline.evaluation.tape import add_tapes
    from agent_pipeline.options import did_you_mean

    try:
        rows = params.shown_to_models(heldout_rows(lake, key))
    except DataError:
        if world == REPLAYED:
            raise
        rows = []
    if world == REPLAYED:
        rows = add_tapes(lake, key, rows, params.surrogates)
        if not rows:
            raise SettingsError(
                f"No held-out task of {key} has a good recorded session: use --tools ask."
            )
    tasks = tasks_to_play(world, rows, len(rows), 0 if rows else 1, 1, like=f"{key.agent}-")
    if not task:
        return tasks[0]
    by_name = {str(row["task_key"]): row for row in tasks}
    if task not in by_name:
        raise SettingsError(f"{key} has no held-out task {task!r}{did_you_mean(task, by_name)}")
    return by_name[task]


def _start_talk(name: str, player: "Player", scene: Scene, max_turns: int) -> Talk:
    """Begin a chat with a model. If the agent has a world, the chat gets a separate copy of it."""
    from agent_pipeline.evaluation.chat import Chat
    from agent_pipeline.evaluation.episodes import start_task
    from agent_pipeline.evaluation.worlds import load_world, run_tool

    if not scene.world:
        offered = scene.tools if scene.can_call else []
        return Talk(name, Chat(player, scene.system, offered, _ask_result, max_turns), None, "")
    world = load_world(scene.world)()
    opening = start_task(world, scene.row)

    def run(tool: str, arguments: Any) -> str:
        return run_tool(world, tool, arguments)

    question = str(opening.user[0].get("content") or "") if opening.user else ""
    return Talk(name, Chat(player, opening.system, opening.tools, run, max_turns), world, question)


def _talk(start: Callable[[], list[Talk]], key: PartitionKey, scene: Scene) -> None:
    """Read messages until the input ends, and print what the models do."""
    talks = start()
    tools = ", ".join(str(tool["function"]["name"]) for tool in talks[0].chat.tools) or "none"
    answerer = f" Calls are answered by {_name_answerer(scene)}." if talks[0].chat.tools else ""
    _print(f"Tools: {tools}.{answerer}")
    if talks[0].question:
        _print(f"In this task, the user begins with: {talks[0].question}")
    _print(f"{COMMANDS}.")
    is_first = True
    while (line := _read_line(f"you ({key}): ")) is not None:
        text = line.strip()
        if text == "/again":
            _print_outcomes(talks)
            talks, is_first = start(), True
        elif text == "/system":
            opening = [message for message in talks[0].chat.messages if message["role"] == "system"]
            _print("\n".join(str(message.get("content")) for message in opening) or "none")
        elif text == "/tools":
            for tool in talks[0].chat.tools:
                _print(f"{tool['function']['name']}: {tool['function'].get('description', '')}")
        elif text.startswith("/"):
            _print(f"There is no command {text}. {COMMANDS}.")
        elif message := text or (talks[0].question if is_first else ""):
            if not text:
                _print(f"you: {message}")
            _print_turn(talks, message)
            is_first = False
    _print_outcomes(talks)


def _name_answerer(scene: Scene) -> str:
    """Return who answers the calls of a chat."""
    if not scene.world:
        return "you"
    task = scene.row["task_key"]
    if scene.world == REPLAYED:
        return f"the recorded sessions of the task {task}"
    return f"the world {scene.world}, task {task}"


def _print_turn(talks: Sequence[Talk], message: str) -> None:
    """Send a message to each model, and print what the model does."""
    if len(talks) == 1:
        for event in talks[0].chat.say(message):
            console.print(_describe(event))
        return
    table = Table(*(talk.name for talk in talks), expand=True, show_lines=False)
    cells = []
    for talk in talks:
        cell = Text()
        for event in talk.chat.say(message):
            cell.append_text(_describe(event)).append("\n")
        cells.append(cell)
    table.add_row(*cells)
    console.print(table)


def _describe(event: "ChatEvent") -> Text:
    """Return an event as styled text, in which control characters are escaped."""
    text = "\n".join(map(printable, event.text.split("\n")))
    if event.kind == "answer":
        return Text.assemble(("model: ", "bold"), text)
    if event.kind == "result" and len(text) > LONGEST_RESULT:
        text = f"{text[:LONGEST_RESULT]} … ({len(text)} characters)"
    head = {"call": f"  calls {printable(event.tool)} ", "result": "  result "}.get(event.kind, "")
    return Text(f"{head}{text}", style=STYLES[event.kind])


def _print_outcomes(talks: Sequence[Talk]) -> None:
    """Print how well each model did the task, as its world says.

    Recorded sessions do not judge a chat, because the person's messages were not recorded.
    """
    from agent_pipeline.evaluation.replayed_world import ReplayedWorld
    from agent_pipeline.evaluation.worlds import task_outcome

    for talk in talks:
        if isinstance(talk.world, ReplayedWorld):
            continue
        if talk.world is None or not any(m["role"] == "assistant" for m in talk.chat.messages):
            continue
        outcome = task_outcome(talk.world)
        done = "done" if outcome.reward >= 1 else "not done"
        why = f" ({outcome.complaint})" if outcome.complaint and outcome.reward < 1 else ""
        harm = f"; harm: {'; '.join(outcome.wrong_changes)}" if outcome.wrong_changes else ""
        who = f" by {talk.name}" if len(talks) > 1 else ""
        _print(f"In the world, the task is {done}{who}{why}{harm}.")


def _ask_result(tool: str, arguments: Any) -> str:
    """Ask the person for the result of a call. The end of the input gives an empty result."""
    return _read_line(f"result of {printable(tool)}: ") or ""


def _read_line(prompt: str) -> str | None:
    """Return the next line of the input, or None at its end."""
    if sys.stdin.isatty():
        import readline  # noqa: F401  # lines can be edited, and earlier lines are remembered

        try:
            return input(prompt)
        except EOFError:
            typer.echo("")
            return None
    line = sys.stdin.readline()
    if not line:
        return None
    _print(f"{prompt}{line.rstrip()}")
    return line.rstrip("\n")


def _print(text: str) -> None:
    for line in text.split("\n"):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)
