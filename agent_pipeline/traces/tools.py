"""Tool schemas for sessions whose source has none, inferred from the calls that were seen.

A chat template can only render tools that it is given, and a model trained without them learns to call tools that it was never
told of. What is inferred is marked so (`tools_origin = "inferred"`): names, argument names, JSON types, and which arguments every
call had.
"""

import json
from collections.abc import Iterable
from typing import Any

from agent_pipeline.traces.session import Message, Tool, tool_calls

_JSON_TYPES: dict[type, str] = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
    type(None): "null",
}


class ToolSchemas:
    """Gathers calls over the sessions of a partition; holds one small record a tool, not the calls."""

    def __init__(self) -> None:
        self._calls: dict[str, int] = {}
        self._types: dict[str, dict[str, set[str]]] = {}
        self._present: dict[str, dict[str, int]] = {}

    def add(self, messages: Iterable[Message]) -> None:
        """Take in one session's calls; a call whose arguments are no JSON object is passed over (it is counted as damage elsewhere)."""
        for name, arguments in tool_calls(list(messages)):
            try:
                values = json.loads(arguments)
            except (ValueError, RecursionError):
                continue
            if not isinstance(values, dict):
                continue
            self._calls[name] = self._calls.get(name, 0) + 1
            for argument, value in values.items():
                self._types.setdefault(name, {}).setdefault(argument, set()).add(_JSON_TYPES[type(value)])
                present = self._present.setdefault(name, {})
                present[argument] = present.get(argument, 0) + 1

    def tools(self) -> list[Tool]:
        """OpenAI function schemas, by name; an argument is required if every call had it."""
        return [
            {
                "type": "function",
                "function": {"name": name, "description": "", "parameters": self._parameters(name)},
            }
            for name in sorted(self._calls)
        ]

    def _parameters(self, name: str) -> dict[str, Any]:
        types, present = self._types.get(name, {}), self._present.get(name, {})
        return {
            "type": "object",
            "properties": {argument: {"type": _type(types[argument])} for argument in sorted(types)},
            "required": sorted(argument for argument, count in present.items() if count == self._calls[name]),
        }


def _type(seen: set[str]) -> str | list[str]:
    """One JSON type, or a list of several; an integer is a number too."""
    if {"integer", "number"} <= seen:
        seen = seen - {"integer"}
    return next(iter(seen)) if len(seen) == 1 else sorted(seen)
