"""What a world is: a class with the environment contract of TRL's `GRPOTrainer`, named as `package.module:Class`.

`reset(**row)` begins a task: it is given a data set's row and returns text for the model, or None. Every other public method is a tool
with typed arguments and a docstring. `get_reward()` says at the end how well it went; 1.0 or more is done. These attributes are read where
a world has them:

| attribute | meaning | without it |
|---|---|---|
| `system` | the system message | that of the row |
| `tools` | OpenAI schemas of the tools | those of the row, else made from the methods |
| `user` | an object whose `reply(text)` is what the user says next, or None | the first answer ends the episode |
| `must_act` | whether the task asks for a change | tasks are not told apart |
| `kind` | the kind of decision that the task asks for, such as `refund` | no figure a kind |
| `wrong_changes` | what was changed against the task, a text each | harm is not measured |
| `complaint` | why the task is not done | no reason is given |
| `fresh_tasks(count, seed, like)` | a class method: arguments of `reset` for tasks that are in no session | there are none |
"""

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

from pydantic_core import to_json

from agent_pipeline.errors import InfrastructureError, SettingsError
from agent_pipeline.plugins import load_plugin
from agent_pipeline.sessions.json_text import make_storable
from agent_pipeline.sessions.session import Tool, hash_json

World = Any
"""An instance of such a class."""


def load_world(name: str) -> Callable[[], World]:
    """The class that `package.module:Class` names.

    Raises:
        SettingsError: it cannot be imported, or has no `reset` or no `get_reward`.
    """
    world: Callable[[], World] = load_plugin(name, "world", "agent_pipeline.worlds")
    if missing := [
        method for method in ("reset", "get_reward") if not callable(getattr(world, method, None))
    ]:
        raise SettingsError(
            f"The world {name!r} has no method {' and no '.join(missing)}: see docs/episodes.md."
        )
    return world


def world_source(world: str) -> str:
    """sha256 of the source of a world's module: episodes in another world are other episodes."""
    make = load_world(world)
    return hash_json(inspect.getsource(inspect.getmodule(make) or type(make)))


def tool_methods(world: World) -> dict[str, Callable[..., Any]]:
    """The methods that a model may call, by name: all public ones but `reset` and `get_reward`."""
    names = [name for name, _ in inspect.getmembers(type(world), inspect.isfunction)]
    return {
        name: getattr(world, name)
        for name in names
        if not name.startswith("_") and name not in ("reset", "get_reward")
    }


def tool_schemas(world: World) -> list[Tool]:
    """OpenAI schemas of a world's tools: its own, else made from the methods' signatures and docstrings."""
    if tools := getattr(world, "tools", None):
        return list(tools)
    from transformers.utils import get_json_schema

    return [get_json_schema(method) for method in tool_methods(world).values()]


def run_tool(world: World, name: str, arguments: Any) -> str:
    """What a call returns, as text. A call that the world cannot run gives `{"error": ...}`, as a real tool would.

    Raises:
        InfrastructureError: the tool says that something it needs is not there.
    """
    method = tool_methods(world).get(name)
    if method is None:
        return '{"error":"no such tool"}'
    try:
        bound = inspect.signature(method).bind(
            **make_storable(arguments, Counter())
        )  # half an emoji could be written nowhere
    except (TypeError, ValueError):
        return '{"error":"wrong arguments"}'
    try:
        result = method(*bound.args, **bound.kwargs)
        return result if isinstance(result, str) else to_json(result).decode()
    except InfrastructureError:
        raise
    except (
        Exception
    ) as error:  # a tool is the user's code; what it raises is what the model is told
        return to_json({"error": str(error)}).decode()
