"""The fields of records as people write them: JSON, verdicts, times, numbers, token counts, tool
schemas.

JSON is read as stores really hold it: NaN, control characters, half emoji and bytes that are no
UTF-8 are let in; repair deals with them.
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
    "acceptable": 1.0, "pass": 1.0, "passed": 1.0, "correct": 1.0, "c": 1.0, "true": 1.0, "p": 0.5, "yes": 1.0, "good": 1.0, "success": 1.0,
    "unacceptable": 0.0, "fail": 0.0, "failed": 0.0, "incorrect": 0.0, "i": 0.0, "n": 0.0, "false": 0.0, "no": 0.0, "bad": 0.0,
    "failure": 0.0,
}  # fmt: skip

_JUDGING = _WORDS.keys() - {"c", "i", "n", "p", "true", "false", "yes", "no"}

_JSON = (bytes, msgspec.Raw)
_DECODE = msgspec.json.Decoder().decode
_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)
_LARGEST_SECONDS = 1e11
"""A time above this (the year 5138 in seconds) is in milliseconds or finer."""

_VERDICTS = ("judgment", "passed", "win", "reward", "utility", "score", "verdict", "label")


class RepeatedKeyError(ValueError):
    """An object of a JSON text has one key twice, so nobody knows which value was meant."""


def parsed(raw: Any) -> Any:
    """Return the value of a JSON text; what is neither bytes nor `msgspec.Raw` is a value already.

    Raises:
        RepeatedKeyError: an object in the text has a key twice.
        ValueError: the text is not JSON.
        TooLargeError: the value would need too much memory.
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
    """Count the keys of a JSON text (and what looks alike in its texts, which is written alike):
    reading it drops one that stands twice.
    """
    return raw.count(b'":') + raw.count(b'" :')


