"""Masking of names: a row's tools and parameters get other names, everywhere in the row.

A model that always sees the same names learns them by heart and does not read the schemas (Lin et
al. 2024, "Hammer: Robust Function-Calling for On-Device Language Models via Function Masking").
Names are replaced in the schemas, in the calls and in the field `name` of tool results. Texts,
values and ids never change. So a name that a text of the row mentions keeps its name. How a new
name is made belongs in `tool_names`.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any

import msgspec

from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.tool_names import (
    NameKind,
    have_same_meaning,
    is_plain_word,
    list_readable_names,
    make_random_name,
    split_name,
)
from agent_pipeline.sessions.json_text import has_repeated_key, parse_json
from agent_pipeline.sessions.session import (
    THOUGHT,
    FunctionCall,
    Message,
    Tool,
    ToolCall,
    ToolFunction,
    list_calls,
)
from agent_pipeline.structs import json_decoder

RENAMED_SHARE = {"tool": 0.75, "parameter": 0.5}
"""Share of the names that are replaced in a row with masked names.

The others stay, so that the model does not learn that all names of a request are new or old.
"""

RANDOM_SHARE = 0.5
"""Share of the replaced names that are random, where a description tells what is named."""

_CANDIDATES_TRIED = 8
"""Number of new names that are tried for a name."""

_PLAIN_SCHEMA_KEYS = {
    *("type", "properties", "required", "additionalProperties"),
    *("title", "description", "$schema", "strict"),
}
"""Keys of an object schema whose meaning survives new names of its properties."""

_IDENTIFIER = re.compile(r"[^\W\d_][\w-]*")
"""A word in a text that may be the name of a tool or a parameter, in any style."""

_MARKDOWN_ESCAPE = re.compile(r"\\([_*`-])")

_SEPARATORS = ((", ", ": "), (",", ":"), (", ", ":"), (",", ": "))


@dataclass(frozen=True)
class Renaming:
    """The new names of a row's tools and parameters, by old name.

    A parameter has the same new name in all tools.

    Attributes:
        tools: The new names of tools.
        parameters: The new names of parameters.
        kept: The names that were to be replaced, and that a text of the row mentions.
    """

    tools: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.tools or self.parameters)


def choose_new_names(row: DatasetRow, seed: str) -> Renaming:
    """Choose new names for some tools and parameters of a row.

    Rows with the same tools get the same new names from the same seed, except for names that their
    texts mention.

    Args:
        row: The row.
        seed: The seed of all choices.
    """
    tools = row.get("tools") or []
    if not all("function" in tool for tool in tools):
        return Renaming()
    functions = [tool["function"] for tool in tools]
    tool_names = [function["name"] for function in functions]
    if len(set(tool_names)) < len(tool_names):
        return Renaming()
    texts = _RowTexts.of(row)
    kept: list[str] = []
    tools_renamed: dict[str, str] = {}
    called = {name for name, _ in list_calls(row["messages"])}
    taken = {*tool_names, *called}
    similar = {
        name
        for name in tool_names
        for other_name in tool_names
        if name != other_name and have_same_meaning(name, other_name)
    }
    for function in sorted(functions, key=lambda function: function["name"]):
        chooser = _NameChooser(
            "tool", bool(function.get("description")), seed, function["name"] in similar
        )
        chooser.choose(function["name"], texts, taken, tools_renamed, kept)
    parameters_renamed: dict[str, str] = {}
    described = _find_described_parameters(tools)
    fixed = _find_fixed_parameters(row)
    taken = set(described) | fixed
    for name in sorted(set(described) - fixed):
        chooser = _NameChooser("parameter", described[name], seed)
        chooser.choose(name, texts, taken, parameters_renamed, kept)
    return Renaming(tools_renamed, parameters_renamed, tuple(kept))


@dataclass(frozen=True)
class _NameChooser:
    """A chooser of one new name.

    Attributes:
        kind: What is named.
        is_described: Whether a description explains the named tool or parameter.
        seed: The seed of the choice.
        is_similar: Whether another tool differs only in a verb of the same meaning. Then the verb
            must stay.
    """

    kind: NameKind
    is_described: bool
    seed: str
    is_similar: bool = False

    def choose(
        self,
        name: str,
        texts: "_RowTexts",
        taken: set[str],
        renamed: dict[str, str],
        kept: list[str],
    ) -> None:
        """Choose the new name of `name`, and add it to `renamed` and `taken`.

        Args:
            name: The old name.
            texts: The texts of the row.
            taken: The names that no tool or parameter may get.
            renamed: Receives the new name.
            kept: Receives the old name if a text of the row mentions it.
        """
        rng = Random(f"{self.seed} {self.kind} {name}")
        if rng.random() >= RENAMED_SHARE[self.kind]:
            return
        if texts.name(name):
            kept.append(name)
            return
        is_in_prose = texts.contain_word(name)
        if self.is_described and not is_in_prose and rng.random() < RANDOM_SHARE:
            candidates = [make_random_name(rng) for _ in range(_CANDIDATES_TRIED)]
        else:
            names = list_readable_names(name, self.kind, is_in_prose or self.is_similar)
            candidates = rng.sample(names, min(len(names), _CANDIDATES_TRIED))
        for candidate in candidates:
            if candidate not in taken and candidate not in texts.messages:
                renamed[name] = candidate
                taken.add(candidate)
                return


@dataclass(frozen=True)
class _RowTexts:
    """The texts of a row in which a name may be mentioned.

    Attributes:
        messages: The texts of messages, results and arguments. Keys of results are left out.
        descriptions: The descriptions and other texts in the schemas.
    """

    messages: str
    descriptions: str

    @classmethod
    def of(cls, row: DatasetRow) -> "_RowTexts":
        messages = "\n".join(list_row_texts(row))
        descriptions = "\n".join(
            text for tool in row.get("tools") or [] for text in _list_schema_texts(tool["function"])
        )
        return cls(_MARKDOWN_ESCAPE.sub(r"\1", messages), _MARKDOWN_ESCAPE.sub(r"\1", descriptions))

    @cached_property
    def identifiers(self) -> set[tuple[str, ...]]:
        """Return the words of each identifier of several words, such as `findOrders`."""
        identifiers = set()
        for text in (self.messages, self.descriptions):
            for identifier in set(_IDENTIFIER.findall(text)):
                words = tuple(split_name(identifier))
                if len(words) > 1:
                    identifiers.add(words)
        return identifiers

    def name(self, name: str) -> bool:
        """Return whether a text names a tool or a parameter, so that a new name would be false.

        A name that looks like a word of prose must stand in quotes or before a bracket: in "I want
        a refund", `refund` is a word. Other names count in every style (`findOrders` for
        `find_orders`) and behind a prefix (`mcp__shop__find_orders`).
        """
        if tuple(split_name(name)) in self.identifiers:
            return True
        pattern = rf"(?<![^\W_]){re.escape(name)}(?!\w)"
        if is_plain_word(name):
            pattern = rf"[`'\"]{re.escape(name)}[`'\"]|(?<!\w){re.escape(name)}[(=]"
        return any(re.search(pattern, text) for text in (self.messages, self.descriptions))

    def contain_word(self, name: str) -> bool:
        """Return whether a name is a word of prose in the messages."""
        pattern = rf"(?<!\w){re.escape(name)}(?!\w)"
        return bool(re.search(pattern, self.messages, re.IGNORECASE))


def list_row_texts(row: DatasetRow) -> list[str]:
    """Return the texts of a row's messages, results and arguments, without the keys of results."""
    return [text for message in row["messages"] for text in _list_texts(message)]


