"""Unused tools that are added to a row, so that the set of tools differs from row to row.

A model that always sees the same tools learns their places in the prompt, and calls an unknown tool
that stands in such a place. A tool may be added only if the agent was right not to call it. So a
tool is added only if no text of the row mentions the subject of the tool. No tool is added if the
agent refused before it called any tool: it may have refused because it lacked the tool, and a
request for a tool need not name its subject ("Will it rain?").
"""

import re
from collections.abc import Iterable, Sequence
from random import Random

from agent_pipeline.datasets.masking import list_row_texts
from agent_pipeline.datasets.rows import DatasetRow
from agent_pipeline.datasets.tool_names import have_same_meaning, list_readable_names, split_name
from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import Message, Tool, ToolFunction, hash_json, list_calls
from agent_pipeline.sessions.turn_class import classify_turn

MOST_EXTRA_TOOLS = 3
"""Maximum number of tools that are added to a row."""

_STEM_LENGTH = 5
"""Number of letters after which two words count as forms of the same word."""

_GENERAL_WORDS = {
    *("get", "set", "send", "create", "list", "find", "search", "update", "delete", "add", "make"),
    *("check", "look", "up", "to", "of", "the", "in", "for", "by", "all", "new"),
}
"""Words in names of tools that say nothing about what a tool is about."""


def _make_tool(name: str, description: str, **parameters: str) -> Tool:
    """Return a schema. Each parameter has a JSON type, and all parameters are required."""
    properties: JsonObject = {key: {"type": json_type} for key, json_type in parameters.items()}
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(parameters),
            },
        },
    }


GENERIC_TOOLS: tuple[Tool, ...] = (
    _make_tool("get_weather", "Return the weather in a city.", city="string"),
    _make_tool("get_sunrise", "Return the time of sunrise.", city="string", day="string"),
    _make_tool("convert_currency", "Convert an amount of money.", amount="number", to="string"),
    _make_tool("convert_units", "Convert a length or a weight.", value="number", unit="string"),
    _make_tool("translate", "Translate a text.", text="string", language="string"),
    _make_tool("play_music", "Play a song.", title="string"),
    _make_tool("pause_music", "Pause the song."),
    _make_tool("set_alarm", "Set an alarm.", time="string"),
    _make_tool("set_timer", "Start a timer.", minutes="integer"),
    _make_tool("turn_on_lights", "Turn on the lights of a room.", room="string"),
    _make_tool("set_thermostat", "Set the temperature of a room.", degrees="integer"),
    _make_tool("search_web", "Search the web.", query="string"),
    _make_tool("search_recipes", "Find recipes for ingredients.", ingredients="string"),
    _make_tool("find_restaurant", "Find a restaurant.", cuisine="string", area="string"),
    _make_tool("get_stock_price", "Return the price of a share.", symbol="string"),
    _make_tool("define_word", "Return the meaning of a word.", word="string"),
    _make_tool("spell_check", "Correct the spelling of a text.", text="string"),
    _make_tool("roll_dice", "Roll dice.", count="integer", sides="integer"),
    _make_tool("flip_coin", "Flip a coin."),
    _make_tool("get_route", "Return the way to a place.", start="string", goal="string"),
    _make_tool("get_traffic", "Return the traffic on a road.", road="string"),
    _make_tool("take_photo", "Take a photo."),
    _make_tool("resize_image", "Change the size of an image.", path="string", width="integer"),
    _make_tool("read_sensor", "Return the value of a sensor.", sensor="string"),
    _make_tool("log_workout", "Record a workout.", sport="string", minutes="integer"),
    _make_tool("count_calories", "Count the calories of a meal.", meal="string"),
    _make_tool("get_horoscope", "Return a horoscope.", sign="string"),
    _make_tool("find_podcast", "Find a podcast.", topic="string"),
    _make_tool("water_plants", "Water the plants.", liters="number"),
    _make_tool("lock_door", "Lock a door.", door="string"),
)
"""Tools that no text of most agents mentions."""


