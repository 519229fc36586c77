"""The variants in which tasks are played again: the request is changed, and the task stays.

A model may be right only if everything is the same as in its training. This module has the variants
that work for every world, because they change only what the model sees. A world may offer more
variants (`worlds.OffersVariants`). The module `episodes` plays the episodes.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from agent_pipeline.errors import SettingsError
from agent_pipeline.evaluation.worlds import own_variants
from agent_pipeline.sessions.session import Message, Tool, ToolFunction, hash_json

VARIANT = "variant"
"""The entry of a row that names the variant in which the task is played."""
EVERY_VARIANT = "all"
"""The entry of the setting `episodes.variants` that stands for all variants."""
LONGEST_NAME = 64
"""The largest number of characters that OpenAI's interface allows in the name of a tool."""
UNUSED_TOOLS = ("air_quality", "air_quality_of_city")
"""Names of a tool that no task needs. The first name that no other tool has is used. They come
first in the alphabet too, because a chat template may sort the tools.
"""
FIRST_WORDS = {
    "book": "reserve",
    "cancel": "call_off",
    "change": "adjust",
    "create": "make",
    "delete": "remove",
    "find": "look_up",
    "get": "fetch",
    "list": "show",
    "refund": "issue_refund",
    "search": "look_up",
    "send": "deliver",
    "update": "change",
}
"""Other words for the first word of a tool's name."""
SUFFIXES = {"string": "ref", "integer": "value", "number": "value", "boolean": "flag"}
"""What is added to the name of a parameter, by its type."""


RENAMED_TOOL = "renamed_tool"
"""The variant in which a tool and its parameters have other names."""


@dataclass(frozen=True)
class ShownRequest:
    """The beginning of a conversation as the model sees it.

    Attributes:
        messages: The messages.
        tools: The tools.
        change: What differs from the world's own request, as one line of text.
        names: By name of a tool that the model sees, the world's name; `None` for a tool that the
            world does not have.
        parameters: By name of a parameter that the model sees, the world's name.
    """

    messages: list[Message]
    tools: list[Tool]
    change: str = ""
    names: Mapping[str, str | None] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)

    def is_unused(self, name: str) -> bool:
        """Return whether a tool was added, so that no task needs it."""
        return name in self.names and self.names[name] is None

    def find_call(self, name: str, arguments: object) -> tuple[str, object]:
        """Return the name and the arguments with which the world knows a call of the model.

        A call of a tool, or with an argument, that the model does not see gets a name that the
        world does not know.
        """
        if self.is_unused(name) or name in self.names.values():
            return "", arguments
        if self.parameters and isinstance(arguments, Mapping):
            hidden = set(self.parameters.values())
            arguments = {
                # The empty name is no parameter of any tool.
                "" if parameter in hidden else self.parameters.get(parameter, parameter): value
                for parameter, value in arguments.items()
            }
        return self.names.get(name) or name, arguments


def turn_tools(request: ShownRequest, task_key: str) -> ShownRequest | None:
    """Return the request with each tool at another position, or None with fewer than two tools."""
    if len(request.tools) < 2:
        return None
    tools = [*request.tools[1:], request.tools[0]]
    order = ", ".join(name_of(tool) for tool in tools)
    return replace(request, tools=tools, change=f"new order of the tools: {order}")


def add_unused_tool(request: ShownRequest, task_key: str) -> ShownRequest | None:
    """Return the request with a first tool that the task does not need, or None if the world has
    tools with all its names. The world does not know the tool.
    """
    taken = {name_of(tool) for tool in request.tools}
    name = next((name for name in UNUSED_TOOLS if name not in taken), None)
    if name is None:
        return None
    function: ToolFunction = {
        "name": name,
        "description": "Look up the quality of the air in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The name of the city."}},
            "required": ["city"],
        },
    }
    # Like the world's own tools, so that only the tool is new.
    if not any(tool["function"].get("description") for tool in request.tools):
        del function["description"]
        function["parameters"] = {"type": "object", "properties": {"city": {"type": "string"}}}
    tools: list[Tool] = [{"type": "function", "function": function}, *request.tools]
    return replace(request, tools=tools, change=f"first tool: {name}", names={name: None})


def rename_tool(request: ShownRequest, task_key: str) -> ShownRequest | None:
    """Return the request with another name for one tool and one of its parameters, or None if no
    tool can get another name.

    The task's key chooses the tool. The parameter gets the new name in every tool. In the system
    message, identifiers get the new name too. An ordinary word, such as the verb in "refund the
    price", keeps its meaning and stays.
    """
    taken = {name_of(tool) for tool in request.tools}
    taken |= {parameter for tool in request.tools for parameter in properties_of(tool)}
    renamed: dict[str, str] = {}
    for name in sorted(map(name_of, request.tools)):
        new = new_tool_name(name, taken)
        if new:
            renamed[name] = new
    if not renamed:
        return None
    name = sorted(renamed)[int(hash_json(task_key)[:8], 16) % len(renamed)]
    tool = next(tool for tool in request.tools if name_of(tool) == name)
    parameters: dict[str, str] = {}
    for parameter, schema in properties_of(tool).items():
        other_name = new_parameter_name(parameter, schema)
        if not parameters and other_name not in taken:
            parameters[parameter] = other_name
    changed = {name: renamed[name], **parameters}

    def rename(text: str) -> str:
        for old, new in changed.items():
            text = identifier_pattern(old).sub(new, text)
        return text

    messages: list[Message] = [
        message | {"content": rename(str(message.get("content") or ""))}
        if message["role"] == "system"
        else message
        for message in request.messages
    ]
    return ShownRequest(
        messages,
        [
            _rename_in_tool(tool, {name: renamed[name]}, parameters, rename)
            for tool in request.tools
        ],
        ", ".join(f"`{old}` is called `{new}`" for old, new in changed.items()),
        {renamed[name]: name},
        {new: old for old, new in parameters.items()},
    )


