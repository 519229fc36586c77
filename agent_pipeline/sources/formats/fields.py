"""Functions that read fields of records.

They read JSON, verdicts, times, numbers, token counts and tool schemas. JSON is accepted as stores
really contain it: with NaN, control characters, unpaired surrogates and bytes that are not UTF-8.
Repair deals with these later.
"""

import json
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from agent_pipeline.sessions.session import Tool
from agent_pipeline.sources.formats.filler import own_schema
from agent_pipeline.sources.formats.limits import check_json

Record = dict[str, Any]

_WORDS = {
    "acceptable": 1.0, "pass": 1.0, "passed": 1.0, "correct": 1.0, "c": 1.0, "true": 1.0, "p": 0.5,
    "yes": 1.0, "good": 1.0, "success": 1.0, "unacceptable": 0.0, "fail": 0.0, "failed": 0.0,
    "incorrect": 0.0, "i": 0.0, "n": 0.0, "false": 0.0, "no": 0.0, "bad": 0.0, "failure": 0.0,
}  # fmt: skip

_JUDGING = _WORDS.keys() - {"c", "i", "n", "p", "true", "false", "yes", "no"}

_JSON = (bytes, msgspec.Raw)
_DECODE = msgspec.json.Decoder().decode
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)
_LARGEST_SECONDS = 1e11
"""Largest number that is read as seconds (the year 5138). A larger number is in milliseconds or a
finer unit.
"""

_VERDICTS = ("judgment", "passed", "win", "reward", "utility", "score", "verdict", "label")


class RepeatedKeyError(ValueError):
    """Raised if an object in a JSON text has the same key twice, so that its value is ambiguous."""


def parsed(raw: object) -> Any:
    """Parse a JSON text and return its value.

    A value that is neither bytes nor `msgspec.Raw` has been parsed already and is returned
    unchanged.

    Raises:
        RepeatedKeyError: An object in the text has a key twice.
        ValueError: The text is not JSON.
        TooLargeError: The value would need too much memory.
    """
    if not isinstance(raw, _JSON):
        return raw
    check_json(raw)
    try:
        value = _DECODE(raw)
    except _REFUSED:
        pass
    else:
        if _keys_in(bytes(raw)) > _keys_in(msgspec.json.encode(value)):
            _refuse_repeated_keys(raw)
        return value
    return _refuse_repeated_keys(raw)


def _keys_in(raw: bytes) -> int:
    """Count all object keys in a JSON text.

    Text inside strings that looks like a key is counted too. Parsing keeps only one of two equal
    keys, so a text with a repeated key has more keys than its parsed value.
    """
    return raw.count(b'":') + raw.count(b'" :')