def _refuse_repeated_keys(raw: Any) -> Any:
    """Return the value of a JSON text as Python reads it; it takes more than msgspec does, and it
    is slower.
    """

    def object_of(pairs: list[tuple[str, Any]]) -> Record:
        made = dict(pairs)
        if len(made) < len(pairs):
            names = [name for name, _ in pairs]
            raise RepeatedKeyError(
                f"an object has the key {next(name for name in names if names.count(name) > 1)!r} "
                f"twice"
            )
        return made

    try:
        return json.loads(
            bytes(raw).decode("utf-8", "surrogateescape"), strict=False, object_pairs_hook=object_of
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parsed_object(raw: Any) -> Record | None:
    """Return the JSON object in a text; `None` where it holds anything else."""
    try:
        value = parsed(raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def decoded(value: Any) -> Any:
    """Return what a text that holds a JSON object or list stands for; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parsed(value.encode("utf-8", "surrogateescape"))
        except ValueError:
            pass
    return value


def decoded_text(value: Any) -> Any:
    """Return what a JSON text stands for; a text in quotes too."""
    quoted = isinstance(value, str) and len(value) > 1 and value[0] == value[-1] == '"'
    inner = decoded(f"[{value}]") if quoted else None
    return (
        inner[0]
        if isinstance(inner, list) and len(inner) == 1 and isinstance(inner[0], str)
        else decoded(value)
    )


def decoded_object(value: Any) -> Record:
    """Return an object, or the one in a JSON text; an empty one for anything else."""
    value = decoded(value)
    return value if isinstance(value, dict) else {}


def number(value: Any) -> float | None:
    """Return a finite number; `None` for anything else.

    NaN is unknown, and unknown is not zero.
    """
    return (
        float(value)
        if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value)
        else None
    )


def verdict(value: Any) -> tuple[float | None, str | None]:
    """Return score and judgment of a verdict: a bool, a word, or a number of which only 1 and 0
    decide.
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


def judged(name: str, value: Any) -> Record:
    """Return what the one measure of a benchmark says of a session: its score, its judgment, and
    the metric of that name.
    """
    score, judgment = verdict(value)
    return {"score": score, "judgment": judgment, "scores": {name: score}}


def verdict_in(words: Iterable[Any]) -> str | None:
    """Return the judgment that words say by themselves, whatever was measured, where they agree:
    `good` and `fail`, but not `yes` and `true`.
    """
    judgments = {
        verdict(word)[1]
        for word in words
        if isinstance(word, str) and word.strip().lower() in _JUDGING
    }
    return judgments.pop() if len(judgments) == 1 else None


def plain_verdict(record: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return score and judgment of a plain record: of the usual names of verdicts, the first that
    is a number and the first that decides.

    A number called `score` decides nothing here: 1 may be the worst of 5, and the settings know its
    scale.
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
    """Return the mean of scores that all point upwards, as the metrics of one benchmark do; `None`
    where there are none.
    """
    return sum(scores.values()) / len(scores) if scores else None


def when(value: Any) -> datetime | None:
    """Return a time as UTC: ISO text (SQLite's has no zone and means UTC), seconds or any finer
    unit since 1970 (also as text), a datetime.
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


def function_tools(raw: Any) -> tuple[list[Tool], int]:
    """Return tool schemas as OpenAI function tools, and how many entries were no schema.

    Bare functions and Anthropic's schemas are wrapped; a text is taken for their JSON.
    """
    if isinstance(raw, str):
        try:
            raw = json.loads(raw) if raw.strip() else None
        except (ValueError, RecursionError):
            return [], 1
    if isinstance(raw, dict):
        raw = list(raw.values()) if all(isinstance(each, dict) for each in raw.values()) else [raw]
    entries = raw if isinstance(raw, list) else [] if raw is None else [raw]
    entries = [inner for each in entries for inner in _declared(each)]
    tools = [_function_tool(own_schema(entry)) for entry in entries]
    return [tool for tool in tools if tool], sum(tool is None for tool in tools)


def counts(usages: Iterable[Any]) -> dict[str, int]:
    """Return token counts of several calls in one: the sum of each whole number by its name, that
    of a part as `whole.part`.
    """
    total: dict[str, int] = {}
    for usage in usages:
        for name, value in _numbers(usage):
            total[name] = total.get(name, 0) + value
    return total


def error_text(error: Any) -> str | None:
    """Return what an error says: a text, or an object's message or type; `None` where there is
    none.
    """
    if isinstance(error, dict) and error:
        error = error.get("message") or error.get("type") or json.dumps(error, default=str)
    elif isinstance(error, list) and error:
        error = json.dumps(error, default=str)
    words = "error" if error is True else scalar(error)
    return words if words and words.strip() and words != "0" else None


def section(record: Any, *names: str) -> Record:
    """Return the object inside a record at a path of names; an empty one where there is none."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def elements(value: Any) -> list[Any]:
    """Return a list as it is; an empty one for anything else."""
    return value if isinstance(value, list) else []


def objects(value: Any) -> list[Record]:
    """Return the objects in a list; none for anything else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def chosen(record: Mapping[str, Any], names: Iterable[str] = (), /, **renamed: str) -> Record:
    """Return the fields of these names that say something; `new="old"` takes one under another
    name.
    """
    return {
        new: record[old]
        for new, old in [*((name, name) for name in names), *renamed.items()]
        if record.get(old) is not None
    }


def first_of(record: Mapping[str, Any], *names: str) -> Any:
    """Return the first of these fields that is neither absent nor `None`."""
    return next((record[name] for name in names if record.get(name) is not None), None)


def first_text(record: Mapping[str, Any], *names: str) -> str | None:
    """Return the first of these fields that is a name or an id."""
    return next((named for name in names if name in record and (named := text(record[name]))), None)


def scalar(value: Any) -> str | None:
    """Return text as it is, a whole number (also one that a table holds as 3.0) as text; `None` for
    anything else.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, bool) or (whole := number(value)) is None or not whole.is_integer():
        return None
    return str(int(value))


def text(value: Any) -> str | None:
    """Return a name or an id: text that is not blank, or a whole number."""
    words = scalar(value)
    return clean_text(words) if words is not None and words.strip() else None


def clean_text(value: object) -> str | None:
    """Return a value as text that can be written as UTF-8 (other bytes become escapes); `None` for
    nothing and for empty text.
    """
    if value is None or value == "":
        return None
    words = str(value)
    return words if words.isascii() else words.encode("utf-8", "backslashreplace").decode("utf-8")


def _numbers(usage: Any, depth: int = 3) -> Iterable[tuple[str, int]]:
    for name, value in usage.items() if isinstance(usage, dict) and depth else ():
        if isinstance(name, str) and isinstance(value, dict):
            yield from ((f"{name}.{inner}", count) for inner, count in _numbers(value, depth - 1))
        elif isinstance(name, str) and not isinstance(value, bool) and number(value) is not None:
            yield name, int(value)


def _declared(entry: Any) -> list[Any]:
    """Return the functions that one of Gemini's tools declares; any other entry is one."""
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