def _list_texts(message: Message) -> Iterator[str]:
    content = message.get("content") or ""
    if message["role"] == "tool":
        try:
            yield from _list_strings(parse_json(content))
        except (ValueError, RecursionError):
            yield content
    else:
        yield content
    yield message.get(THOUGHT) or ""
    for call in message.get("tool_calls") or ():
        try:
            yield from _list_strings(parse_json(call["function"]["arguments"]))
        except (ValueError, RecursionError):
            yield call["function"]["arguments"]


def _list_strings(value: object) -> Iterator[str]:
    """Yield all texts of a JSON value, without the keys of objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _list_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_strings(item)


def _list_schema_texts(function: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts in a tool's schema that may mention a name, without the names themselves."""
    yield function.get("description") or ""
    for key, value in (function.get("parameters") or {}).items():
        if key == "properties" and isinstance(value, dict):
            yield from _list_strings(list(value.values()))
        elif key != "required":
            yield from _list_strings(value)


def _find_described_parameters(tools: Sequence[Tool]) -> dict[str, bool]:
    """Return all parameters of the tools by name, and whether each has a description."""
    described: dict[str, bool] = {}
    for tool in tools:
        for name, schema in _properties(tool).items():
            has_description = isinstance(schema, dict) and bool(schema.get("description"))
            described[name] = described.get(name, True) and has_description
    return described


