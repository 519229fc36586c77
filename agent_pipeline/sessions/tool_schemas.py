"""Inference of tool schemas from tool calls, for sessions whose source does not record schemas.

A chat template renders only the tools that it is given, and a model that is trained without tools
learns to call tools that were not offered. Inferred schemas are marked as such (`tools_origin =
"inferred"`). They contain names, argument names, JSON types, the arguments that every call had, and
the order of the arguments. The order matters, because llama.cpp forces a model to write arguments
in the order of the schema. This module does not handle schemas that a source or the settings
provide.
"""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import FunctionCall, Message, Tool
from agent_pipeline.sessions.transcript import is_failed, is_refusal

CallShape = tuple[str, tuple[tuple[str, str], ...]]
"""A tool's name, and the names and JSON types of a call's arguments, in order."""

_TOOL_NAME = re.compile(r"[\w.:/-]+")
JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


def find_call_shapes(messages: Iterable[Message]) -> frozenset[CallShape]:
    """Return the distinct shapes of those session calls that show the arguments of a tool.

    These calls are ignored: calls without a result, calls that failed or that the environment
    refused, calls whose arguments are not a JSON object, and calls with a name that no tool can
    have (`<empty-function-name>`).
    """
    shapes: set[CallShape] = set()
    open_calls: dict[str, FunctionCall] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            open_calls[call["id"]] = call["function"]
        if message["role"] != "tool":
            continue
        function = open_calls.pop(message["tool_call_id"], None)
        if function is None:
            continue
        arguments = parse_object(function["arguments"])
        if arguments is None:
            continue
        types = tuple(type(value) for value in arguments.values())
        shape = _make_shape(function["name"], tuple(arguments), types)
        if shape is None or shape in shapes:
            continue
        if not (is_failed(message) or is_refusal(message["content"])):
            shapes.add(shape)
    return frozenset(shapes)


@lru_cache(maxsize=4096)  # an agent has few shapes, and uses each of them many times
def _make_shape(name: str, arguments: tuple[str, ...], types: tuple[type, ...]) -> CallShape | None:
    """Return the shape of a call, or None if the tool's name is not valid.

    Args:
        name: The called tool.
        arguments: The names of the arguments.
        types: The type of each argument's value.
    """
    if not _TOOL_NAME.fullmatch(name):
        return None
    json_types = [JSON_TYPES[value_type] for value_type in types]
    return name, tuple(zip(arguments, json_types, strict=True))


@dataclass(frozen=True)
class _CountedCall:
    """The JSON types of a call's arguments, and the number of sessions that contain such a call."""

    types: dict[str, str]
    sessions: int


class ToolSchemas:
    """Counts of the call shapes in a partition's sessions, from which schemas are inferred."""

    def __init__(self) -> None:
        self._sessions_by_shape: Counter[CallShape] = Counter()

    def add(self, shapes: Iterable[CallShape]) -> None:
        """Count the call shapes of one session."""
        self._sessions_by_shape.update(shapes)

    def merge(self, other: "ToolSchemas") -> None:
        """Add the counts of other sessions."""
        self._sessions_by_shape.update(other._sessions_by_shape)

    def tools(self) -> list[Tool]:
        """Return OpenAI function schemas, ordered by name.

        Arguments that every call had are required.
        """
        calls_by_tool: dict[str, list[_CountedCall]] = {}
        for (name, arguments), sessions in self._sessions_by_shape.items():
            call = _CountedCall(dict(arguments), sessions)
            calls_by_tool.setdefault(name, []).append(call)
        tools: list[Tool] = []
        for name in sorted(calls_by_tool):
            parameters = _infer_parameters(calls_by_tool[name])
            tools.append(
                {
                    "type": "function",
                    "function": {"name": name, "description": "", "parameters": parameters},
                }
            )
        return tools


def _infer_parameters(calls: list[_CountedCall]) -> JsonObject:
    """Return a JSON schema that is valid for all calls of a tool."""
    names = _order_arguments(calls)
    properties = {}
    for name in names:
        types = {call.types[name] for call in calls if name in call.types}
        properties[name] = {"type": _merge_types(types)}
    required = [name for name in names if all(name in call.types for call in calls)]
    return {"type": "object", "properties": properties, "required": required}


def _order_arguments(calls: list[_CountedCall]) -> list[str]:
    """Return the argument names, ordered by their mean position in the sessions."""
    position_sums: Counter[str] = Counter()
    session_counts: Counter[str] = Counter()
    for call in calls:
        for position, name in enumerate(call.types):
            position_sums[name] += position * call.sessions
            session_counts[name] += call.sessions
    return sorted(
        session_counts, key=lambda name: (Fraction(position_sums[name], session_counts[name]), name)
    )


def _merge_types(types: set[str]) -> str | list[str]:
    """Return one JSON type, or a sorted list of types.

    An integer is also a number, so both together become a number.
    """
    if {"integer", "number"} <= types:
        types = types - {"integer"}
    return next(iter(types)) if len(types) == 1 else sorted(types)