def _refuse_repeated_keys(raw: Any) -> object:
    """Parse a JSON text with Python's own parser, and raise an error if an object repeats a key.

    Python's parser accepts more than msgspec does, but it is slower.
    """

    def object_of(pairs: list[tuple[str, object]]) -> Record:
        fields_by_name = dict(pairs)
        if len(fields_by_name) < len(pairs):
            names = [name for name, _ in pairs]
            raise RepeatedKeyError(
                f"an object has the key {next(name for name in names if names.count(name) > 1)!r} "
                f"twice"
            )
        return fields_by_name

    try:
        return json.loads(
            bytes(raw).decode("utf-8", "surrogateescape"), strict=False, object_pairs_hook=object_of
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parsed_object(raw: object) -> Record | None:
    """Return the JSON object in a text, or None if the text holds anything else."""
    try:
        value = parsed(raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def decoded(value: object) -> Any:
    """Return the JSON object or list that a text holds. Return any other value unchanged."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parsed(value.encode("utf-8", "surrogateescape"))
        except ValueError:
            pass
    return value


def decoded_text(value: object) -> Any:
    """Parse a value if it is a JSON text.

    A JSON string (a text in quotes) is decoded too.
    """
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    inner = decoded(f"[{value}]") if quoted else None
    return (
        inner[0]
        if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], str)
        else decoded(value)
    )


def decoded_object(value: object) -> Record:
    """Return an object unchanged, or parse a JSON text that contains an object.

    The result is an empty object for any other value.
    """
    value = decoded(value)
    return value if isinstance(value, dict) else {}


def number(value: object) -> float | None:
    """Return a value if it is a finite number. Otherwise, return None.

    NaN means unknown, which is not the same as zero.
    """
    return (
        float(value)
        if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value)
        else None
    )


def verdict(value: object) -> tuple[float | None, str | None]:
    """Return the score and the judgment that a verdict states.

    A verdict is a boolean, a word or a number. Only the numbers 1 and 0 give a judgment.
    """
    score = _WORDS.get(value.strip().lower()) if isinstance(value, str) else number(value)
    return (
        score,
        None
        if score is None
        else "acceptable"
        if score == 1
        else "unacceptable"
        if score == 0
        else None,
    )


def judged(name: str, value: object) -> Record:
    """Return the session fields that record a benchmark's measure as a verdict.

    The fields are the score, the judgment, and a metric named after the measure.
    """
    score, judgment = verdict(value)
    return {"score": score, "judgment": judgment, "scores": {name: score}}


def verdict_in(words: Iterable[object]) -> str | None:
    """Return the judgment that words like `good` or `fail` express, if all of them agree.

    The words `yes` and `true` do not count, because their meaning depends on the question.
    """
    judgments = {
        verdict(word)[1]
        for word in words
        if isinstance(word, str) and word.strip().lower() in _JUDGING
    }
    return judgments.pop() if len(judgments) == 1 else None


def plain_verdict(record: Mapping[str, object]) -> tuple[float | None, str | None]:
    """Return the score and the judgment that a plain record states.

    The score is the first number among the usual fields of verdicts. The judgment is the first
    value that gives one. A number in the field `score` gives no judgment: 1 may be the worst grade
    of 5, and the settings define its scale.
    """
    values = {name: record[name] for name in _VERDICTS if record.get(name) is not None}
    scores = (
        verdict(value)[0]
        for value in (record.get("score"), *values.values())
        if value is not None and not isinstance(value, str)
    )
    judgments = (
        verdict(value)[1]
        for name, value in values.items()
        if name != "score" or isinstance(value, str | bool)
    )
    return next((score for score in scores if score is not None), None), next(
        (judgment for judgment in judgments if judgment), None
    )


def mean(scores: Mapping[str, float]) -> float | None:
    """Return the mean of several scores, or None if there are no scores.

    A higher value of each score must be better, as it is for the metrics of one benchmark.
    """
    return sum(scores.values()) / len(scores) if scores else None


def when(value: object) -> datetime | None:
    """Convert a value into a time in UTC. Return None if the value is not a time.

    A time is a datetime, an ISO text (a text without a time zone is in UTC), or a number of seconds
    or a finer unit since 1970. The number may also be a text.
    """
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, str) and value.isdigit() and len(value) < 30:
        value = int(value)
    try:
        if isinstance(value, str) and value:
            return when(datetime.fromisoformat(value))
        if isinstance(value, bool) or (seconds := number(value)) is None:
            return None
        for _ in range(3):
            seconds = seconds / 1000 if abs(seconds) > _LARGEST_SECONDS else seconds
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        return None


def function_tools(raw: object) -> tuple[list[Tool], int]:
    """Return tool schemas as OpenAI function tools, and the number of invalid entries.

    Bare functions and Anthropic's schemas are wrapped. A text is parsed as JSON.
    """
    if isinstance(raw, str):
        try:
            raw = json.loads(raw) if raw.strip() else None
        except (ValueError, RecursionError):
            return [], 1
    if isinstance(raw, dict):
        raw = (
            list(raw.values()) if all(isinstance(entry, dict) for entry in raw.values()) else [raw]
        )
    entries = raw if isinstance(raw, list) else [] if raw is None else [raw]
    entries = [inner for entry in entries for inner in _declared(entry)]
    tools = [_function_tool(own_schema(entry)) for entry in entries]
    return [tool for tool in tools if tool], sum(tool is None for tool in tools)


def counts(usages: Iterable[object]) -> dict[str, int]:
    """Add up the token counts of several model calls, by name.

    A nested count is named `whole.part`.
    """
    total: dict[str, int] = {}
    for usage in usages:
        for name, value in _numbers(usage):
            total[name] = total.get(name, 0) + value
    return total


def error_text(error: object) -> str | None:
    """Return the message of an error, or None if there is no error.

    An error is a text, or an object with a message or a type.
    """
    if isinstance(error, dict) and error:
        error = error.get("message") or error.get("type") or json.dumps(error, default=str)
    elif isinstance(error, list) and error:
        error = json.dumps(error, default=str)
    words = "error" if error is True else scalar(error)
    return words if words and words.strip() and words != "0" else None


def section(record: object, *names: str) -> Record:
    """Return the nested object that a path of field names leads to inside a record.

    The result is an empty object if there is no such object.
    """
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def elements(value: object) -> list[Any]:
    """Return a list unchanged, or an empty list for any other value."""
    return value if isinstance(value, list) else []


def objects(value: object) -> list[Record]:
    """Return the objects in a list, or an empty list for any other value."""
    return (
        [element for element in value if isinstance(element, dict)]
        if isinstance(value, list)
        else []
    )


def chosen(record: Mapping[str, object], names: Iterable[str] = (), /, **renamed: str) -> Record:
    """Return the named fields of a record, without the fields that are empty.

    `new="old"` picks `old` and renames it.
    """
    return {
        new: record[old]
        for new, old in [*((name, name) for name in names), *renamed.items()]
        if record.get(old) is not None
    }


def first_of(record: Mapping[str, object], *names: str) -> Any:
    """Return the first of the named fields that is present and not None."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def first_text(record: Mapping[str, object], *names: str) -> str | None:
    """Return the first of the named fields that is a name or an id."""
    return next((named for name in names if name in record and (named := text(record[name]))), None)


def scalar(value: Any) -> str | None:
    """Return a text unchanged, or a whole number as text.

    The result is None for any other value. A whole number that a table holds as 3.0 becomes "3".
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or (whole := number(value)) is None or not whole.is_integer():
        return None
    return str(int(value))


def text(value: object) -> str | None:
    """Convert a name or an id into text. Return None for any other value.

    A text that is not blank and a whole number count.
    """
    words = scalar(value)
    return clean_text(words) if words is not None and words.strip() else None


def clean_text(value: object) -> str | None:
    """Return a value as text that can be encoded as UTF-8, or None if it is None or empty.

    Characters that cannot be encoded become escapes.
    """
    if value is None or value == "":
        return None
    words = str(value)
    return words if words.isascii() else words.encode("utf-8", "backslashreplace").decode("utf-8")


def _numbers(usage: object, depth: int = 3) -> Iterable[tuple[str, int]]:
    """Yield the name and the value of each number in a token usage record."""
    for name, value in usage.items() if isinstance(usage, dict) and depth else ():
        if isinstance(name, str) and isinstance(value, dict):
            yield from ((f"{name}.{inner}", count) for inner, count in _numbers(value, depth - 1))
        elif isinstance(name, str) and not isinstance(value, bool) and number(value) is not None:
            yield name, int(value)


def _declared(entry: object) -> list[object]:
    """Return the function declarations in a tool of Gemini's API.

    Any other entry is returned as a list with one element.
    """
    names = ("function_declarations", "functionDeclarations")
    declared = next(
        (
            entry[name]
            for name in names
            if isinstance(entry, dict) and isinstance(entry.get(name), list)
        ),
        None,
    )
    return [entry] if declared is None else declared


def _function_tool(raw: Any) -> Tool | None:
    """Return a schema as an OpenAI function tool, or None if the value is not a schema."""
    function = raw.get("function", raw) if isinstance(raw, dict) else None
    if (
        not isinstance(function, dict)
        or not isinstance(function.get("name"), str)
        or not function["name"].strip()
    ):
        return None
    if raw is not function:
        result: Tool | None = raw
        return result
    schemas = (
        decoded(function.get(key))
        for key in ("parameters", "input_schema", "inputSchema", "parameters_json_schema")
    )
    description = function.get("description")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": description if isinstance(description, str) else "",
            "parameters": next((schema for schema in schemas if isinstance(schema, dict)), {}),
        },
    }
