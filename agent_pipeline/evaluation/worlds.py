"""Worlds: the simulated environments in which a model plays tasks.

A world is a class with the environment contract of TRL's `GRPOTrainer`, named as
`package.module:Class`. `World` has the methods that every world must have. A world may also have
the optional parts below. A part counts if the attribute exists. A class may also inherit from the
protocols of its parts, so that a type checker checks them.

| part | attribute | if it is missing |
|---|---|---|
| `HasSystemMessage` | `system` | the row's system message is used |
| `HasTools` | `tools` | the row's tools are used, or schemas made from the methods |
| `HasUser` | `user` | the first answer ends the episode |
| `TellsMustAct` | `must_act` | tasks that ask for a change are not counted separately |
| `TellsKind` | `kind` | reports have no figures per kind of task |
| `TellsHarm` | `wrong_changes` | harm is not measured |
| `TellsHaste` | `acted_early` | changes before the user had said enough are not counted |
| `TellsWrongAnswer` | `said_wrong` | any last answer counts as right |
| `TellsReads` | `reads` | every call counts as a write in the figures of confidence |
| `TellsComplaint` | `complaint` | reports do not say why a task failed |
| `MakesFreshTasks` | `fresh_tasks` | only tasks of sessions can be played |
| `OffersVariants` | `variants` | only the variants of every world are played |
| `RunsCalls` | `run_call` | the tools are the methods of the world |
| `MayNotSettle` | `unsettled`, `sources` | every episode has a verdict |

The module `episodes` plays the episodes.
"""

import inspect
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol, runtime_checkable

from pydantic_core import to_json

from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.plugins import load_plugin
from agent_pipeline.sessions.json_text import make_storable
from agent_pipeline.sessions.session import Tool, hash_json

REPLAYED = "replayed"
"""The value of the setting `world` for the world that is made from recorded sessions."""
PROVEN = "auto"
"""The value of the setting `world` for the replayed world, if recordings prove its verdicts."""
REPLAYED_WORLD = "agent_pipeline.evaluation.replayed_world:ReplayedWorld"

REPLAYED_PARTS = [
    f"agent_pipeline.evaluation.{module}"
    for module in ("task_recordings", "free_texts", "wording", "tape", "answer_scoring")
]
"""The modules that decide on the verdicts of the replayed world, besides its own."""


class World(Protocol):
    """A world that simulates one task.

    Every public method except `reset` and `get_reward` is a tool.
    """

    def reset(self, **row: object) -> str | None:
        """Start the task of a dataset row. Return a text for the model, or None."""

    def get_reward(self) -> float:
        """Return a number that tells how well the task was done.

        If the number is at least 1.0, the task is done.
        """


@runtime_checkable
class HasSystemMessage(Protocol):
    """A world that has its own system message."""

    system: str | None


@runtime_checkable
class HasTools(Protocol):
    """A world that provides the OpenAI schemas of its tools."""

    tools: Sequence[Tool] | None


class SimulatedUser(Protocol):
    """A simulated user in a world."""

    def reply(self, text: str) -> str | None:
        """Return the simulated user's reply to an answer, or None to end the episode."""


@runtime_checkable
class HasUser(Protocol):
    """A world with a simulated user who replies to answers."""

    user: SimulatedUser | None


@runtime_checkable
class TellsMustAct(Protocol):
    """A world that knows whether its task asks for a change."""

    must_act: bool | None


@runtime_checkable
class TellsKind(Protocol):
    """A world that knows the kind of decision that its task asks for, such as `refund`."""

    kind: str | None


@runtime_checkable
class TellsHarm(Protocol):
    """A world that lists harmful changes, one text per change that the task did not ask for."""

    wrong_changes: Iterable[str] | None


@runtime_checkable
class TellsHaste(Protocol):
    """A world that lists the changes that the model made before the user had said enough, one text
    per change. A change also counts if it was right by luck.
    """

    acted_early: Iterable[str] | None


@runtime_checkable
class TellsWrongAnswer(Protocol):
    """A world that gives the reason if the last answer is wrong, and `None` if it is right.

    For example, an answer is wrong if it refuses what was done, or claims what was not done.
    """

    said_wrong: str | None


@runtime_checkable
class TellsReads(Protocol):
    """A world that names the tools that only look things up. All other tools change the world."""

    reads: Collection[str]


