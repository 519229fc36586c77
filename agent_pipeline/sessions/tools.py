"""Tool schemas for sessions whose source has none, inferred from the calls that were seen.

A chat template can only render tools that it is given, and a model trained without them learns to call tools that it was never
told of. What is inferred is marked so (`tools_origin = "inferred"`): names, argument names, JSON types, and which arguments every
call had.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from agent_pipeline.sessions.json_text import object_in
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.text import is_failed, is_refusal

CallShape = tuple[str, tuple[tuple[str, str], ...]]
"""A tool's name and, by argument name, the JSON types of one call."""

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


def call_shapes(messages: Iterable[Message]) -> frozenset[CallShape]:
    """The different calls of a session that teach what a tool takes.

    Calls that nothing answered, that failed or that the environment refused, whose arguments are no JSON object, or whose name no model
    could be given (`<empty-function-name>`) teach nothing.
    """
    shapes: set[CallShape] = set()
    open_calls: dict[str, dict[str, Any]] = {}
    for message in messages:
        for call in message.get("tool_calls") or ():
            open_calls[call["id"]] = call["function"]
        called = open_calls.pop(message["tool_call_id"], None) if message["role"] == "tool" else None
        if called and (arguments := object_in(called["arguments"])) is not None:
            shape = _shape(called["name"], tuple(arguments), tuple(map(type, arguments.values())))
            if shape and shape not in shapes and not (is_failed(message) or is_refusal(message["content"])):
                shapes.add(shape)
    return frozenset(shapes)


@lru_cache(maxsize=4096)  # an agent has few
def _shape(name: str, arguments: tuple[str, ...], types: tuple[type, ...]) -> CallShape | None:
    """The shape of a call; `None` where no model could be given the tool's name."""
    if not _NAME.fullmatch(name):
        return None
    return name, tuple(sorted(zip(arguments, map(JSON_TYPES.__getitem__, types), strict=True)))


class ToolSchemas:
    """Gathers calls over the sessions of a partition; holds what differs, not the calls."""

    def __init__(self) -> None:
        self._shapes: set[CallShape] = set()

    def add(self, shapes: Iterable[CallShape]) -> None:
        self._shapes.update(shapes)

    def tools(self) -> list[Tool]:
        """OpenAI function schemas, by name; an argument is required if every call had it."""
        calls: dict[str, list[dict[str, str]]] = {}
        for name, arguments in self._shapes:
            calls.setdefault(name, []).append(dict(arguments))
        return [
            {"type": "function", "function": {"name": name, "description": "", "parameters": _parameters(calls[name])}}
            for name in sorted(calls)
        ]


def _parameters(calls: list[dict[str, str]]) -> dict[str, Any]:
    names = sorted({name for call in calls for name in call})
    return {
        "type": "object",
        "properties": {name: {"type": _type({call[name] for call in calls if name in call})} for name in names},
        "required": [name for name in names if all(name in call for call in calls)],
    }


def _type(seen: set[str]) -> str | list[str]:
    """One JSON type, or a list of several; an integer is a number too."""
    if {"integer", "number"} <= seen:
        seen = seen - {"integer"}
    return next(iter(seen)) if len(seen) == 1 else sorted(seen)
