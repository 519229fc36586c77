"""Comparison of tool calls according to the schemas of the tools.

A *strict* match means that a tool that follows its schema does the same. An absent argument equals
its default, null equals an absent optional argument, numbers are compared by value, and parallel
calls may have any order. A *lenient* match means that a reader would also regard the calls as the
same. Then the case of words and enum values is ignored (but not the case of ids), white space is
ignored, and `"42"` equals 42 if the schema asks for a number. Punctuation is never ignored. The
rules are those of BFCL (Patil et al., 2025), except for punctuation.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from agent_pipeline.models.tool_call_parsers import ParameterSchemas, ParsedCall

_READS = re.compile(
    r"(?:^|[._])(?:get|find|list|search|read|look|check|show|fetch|query|view|count|describe|retrieve)",
    re.IGNORECASE,
)


def same(left: object, right: object) -> bool:
    """Return whether two JSON values are equal.

    Numbers are compared by value (1 equals 1.0), a boolean never equals a number, and the order of
    keys is ignored.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def normal(value: Any, schema: Mapping[str, Any], lenient: bool = False) -> Any:
    """Return a value in a normal form in which values with the same effect by the schema are equal.

    Args:
        value: The value, such as a call's arguments.
        schema: The JSON schema of the value.
        lenient: Whether the value is normalized for a lenient match.
    """
    if isinstance(value, dict):
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        arguments = {
            key: argument
            for key, argument in value.items()
            if argument is not None or key in required or _takes_null(properties.get(key) or {})
        }
        defaults = {
            key: property["default"]
            for key, property in properties.items()
            if key not in arguments and property.get("default") is not None
        }
        return {
            key: normal(value, properties.get(key) or {}, lenient)
            if lenient or isinstance(value, dict | list)
            else value
            for key, value in (arguments | defaults).items()
        }
    if isinstance(value, list):
        return [normal(item, schema.get("items") or {}, lenient) for item in value]
    return _leniently(value, schema) if lenient else value


def _takes_null(schema: Mapping[str, object]) -> bool:
    """Return whether null and a missing argument have different meanings for a tool."""
    kinds = schema.get("type")
    return isinstance(kinds, list) and "null" in kinds and schema.get("default") is not None


def _leniently(value: object, schema: Mapping[str, object]) -> Any:
    kind = schema.get("type")
    if isinstance(value, str):
        text = unicodedata.normalize("NFC", " ".join(value.split()))
        if kind in ("integer", "number") and re.fullmatch(r"-?\d+(?:\.\d+)?", text):
            return float(text) if "." in text else int(text)
        if kind == "boolean" and text.lower() in ("true", "false"):
            return text.lower() == "true"
        # A word with a digit is an id, so its case matters.
        return text if "enum" not in schema and re.search(r"\d", text) else text.casefold()
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def same_call(
    one: ParsedCall, other: ParsedCall, schemas: ParameterSchemas, lenient: bool = False
) -> bool:
    """Return whether two calls have the same effect. The names must be identical.

    Args:
        one: A call.
        other: The other call.
        schemas: The parameter schemas by tool.
        lenient: Whether a lenient match is enough.
    """
    schema = schemas.get(one.name) or {}
    return one.name == other.name and same(
        normal(one.arguments, schema, lenient), normal(other.arguments, schema, lenient)
    )


def same_calls(
    expected: Sequence[ParsedCall],
    calls: Sequence[ParsedCall],
    schemas: ParameterSchemas,
    lenient: bool = False,
) -> bool:
    """Return whether the calls of a turn have the same effect as the expected calls.

    Each expected call must occur exactly once. The order is ignored unless one call depends on
    another.

    Args:
        expected: The expected calls.
        calls: The calls of the turn.
        schemas: The parameter schemas by tool.
        lenient: Whether a lenient match is enough.
    """
    left, places = list(range(len(calls))), []
    for call in expected:
        place = next(
            (index for index in left if same_call(call, calls[index], schemas, lenient)), None
        )
        if place is None:
            return False
        left.remove(place)
        places.append(place)
    swapped = ((a, b) for b in range(len(places)) for a in range(b) if places[a] > places[b])
    return not left and not any(_depend(expected[a], expected[b]) for a, b in swapped)


def _depend(one: ParsedCall, other: ParsedCall) -> bool:
    """Return whether the order of two calls may matter.

    It may matter if both contain the same id and at least one of them is not a read.
    """
    return bool(_ids(one.arguments) & _ids(other.arguments)) and not (
        _READS.search(one.name) and _READS.search(other.name)
    )


def _ids(value: object) -> set[str]:
    """Return the texts that contain a digit in a call's arguments."""
    if isinstance(value, dict | list):
        return {
            text
            for part in (value.values() if isinstance(value, dict) else value)
            for text in _ids(part)
        }
    return {value} if isinstance(value, str) and re.search(r"\d", value) else set()