@runtime_checkable
class TellsComplaint(Protocol):
    """A world that gives the reason if its task is not done."""

    complaint: str | None


@runtime_checkable
class MakesFreshTasks(Protocol):
    """A world class that can generate tasks that are in no session."""

    def fresh_tasks(self, count: int, seed: int, like: str) -> Sequence[Mapping[str, Any]]:
        """Return arguments for `reset` that start new tasks.

        The tasks are named like the task `like`.

        Args:
            count: The number of tasks.
            seed: The seed of the tasks.
            like: The name of a task that the new tasks should resemble.
        """


@runtime_checkable
class OffersVariants(Protocol):
    """A world class that can begin a task in another form, such as with other words of the user.

    For each name in `variants`, `reset(variant=name, ...)` begins the task in this form. The world
    then tells the outcome of the changed task.
    """

    variants: Sequence[str]


@runtime_checkable
class RunsCalls(Protocol):
    """A world whose tools are not its methods."""

    def run_call(self, name: str, arguments: object) -> str:
        """Return the result of a call as text."""


@dataclass(frozen=True)
class Unsettled:
    """The reason why a world does not know how a task continues.

    Attributes:
        kind: The kind of the model's first turn that differs from every recording.
        text: The call or the answer.
        harm_suspected: Whether the turn is probably a change that the task did not ask for.
    """

    kind: str
    text: str
    harm_suspected: bool = False


@runtime_checkable
class MayNotSettle(Protocol):
    """A world that does not always know how a task continues.

    An episode ends as soon as `unsettled` is set, and has no verdict. `sources` names the session
    that each result and each reply of the user comes from, in order.
    """

    unsettled: Unsettled | None
    sources: Sequence[str]


@dataclass(frozen=True)
class TaskOutcome:
    """The outcome of a task, as its world reports it at the end of the episode.

    Attributes:
        reward: How well the task was done; 1.0 or more means done.
        must_act: Whether the task asks for a change; `None` if the world does not say.
        kind: The kind of decision; `None` if the world does not say.
        wrong_changes: Changes that the task did not ask for; `None` if the world does not say.
        complaint: The reason why the task is not done; empty if the world does not say.
        acted_early: Changes that the model made before the user had said enough; `None` if the
            world does not say.
        said_wrong: The reason why the last answer is wrong, or an empty text if it is right;
            `None` if the world does not say.
        unsettled: Why the world does not know the outcome; `None` if it does.
        sources: The session that each result and each reply of the user comes from.
    """

    reward: float
    must_act: bool | None
    kind: str | None
    wrong_changes: list[str] | None
    complaint: str
    acted_early: list[str] | None
    said_wrong: str | None
    unsettled: Unsettled | None = None
    sources: tuple[str, ...] = ()


def load_world(name: str) -> Callable[[], World]:
    """Load the world class that `package.module:Class` or `replayed` names.

    Raises:
        SettingsError: The class cannot be imported, or it lacks `reset` or `get_reward`.
    """
    if name == REPLAYED:
        name = REPLAYED_WORLD
    world: Callable[[], World] = load_plugin(name, "world", "agent_pipeline.worlds")
    missing = [
        method for method in ("reset", "get_reward") if not callable(getattr(world, method, None))
    ]
    if missing:
        raise SettingsError(
            f"The world {name!r} has no method {' and no '.join(missing)}: add what is missing "
            "(docs/how-to/write-a-world.md)."
        )
    return world


def hash_world_source(name: str) -> str:
    """Return the hash of the source code of a world's module.

    If the source changes, episodes must be played again. The replayed world consists of several
    modules, which all count.
    """
    world = load_world(name)
    own_source = inspect.getsource(inspect.getmodule(world) or type(world))
    if name != REPLAYED:
        return hash_json(own_source)
    others = [inspect.getsource(import_module(module)) for module in REPLAYED_PARTS]
    return hash_json([own_source, *others])


def system_message(world: World) -> str | None:
    """Return the system message that a world defines, if there is one."""
    return world.system if isinstance(world, HasSystemMessage) else None


def user_reply(world: World, answer: str) -> str | None:
    """Return the user's reply to an answer, or `None` if the world has no user or the user ends the
    episode.
    """
    if not isinstance(world, HasUser) or world.user is None:
        return None
    return world.user.reply(answer)