def collect_tools(rows: Iterable[DatasetRow]) -> list[Tool]:
    """Return the different tools of rows and the generic tools, from which extra tools are taken.

    Args:
        rows: The rows of all agents that are trained together.
    """
    tools: dict[str, Tool] = {}
    for row in rows:
        for tool in row.get("tools") or []:
            if "function" in tool:
                tools.setdefault(hash_json(tool), tool)
    return [tools[key] for key in sorted(tools)] + list(GENERIC_TOOLS)


def add_tools(row: DatasetRow, pool: Sequence[Tool], seed: str) -> DatasetRow:
    """Return a row with up to three more tools that the agent did not need.

    A row without tools is returned unchanged, and a row in which the agent refuses before its first
    call. If no tool of the row has a description, the added
    tools have none. Rows with the same tools get the same extra tools from the same seed, except
    for tools that their texts are about.

    Args:
        row: The row.
        pool: The tools to choose from.
        seed: The seed of all choices.
    """
    tools = row.get("tools") or []
    if not tools or not all("function" in tool for tool in tools):
        return row
    if _refuses_without_a_call(row["messages"]):
        return row
    rng = Random(seed)
    wanted = rng.randint(1, MOST_EXTRA_TOOLS)
    candidates = list(pool)
    rng.shuffle(candidates)
    places = [rng.random() for _ in range(wanted)]
    has_descriptions = any(tool["function"].get("description") for tool in tools)
    stems = _find_stems(list_row_texts(row))
    taken = {tool["function"]["name"] for tool in tools}
    taken.update(name for name, _ in list_calls(row["messages"]))
    extended = list(tools)
    for candidate in candidates:
        if len(extended) == len(tools) + wanted:
            break
        name = candidate["function"]["name"]
        is_known = any(name == other or have_same_meaning(name, other) for other in taken)
        if is_known or _is_about(name, stems):
            continue
        tool = _make_variant(candidate, Random(f"{seed} {name}"), taken, has_descriptions)
        taken.add(tool["function"]["name"])
        place = places[len(extended) - len(tools)]
        extended.insert(int(place * (len(extended) + 1)), tool)
    if len(extended) == len(tools):
        return row
    return {**row, "tools": extended}


def _make_variant(tool: Tool, rng: Random, taken: set[str], has_descriptions: bool) -> Tool:
    """Return a tool, in half of the cases with another readable name.

    Otherwise, the model could learn the names of the tools that are never called.
    """
    function: ToolFunction = {**tool["function"]}
    names = list_readable_names(function["name"], "tool")
    if names and rng.random() < 0.5:
        name = rng.choice(names)
        function["name"] = function["name"] if name in taken else name
    if not has_descriptions:
        function["description"] = ""
        function["parameters"] = _drop_descriptions(function.get("parameters") or {})
    return {"type": "function", "function": function}


def _drop_descriptions(parameters: JsonObject) -> JsonObject:
    """Return a schema without the descriptions of its parameters."""
    properties = parameters.get("properties")
    if not isinstance(properties, dict):
        return parameters
    bare: JsonObject = {}
    for name, schema in properties.items():
        if isinstance(schema, dict):
            schema = {key: value for key, value in schema.items() if key != "description"}
        bare[name] = schema
    return {**parameters, "properties": bare}


def _refuses_without_a_call(messages: Sequence[Message]) -> bool:
    """Return whether the agent refuses something before its first call."""
    for message in messages:
        if message.get("tool_calls"):
            return False
        if message["role"] == "assistant" and classify_turn(message) == "cannot":
            return True
    return False


def _find_stems(texts: Iterable[str]) -> set[str]:
    words = re.findall(r"[^\W\d_]+", "\n".join(texts).lower())
    return {word[:_STEM_LENGTH] for word in words}


def _is_about(name: str, stems: set[str]) -> bool:
    """Return whether a text with these stems may be about the tool.

    A tool whose name says nothing about it may be about everything.
    """
    words = [word for word in split_name(name) if word not in _GENERAL_WORDS]
    return not words or any(word[:_STEM_LENGTH] in stems for word in words)
