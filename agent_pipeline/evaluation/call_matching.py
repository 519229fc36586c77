"""Whether two lists of tool calls do the same, by the tools' schemas.

*Strict*: a tool that follows its schema does the same. An absent argument is its default, null for an optional argument is absent, numbers
are equal by value, and parallel calls have no order. *Lenient*: a reader takes them for the same as well. The case of words and enums
means nothing (of ids it does), nor does white space, and `"42"` is 42 where the schema wants a number. Punctuation is never taken away.
The rules are those of BFCL (Patil et al., 2025), but for that last one.
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
    """JSON equality: numbers by value (1 equals 1.0), booleans are no numbers, the order of keys means nothing."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def normal(value: Any, schema: Mapping[str, Any], lenient: bool = False) -> Any:
    """A value in the form in which equal effects are equal (`same`), by its schema."""
    if isinstance(value, dict):
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        given = {
            key: each
            for key, each in value.items()
            if each is not None or key in required or _takes_null(properties.get(key) or {})
        }
        defaults = {
            key: each["default"]
            for key, each in properties.items()
            if key not in given and each.get("default") is not None
        }
        return {
            key: normal(each, properties.get(key) or {}, lenient)
            for key, each in (given | defaults).items()
        }
    if isinstance(value, list):
        return [normal(each, schema.get("items") or {}, lenient) for each in value]
    return _leniently(value, schema) if lenient else value


def _takes_null(schema: Mapping[str, object]) -> bool:
    """Whether null says something other than leaving the argument out."""
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
        # A word with a digit is an id, which is read to the letter.
        return text if "enum" not in schema and re.search(r"\d", text) else text.casefold()
    if kind == "string" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def same_call(
    one: ParsedCall, other: ParsedCall, schemas: ParameterSchemas, lenient: bool = False
) -> bool:
    """Whether two calls do the same. The name is read to the letter."""
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
    """Whether the calls of a turn do what the expected ones do: each once, in any order but where one depends on another."""
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
    """Whether the order of two calls may matter: they name the same id, and not both only look."""
    return bool(_ids(one.arguments) & _ids(other.arguments)) and not (
        _READS.search(one.name) and _READS.search(other.name)
    )


def _ids(value: object) -> set[str]:
    """The texts in a call's arguments that hold a digit."""
    if isinstance(value, dict | list):
        return {
            text
            for each in (value.values() if isinstance(value, dict) else value)
            for text in _ids(each)
        }
    return {value} if isinstance(value, str) and re.search(r"\d", value) else set()