def writes(world: World, tool: str) -> bool:
    """Return whether a tool may change the world."""
    return not isinstance(world, TellsReads) or tool not in world.reads


def task_outcome(world: World) -> TaskOutcome:
    """Return the outcome of a task, as its world reports it at the end."""
    reward = float(world.get_reward())  # a world may settle the episode only now
    wrong_changes = world.wrong_changes if isinstance(world, TellsHarm) else None
    acted_early = world.acted_early if isinstance(world, TellsHaste) else None
    said_wrong = (world.said_wrong or "") if isinstance(world, TellsWrongAnswer) else None
    return TaskOutcome(
        reward=reward,
        must_act=world.must_act if isinstance(world, TellsMustAct) else None,
        kind=world.kind if isinstance(world, TellsKind) else None,
        wrong_changes=None if wrong_changes is None else list(wrong_changes),
        complaint=(world.complaint if isinstance(world, TellsComplaint) else None) or "",
        acted_early=None if acted_early is None else list(acted_early),
        said_wrong=said_wrong,
        unsettled=find_unsettled(world),
        sources=tuple(world.sources) if isinstance(world, MayNotSettle) else (),
    )


def find_unsettled(world: World) -> Unsettled | None:
    """Return why a world does not know how the task continues, or `None` if it does."""
    return world.unsettled if isinstance(world, MayNotSettle) else None


def make_fresh_tasks(name: str, count: int, seed: int, like: str) -> Sequence[Mapping[str, Any]]:
    """Return arguments of `reset` for new tasks of a world that are in no session.

    Args:
        name: The world, `package.module:Class`.
        count: The number of tasks.
        seed: The seed of the tasks.
        like: The name of a task that the new tasks should resemble.

    Raises:
        SettingsError: The world cannot make fresh tasks.
    """
    world = load_world(name)
    if not isinstance(world, MakesFreshTasks):
        raise SettingsError(
            f"The world {name} cannot make fresh tasks: set `fresh_tasks` to 0, or give the world "
            "a class method `fresh_tasks`."
        )
    return world.fresh_tasks(count, seed, like=like)


def own_variants(name: str) -> list[str]:
    """Return the names of the variants that a world offers.

    Args:
        name: The world, `package.module:Class`.
    """
    world = load_world(name)
    return list(world.variants) if isinstance(world, OffersVariants) else []


def own_tools(world: World) -> list[Tool]:
    """Return the tool schemas that a world defines, or an empty list if it does not define any."""
    return list(world.tools or ()) if isinstance(world, HasTools) else []


def tool_methods(world: World) -> dict[str, Callable[..., Any]]:
    """Return the methods of a world that a model may call, by name."""
    names = [name for name, _ in inspect.getmembers(type(world), inspect.isfunction)]
    return {
        name: getattr(world, name)
        for name in names
        if not name.startswith("_") and name not in ("reset", "get_reward")
    }


def tool_schemas(world: World) -> list[Tool]:
    """Return OpenAI schemas of a world's tools.

    If the world has no schemas of its own, they are made from the signatures and docstrings of its
    methods.
    """
    if tools := own_tools(world):
        return tools
    from transformers.utils import get_json_schema

    return [get_json_schema(method) for method in tool_methods(world).values()]


def run_tool(world: World, name: str, arguments: object) -> str:
    """Run a tool call in a world, and return its result as text.

    A call that the world cannot run returns `{"error": ...}`, as a real tool would.

    Args:
        world: The world.
        name: The name of the tool.
        arguments: The arguments of the call.

    Raises:
        InfrastructureError: The tool reports that something it needs is missing.
    """
    if isinstance(world, RunsCalls):
        return world.run_call(name, make_storable(arguments, Counter()))
    method = tool_methods(world).get(name)
    if method is None:
        return '{"error":"no such tool"}'
    try:
        # Half of an emoji (a lone surrogate) cannot be written to a file.
        storable_arguments = make_storable(arguments, Counter())
        bound = inspect.signature(method).bind(**storable_arguments)
    except (TypeError, ValueError):
        return '{"error":"wrong arguments"}'
    try:
        result = method(*bound.args, **bound.kwargs)
        return result if isinstance(result, str) else to_json(result).decode()
    except InfrastructureError:
        raise
    except Exception as error:  # users write tools, and the model sees their errors
        return to_json({"error": str(error)}).decode()