def _properties(tool: Tool) -> dict[str, Any]:
    properties = (tool["function"].get("parameters") or {}).get("properties")
    return properties if isinstance(properties, dict) else {}


def _find_fixed_parameters(row: DatasetRow) -> set[str]:
    """Return the parameters whose names must stay.

    These are parameters of a schema in which other keys may name them, parameters of a call whose
    arguments cannot be read, and arguments that their tool's schema does not have.
    """
    fixed: set[str] = set()
    properties_by_tool: dict[str, dict[str, Any]] = {}
    for tool in row.get("tools") or []:
        function, properties = tool["function"], _properties(tool)
        properties_by_tool[function["name"]] = properties
        if not (function.get("parameters") or {}).keys() <= _PLAIN_SCHEMA_KEYS:
            fixed.update(properties)
    for name, arguments in list_calls(row["messages"]):
        properties = properties_by_tool.get(name, {})
        values = _parse_arguments(arguments)
        if values is None:
            fixed.update(properties)
        else:
            fixed.update(key for key in values if key not in properties)
    return fixed


def rename(row: DatasetRow, renaming: Renaming) -> DatasetRow:
    """Return a row with new names of tools and parameters.

    Schemas, calls and tool results have the new names. All values and texts are the same.

    Args:
        row: The row.
        renaming: The new names.
    """
    if not renaming:
        return row
    renamed: DatasetRow = {
        **row,
        "tools": [_rename_tool(tool, renaming) for tool in row.get("tools") or []],
        "messages": [_rename_in_message(message, renaming) for message in row["messages"]],
    }
    return renamed


def _rename_tool(tool: Tool, renaming: Renaming) -> Tool:
    function: ToolFunction = {**tool["function"]}
    function["name"] = renaming.tools.get(function["name"], function["name"])
    parameters = function.get("parameters")
    if parameters and _properties(tool):
        new_names = renaming.parameters
        changed: dict[str, Any] = {
            **parameters,
            "properties": {
                new_names.get(name, name): schema for name, schema in _properties(tool).items()
            },
        }
        required = parameters.get("required")
        if isinstance(required, list):
            changed["required"] = [new_names.get(name, name) for name in required]
        function["parameters"] = changed
    return {**tool, "function": function}


def _rename_in_message(message: Message, renaming: Renaming) -> Message:
    if message["role"] == "tool" and message.get("name") in renaming.tools:
        return {**message, "name": renaming.tools[message["name"]]}
    if not message.get("tool_calls"):
        return message
    calls: list[ToolCall] = []
    for call in message["tool_calls"]:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        function: FunctionCall = {
            "name": renaming.tools.get(name, name),
            "arguments": rename_keys(arguments, renaming.parameters),
        }
        calls.append({**call, "function": function})
    return {**message, "tool_calls": calls}


def rename_keys(arguments: str, new_names: Mapping[str, str]) -> str:
    r"""Return the JSON text of a call's arguments with new names of its outermost keys.

    Each value keeps its text.

    >>> rename_keys('{"amount": 100.50, "to": {"to": "Ana"}}', {"to": "payee"})
    '{"amount": 100.50, "payee": {"to": "Ana"}}'
    """
    values = _parse_arguments(arguments)
    if not values or values.keys().isdisjoint(new_names):
        return arguments
    for separators in _SEPARATORS:
        if _write_object(values, {}, separators) == arguments:
            return _write_object(values, new_names, separators)
    return _write_object(values, new_names, _SEPARATORS[0])


def _write_object(
    values: Mapping[str, str], new_names: Mapping[str, str], separators: tuple[str, str]
) -> str:
    item_separator, key_separator = separators
    items = [
        msgspec.json.encode(new_names.get(key, key)).decode() + key_separator + value
        for key, value in values.items()
    ]
    return "{" + item_separator.join(items) + "}"


_ARGUMENTS = json_decoder(dict[str, msgspec.Raw])


def _parse_arguments(arguments: object) -> dict[str, str] | None:
    """Return the text of each argument by name, or None if the arguments are not a JSON object."""
    if not isinstance(arguments, str) or has_repeated_key(arguments):
        return None
    try:
        return {key: bytes(raw).decode() for key, raw in _ARGUMENTS.decode(arguments).items()}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def count_masked(renaming: Renaming) -> Counter[str]:
    """Return the counts of a renaming: replaced tools and parameters, and names that were kept."""
    counts = Counter(
        tools_renamed=len(renaming.tools),
        parameters_renamed=len(renaming.parameters),
        names_in_text=len(renaming.kept),
    )
    return +counts
