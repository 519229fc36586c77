"""What many records say in their own words: verdicts, times, numbers, token counts."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from agent_pipeline.sessions.session import Tool
from agent_pipeline.sources.base import timestamp

_WORDS = {
    "acceptable": 1.0, "pass": 1.0, "passed": 1.0, "correct": 1.0, "c": 1.0, "true": 1.0, "p": 0.5, "yes": 1.0, "good": 1.0, "success": 1.0,
    "unacceptable": 0.0, "fail": 0.0, "failed": 0.0, "incorrect": 0.0, "i": 0.0, "n": 0.0, "false": 0.0, "no": 0.0, "bad": 0.0,
    "failure": 0.0,
}  # fmt: skip

_SECONDS_LIMIT = 1e11
"""A time above this (the year 5138 in seconds) is in milliseconds or finer."""

_NAMES = ("judgment", "passed", "win", "reward", "utility", "score", "verdict", "label")


def number(value: Any) -> float | None:
    """A finite number; null for anything else. NaN is not known, and null is not zero."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 and math.isfinite(value) else None


def verdict(value: Any) -> tuple[float | None, str | None]:
    """Score and judgment of a verdict: a bool, a word, or a number of which only 1 and 0 decide."""
    score = _WORDS.get(value.strip().lower()) if isinstance(value, str) else number(value)
    return score, None if score is None else "acceptable" if score == 1 else "unacceptable" if score == 0 else None


def said(record: dict[str, Any]) -> tuple[float | None, str | None]:
    """Score and judgment of a plain record: of the names that verdicts go by, the first that decides, and the first that is no word."""
    named = [record[name] for name in ("score", *_NAMES) if record.get(name) is not None]
    scores = (verdict(value)[0] for value in named if not isinstance(value, str))
    judgments = (verdict(record[name])[1] for name in _NAMES if record.get(name) is not None)
    return next((score for score in scores if score is not None), None), next((judgment for judgment in judgments if judgment), None)


def when(value: Any) -> datetime | None:
    """A time as UTC: ISO text, seconds, milliseconds, microseconds or nanoseconds since 1970 (also as text), or a datetime."""
    if isinstance(value, datetime):
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    if isinstance(value, str) and value.isdigit() and len(value) < 30:
        value = int(value)
    if isinstance(value, int | float):
        if isinstance(value, bool) or number(value) is None:
            return None
        for _ in range(3):
            value = value / 1000 if abs(value) > _SECONDS_LIMIT else value
    return timestamp(value)


def function_tools(raw: Any) -> tuple[list[Tool], int]:
    """Tool schemas as OpenAI function tools, and how many entries were none.

    Bare functions and Anthropic's schemas are wrapped; a text is taken for the JSON of them.
    """
    if isinstance(raw, str):
        try:
            raw = json.loads(raw) if raw.strip() else None
        except (ValueError, RecursionError):
            return [], 1
    if isinstance(raw, dict):
        raw = list(raw.values()) if all(isinstance(each, dict) for each in raw.values()) else [raw]
    entries = raw if isinstance(raw, list) else [] if raw is None else [raw]
    tools = [_tool(each) for each in entries]
    return [tool for tool in tools if tool], sum(tool is None for tool in tools)


def counts(usages: Iterable[Any]) -> dict[str, int]:
    """Token counts of several calls in one: the sum of each whole number by its name, that of a part as `whole.part`."""
    total: dict[str, int] = {}
    for usage in usages:
        for name, value in _whole_numbers(usage):
            total[name] = total.get(name, 0) + value
    return total


def error_text(error: Any) -> str | None:
    """What an error says: a text, or an object's message or type; null where there is none."""
    if isinstance(error, dict) and error:
        error = error.get("message") or error.get("type") or json.dumps(error, default=str)
    elif isinstance(error, list) and error:
        error = json.dumps(error, default=str)
    said = "error" if error is True else scalar(error)
    return said if said and said.strip() and said != "0" else None


def section(record: Any, *names: str) -> dict[str, Any]:
    """The object inside a record at a path of names; an empty one where there is none."""
    for name in names:
        record = record.get(name) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def elements(value: Any) -> list[Any]:
    """A list as it is; an empty one for anything else."""
    return value if isinstance(value, list) else []


def scalar(value: Any) -> str | None:
    """Text as it is, a whole number (also one that a table holds as 3.0) as text; null for anything else."""
    if isinstance(value, str):
        return value
    whole = isinstance(value, int) and not isinstance(value, bool)
    return str(int(value)) if (whole or isinstance(value, float)) and (found := number(value)) is not None and found.is_integer() else None


def _whole_numbers(usage: Any, depth: int = 3) -> Iterable[tuple[str, int]]:
    for name, value in usage.items() if isinstance(usage, dict) and depth else ():
        if not isinstance(name, str):
            continue
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", count) for inner, count in _whole_numbers(value, depth - 1))
        elif not isinstance(value, bool) and (found := number(value)) is not None:
            yield name, int(found) if isinstance(value, float) else value


def _tool(raw: Any) -> Tool | None:
    function = raw.get("function", raw) if isinstance(raw, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or not function["name"].strip():
        return None
    if raw is not function:
        return raw
    parameters: dict[str, Any] = next(
        (function[key] for key in ("parameters", "input_schema", "inputSchema") if isinstance(function.get(key), dict)), {}
    )
    description = function.get("description")
    made = {"name": function["name"], "description": description if isinstance(description, str) else "", "parameters": parameters}
    return {"type": "function", "function": made}
