"""Detection of recorded calls that llama.cpp prevents a model from writing.

If a request has tools, llama.cpp forces every call to match a grammar that it makes from the tool's
schema (`json-schema-to-grammar.cpp`). If a trained call does not match the grammar, the server
forces another call. The export's report counts such calls by tool. Differences of the chat template
are found in `parity`.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.export.report import ServingLimit, ToolDifference
from agent_pipeline.models.json_numbers import NumberText, changed_numbers, parse_json
from agent_pipeline.sessions.session import Tool, list_calls

MOST_DIGITS = 16
"""Maximum number of digits before and after the decimal point that the grammar allows."""


@dataclass(frozen=True)
class UnwritableCalls:
    """The number of a tool's calls, and how many of them llama.cpp prevents.

    Attributes:
        count: The number of all calls of the tool.
        reasons: The number of calls that cannot be written, by reason.
    """

    count: int
    reasons: dict[str, int]


def unwritable_calls(conversations: Iterable[DatasetRow]) -> dict[str, UnwritableCalls]:
    """Count the calls that llama.cpp prevents, by tool and by reason. Tools without such calls are
    left out.
    """
    calls: Counter[str] = Counter()
    reasons: dict[str, Counter[str]] = {}
    for conversation in conversations:
        tools = list(conversation.get("tools") or [])
        for name, raw in list_calls(conversation["messages"]):
            calls[name] += 1
            if tools and (reason := why_unwritable(name, raw, tools)):
                reasons.setdefault(name, Counter())[reason] += 1
    return {name: UnwritableCalls(calls[name], dict(counts)) for name, counts in reasons.items()}


def rounded_calls(conversation: DatasetRow) -> list[str]:
    """Return the names of tools whose recorded calls contain a number that llama.cpp's template
    engine writes differently, one name per call.
    """
    return [name for name, raw in list_calls(conversation["messages"]) if changed_numbers(raw)]


def limits_by_tool(
    conversations: Iterable[DatasetRow],
    rounds_numbers: bool,
    differing: Mapping[str, ToolDifference],
) -> list[ServingLimit]:
    """Return the calls that llama.cpp's server cannot serve as trained, with tool, count and
    reason. The most frequent limit comes first.

    Args:
        conversations: The training rows and the held-out conversations.
        rounds_numbers: Whether the chat template receives arguments as objects, so that llama.cpp
            rounds their numbers in earlier calls.
        differing: The tools that differ in the comparison of texts (`parity.check_template`).
    """
    rounded: Counter[str] = Counter()

    def passed_on() -> Iterator[DatasetRow]:
        # A single pass, because the training rows may not fit into memory.
        for conversation in conversations:
            rounded.update(rounded_calls(conversation) if rounds_numbers else ())
            yield conversation

    limits = [
        ServingLimit(
            tool=tool,
            count=count,
            of=f"{calls.count} calls",
            why=f"the server's grammar forbids the call: {why}",
        )
        for tool, calls in unwritable_calls(passed_on()).items()
        for why, count in calls.reasons.items()
    ]
    why = (
        "the server rounds a number when it renders the call in a later prompt; training did the "
        "same"
    )
    limits += [
        ServingLimit(tool=tool, count=count, of="calls", why=why) for tool, count in rounded.items()
    ]
    limits += [
        ServingLimit(
            tool=tool,
            count=difference.conversations,
            of="compared conversations",
            why=difference.why,
        )
        for tool, difference in differing.items()
    ]
    return sorted(limits, key=lambda limit: -limit.count)


def why_unwritable(name: str, arguments: str, tools: Iterable[Tool]) -> str:
    """Return the reason why llama.cpp's grammar does not allow a call, or an empty text if no known
    reason applies.

    Args:
        name: The name of the called tool.
        arguments: The call's arguments as JSON.
        tools: The tools of the request.
    """
    schemas = {
        tool.get("function", tool).get("name", ""): tool.get("function", tool).get("parameters")
        or {}
        for tool in tools
    }
    if name not in schemas:
        return "the request does not contain this tool"
    try:
        value = parse_json(arguments)
    except (ValueError, RecursionError):
        return "its arguments are not JSON"
    if not isinstance(value, dict):
        return "its arguments are not a JSON object"
    return _why_not(value, schemas[name])


def _why_not(value: dict[str, object], schema: Mapping[str, Any]) -> str:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and properties:
        required = [key for key in properties if key in (schema.get("required") or ())]
        order = [*required, *(key for key in properties if key not in required)]
        known = [key for key in value if key in properties]
        if missing := [key for key in required if key not in value]:
            return f"it lacks the required argument {missing[0]}"
        if len(known) < len(value) and not schema.get("additionalProperties"):
            return "it has an argument that the schema does not contain"
        if known != [key for key in order if key in value]:
            return "its arguments are not in the order of the schema, with required arguments first"
    if any(_too_long(number) for number in _numbers(value)):
        return f"a number has more than {MOST_DIGITS} digits"
    if isinstance(properties, Mapping):
        for key, item in value.items():
            kind = properties[key].get("type") if isinstance(properties.get(key), Mapping) else None
            if (
                kind == "integer"
                and isinstance(item, NumberText)
                and not item.lstrip("-").isdigit()
            ):
                return "a whole number is written with decimals"
    return ""


def _numbers(value: object) -> list[NumberText]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _numbers(item)]
    return [value] if isinstance(value, NumberText) else []


def _too_long(number: NumberText) -> bool:
    digits = number.lower().partition("e")[0].lstrip("-")
    return any(len(part) > MOST_DIGITS for part in digits.split("."))