def _rename_in_tool(
    tool: Tool,
    names: Mapping[str, str],
    parameters: Mapping[str, str],
    rename: Callable[[str], str],
) -> Tool:
    """Return a tool with other names of itself and of its parameters.

    Args:
        tool: The tool.
        names: The new names of tools, by name.
        parameters: The new names of parameters, by name.
        rename: A function that changes the names in a description.
    """
    function: dict[str, Any] = {**tool["function"]}
    function["name"] = names.get(function["name"], function["name"])
    if function.get("description"):
        function["description"] = rename(function["description"])
    if properties_of(tool):
        schema = {**function["parameters"]}
        schema["properties"] = {
            parameters.get(parameter, parameter): _rename_in_schema(property_schema, rename)
            for parameter, property_schema in properties_of(tool).items()
        }
        if "required" in schema:
            schema["required"] = [parameters.get(name, name) for name in schema["required"]]
        function["parameters"] = schema
    return {**tool, "function": cast(ToolFunction, function)}


def _rename_in_schema(schema: Any, rename: Callable[[str], str]) -> Any:
    """Return the schema of a parameter with other names in its description."""
    if not isinstance(schema, Mapping) or not isinstance(schema.get("description"), str):
        return schema
    return {**schema, "description": rename(schema["description"])}


def vary_tasks(
    tasks: Sequence[Mapping[str, Any]], variants: Sequence[str], most: int
) -> list[dict[str, Any]]:
    """Return the first `most` tasks once per variant, as arguments of the world's `reset`."""
    return [{**task, VARIANT: variant} for variant in variants for task in tasks[:most]]


def list_variants(world: str) -> list[str]:
    """Return the names of all variants in which a world's tasks can be played.

    Args:
        world: The world, `package.module:Class`.
    """
    return list(dict.fromkeys([*GENERAL_VARIANTS, *own_variants(world)]))


def choose_variants(names: Sequence[str], world: str) -> list[str]:
    """Return the variants that the setting `episodes.variants` names.

    Args:
        names: The setting.
        world: The world, `package.module:Class`.

    Raises:
        SettingsError: The world has no such variant.
    """
    offered = list_variants(world)
    if unknown := [name for name in names if name not in (*offered, EVERY_VARIANT)]:
        raise SettingsError(
            f"The setting `episodes.variants` names {', '.join(unknown)}, but the world {world} "
            f"offers {', '.join(offered)}: correct the name, or add it to `variants` of the world."
        )
    return offered if EVERY_VARIANT in names else list(dict.fromkeys(names))


GENERAL_VARIANTS: dict[str, Callable[[ShownRequest, str], ShownRequest | None]] = {
    "tool_order": turn_tools,
    "unused_tool": add_unused_tool,
    RENAMED_TOOL: rename_tool,
}
"""The variants that every world has. Each function returns the changed request of a task, or None if
the request cannot be changed in this way.
"""
NOT_POSSIBLE = {
    "tool_order": "the world has fewer than two tools",
    "unused_tool": "the world has tools with the names of the unused tool",
    RENAMED_TOOL: "no tool can get another name",
}
"""The reason why no task could be played in a variant."""


def new_tool_name(name: str, taken: set[str]) -> str | None:
    """Return another readable name for a tool, or None if there is none that is free."""
    first, underscore, rest = name.partition("_")
    new = f"{FIRST_WORDS[first]}{underscore}{rest}" if first in FIRST_WORDS else f"run_{name}"
    candidates = (new, f"run_{name}", f"do_{name}")
    return next((new for new in candidates if new not in taken and len(new) <= LONGEST_NAME), None)


def new_parameter_name(name: str, schema: Mapping[str, Any]) -> str:
    """Return another readable name for a parameter."""
    return f"{name}_{SUFFIXES.get(str(schema.get('type')), 'data')}"


def identifier_pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of a name as an identifier.

    A name such as `find_orders` is always an identifier. An ordinary word such as `refund` is an
    identifier in backticks, or before a bracket.
    """
    word = re.escape(name)
    if re.search(r"[_\d.-]|[a-z][A-Z]", name):
        return re.compile(rf"(?<![\w-]){word}(?![\w-])")
    return re.compile(rf"(?<=`){word}(?![\w-])|(?<![\w-]){word}(?=\()")


def name_of(tool: Tool) -> str:
    """Return the name of a tool."""
    return str(tool["function"]["name"])


def properties_of(tool: Tool) -> Mapping[str, Any]:
    """Return the schemas of a tool's parameters by name."""
    properties = (tool["function"].get("parameters") or {}).get("properties")
    return properties or {}
