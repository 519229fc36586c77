"""Removal of null keys that a table format has added to objects.

A struct column has the keys of all rows, and exports write the missing keys as null. A file that
`datasets` or pandas made from such a table therefore gives each call the arguments of all tools,
and each schema the properties of all schemas.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from agent_pipeline.sessions.session import Tool

_ARGUMENTS = ("arguments", "input", "args")
_MAY_BE_NULL = {"default", "const", "examples", "example"}
_DEPTH = 40

_Kept = dict[str, set[str]]
"""Names of the arguments that may be null, by tool."""


class _Parameters(NamedTuple):
    """The names of a tool's arguments, and the names of its required arguments."""

    names: set[str]
    required: set[str]


def without_filler(messages: list[object], tools_of: Callable[[], Iterable[Tool]]) -> list[object]:
    """Return messages without the null arguments that a table format added to their calls.

    A null argument is filler if the schema of the call's tool does not have it. If there is such an
    argument, null values of optional arguments are filler too, because a call usually leaves out
    such an argument. Without a schema, null values are filler if calls of several tools have the
    same keys. Arguments in the form of a JSON text are never changed.

    Args:
        messages: The messages.
        tools_of: A function that returns the tools. It is called only if the tools are needed.
    """
    calls = [
        call for message in messages if isinstance(message, dict) for call in _calls_in(message)
    ]
    if not any(None in arguments.values() for _, arguments in calls):
        return messages
    known = {tool["function"]["name"]: _parameters(tool) for tool in tools_of()}
    keys = {frozenset(arguments) for _, arguments in calls}
    are_shared = len(keys) == 1 and len({name for name, _ in calls}) > 1
    kept = {name: parameters.names for name, parameters in known.items() if parameters}
    has_filler = any(
        value is None and name in kept and key not in kept[name]
        for name, call in calls
        for key, value in call.items()
    )
    if has_filler:
        kept = {name: parameters.required for name, parameters in known.items() if parameters}
    kept |= {name: set() for name, _ in calls if are_shared and name not in kept}
    return [
        _with_own(message, kept) if isinstance(message, dict) else message for message in messages
    ]


def own_schema(schema: object) -> object:
    """Return a JSON schema without the keys whose value is null, because null is not a schema.

    If only defaults and examples are null, the schema stays unchanged.
    """
    return _own_schema(schema, _has_filler(schema), _DEPTH)


def _own_schema(value: object, has_filler: bool, depth: int) -> object:
    """Remove the keys whose value is null from one value of a JSON schema."""
    if isinstance(value, dict) and depth and has_filler:
        return {
            name: _own_schema(inner, has_filler, depth - 1)
            for name, inner in value.items()
            if inner is not None
        }
    return (
        [_own_schema(inner, has_filler, depth - 1) for inner in value]
        if isinstance(value, list) and depth
        else value
    )


def _has_filler(value: object, depth: int = _DEPTH) -> bool:
    """Return whether a JSON schema has a null that is not a default or an example."""
    if isinstance(value, dict) and depth:
        return any(
            (inner is None and name not in _MAY_BE_NULL)
            or (name not in _MAY_BE_NULL and _has_filler(inner, depth - 1))
            for name, inner in value.items()
        )
    return (
        isinstance(value, list)
        and bool(depth)
        and any(_has_filler(inner, depth - 1) for inner in value)
    )


def _calls_in(message: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the names and arguments of a message's calls whose arguments are objects."""
    calls = []
    for holder in _holders(message):
        name = next((key for key in _ARGUMENTS if isinstance(holder.get(key), dict)), None)
        if name is not None:
            calls.append((str(holder.get("name")), holder[name]))
    return calls


def _holders(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the objects in a message that contain the name and the arguments of a tool call."""
    parts = [
        part
        for name in ("tool_calls", "content")
        if isinstance(message.get(name), list)
        for part in message[name]
    ]
    calls = [part for part in (*parts, message) if isinstance(part, dict)]
    return [
        call["function"] if isinstance(call.get("function"), dict) else call
        for call in calls
        if _is_call(call)
    ]


def _is_call(part: dict[str, object]) -> bool:
    """Return whether a part of a message is a tool call."""
    return isinstance(part.get("function"), dict) or (
        isinstance(part.get("name"), str) and "role" not in part
    )


def _with_own(message: dict[str, Any], kept: _Kept) -> dict[str, object]:
    """Return a message without the null arguments that a table format added to its calls."""
    if not _calls_in(message):
        return message
    result = dict(message)
    for name in ("tool_calls", "content"):
        if isinstance(message.get(name), list):
            result[name] = [
                _own_call(part, kept) if isinstance(part, dict) else part for part in message[name]
            ]
    return _own_call(result, kept)


def _own_call(part: dict[str, Any], kept: _Kept) -> dict[str, object]:
    """Return a message part without the null arguments that a table format added to its call.

    If the part is a call, arguments of other tools are removed.
    """
    if not _is_call(part):
        return part
    if isinstance(part.get("function"), dict):
        return part | {"function": _own_arguments(part["function"], kept)}
    return _own_arguments(part, kept)


def _own_arguments(holder: dict[str, Any], kept: _Kept) -> dict[str, object]:
    """Remove the arguments with the value null that a table format has added to a call."""
    name = next((key for key in _ARGUMENTS if isinstance(holder.get(key), dict)), None)
    may_be_null = kept.get(str(holder.get("name")))
    if name is None or may_be_null is None:
        return holder
    return holder | {
        name: {
            key: value
            for key, value in holder[name].items()
            if value is not None or key in may_be_null
        }
    }


def _parameters(tool: Tool) -> _Parameters | None:
    """Return the parameters of a tool, or None if the tool accepts any arguments."""
    parameters: Any = tool["function"].get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    if (
        not isinstance(properties, dict)
        or not properties
        or parameters.get("additionalProperties") is True
    ):
        return None
    required = parameters.get("required")
    return _Parameters(
        set(properties),
        {name for name in required if isinstance(name, str)}
        if isinstance(required, list)
        else set(),
    )
