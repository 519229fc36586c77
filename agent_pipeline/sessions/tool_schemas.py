"""Tool schemas for sessions whose source has none, inferred from the calls that were seen.

A chat template can only render tools that it is given, and a model trained without them learns to call tools that it was never
told of. What is inferred is marked so (`tools_origin = "inferred"`): names, argument names, JSON types, which arguments every
call had, and the order in which calls have them. llama.cpp forces a model to write arguments in the schema's order.
"""

import re
from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from agent_pipeline.sessions.json_text import parse_object
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.transcript import is_failed, is_refusal

CallShape = tuple[str, tuple[tuple[str, str], ...]]
"""A tool's name, and the names and JSON types of one call's arguments, in their order."""

_NAME = re.compile(r"[\w.:/-]+")
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
    """The different calls of a session that teach what a tool takes.

    Calls that nothing answered, that failed or that the environment refused, whose arguments are no JSON object, or whose name no model
    could be given (`<empty-function-name>`) teach nothing.
    """
    shapes: set[CallShape] = set()
    open_calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            open_calls[call["id"]] = call["function"]
        called = (
            open_calls.pop(message["tool_call_id"], None) if message["role"] == "tool" else None
        )
        if called and (arguments := parse_object(called["arguments"])) is not None:
            shape = _shape(called["name"], tuple(arguments), tuple(map(type, arguments.values())))
            if (
                shape
                and shape not in shapes
                and not (is_failed(message) or is_refusal(message["content"]))
            ):
                shapes.add(shape)
    return frozenset(shapes)


@lru_cache(maxsize=4096)  # an agent has few
def _shape(name: str, arguments: tuple[str, ...], types: tuple[type, ...]) -> CallShape | None:
    """The shape of a call; `None` where no model could be given the tool's name."""
    if not _NAME.fullmatch(name):
        return None
    return name, tuple(zip(arguments, map(JSON_TYPES.__getitem__, types), strict=True))


class ToolSchemas:
    """Gathers calls over the sessions of a partition; holds what differs, not the calls."""

    def __init__(self) -> None:
        self._shapes: Counter[CallShape] = Counter()

    def add(self, shapes: Iterable[CallShape]) -> None:
        self._shapes.update(shapes)

    def tools(self) -> list[Tool]:
        """OpenAI function schemas, by name; an argument is required if every call had it."""
        calls: dict[str, list[tuple[dict[str, str], int]]] = {}
        for (name, arguments), sessions in self._shapes.items():
            calls.setdefault(name, []).append((dict(arguments), sessions))
        return [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": "",
                    "parameters": _parameters(calls[name]),
                },
            }
            for name in sorted(calls)
        ]


def _parameters(calls: list[tuple[dict[str, str], int]]) -> dict[str, Any]:
    names = _in_usual_order(calls)
    return {
        "type": "object",
        "properties": {
            name: {"type": _type({call[name] for call, _ in calls if name in call})}
            for name in names
        },
        "required": [name for name in names if all(name in call for call, _ in calls)],
    }


def _in_usual_order(calls: list[tuple[dict[str, str], int]]) -> list[str]:
    """Return the arguments' names by their mean position in the calls, each weighed by the number of its sessions."""
    positions: dict[str, list[int]] = {}
    for call, sessions in calls:
        for position, name in enumerate(call):
            total = positions.setdefault(name, [0, 0])
            total[0] += position * sessions
            total[1] += sessions
    return sorted(positions, key=lambda name: (Fraction(*positions[name]), name))


def _type(seen: set[str]) -> str | list[str]:
    """One JSON type, or a list of several; an integer is a number too."""
    if {"integer", "number"} <= seen:
        seen = seen - {"integer"}
    return next(iter(seen)) if len(seen) == 1 else sorted(seen)
