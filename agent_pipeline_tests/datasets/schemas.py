"""What trainers document that they accept, written down from their documentation, so that a test can hold our files against it."""

import json
from typing import Any

TEXT = {"type": "string"}


def _object(required: str, strict: bool = True, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "required": required.split(),
        "additionalProperties": not strict,
        "properties": properties,
    }


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "minItems": 1, "items": items}


_NAME = TEXT | {"pattern": "^[a-zA-Z0-9_-]{1,64}$"}
_FUNCTION = {"type": {"const": "function"}}
_CALL = _object(
    "id type function",
    id=TEXT,
    function=_object("name arguments", name=_NAME, arguments=TEXT),
    **_FUNCTION,
)
_ASSISTANT = _object(
    "role",
    role={"const": "assistant"},
    content=TEXT,
    tool_calls=_list(_CALL),
    weight={"enum": [0, 1]},
)
_MESSAGES = [
    _object("role content", role={"enum": ["system", "user"]}, content=TEXT),
    _ASSISTANT | {"anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}]},
    _object("role tool_call_id content", role={"const": "tool"}, tool_call_id=TEXT, content=TEXT),
]
_TOOL = _object("name", strict=False, name=_NAME, description=TEXT, parameters={"type": "object"})

OPENAI = _object(
    "messages",
    messages=_list({"oneOf": _MESSAGES}),
    tools=_list(_object("type function", strict=False, function=_TOOL, **_FUNCTION)),
    parallel_tool_calls={"type": "boolean"},
)
"""A line of OpenAI's supervised fine-tuning file (FineTuneChatRequestInput in its API description): no other keys, no nulls."""

_FROM = {"from": {"enum": ["system", "human", "gpt", "function_call", "observation"]}}
AXOLOTL = _object(
    "conversations",
    strict=False,
    conversations=_list(
        _object("from value", strict=False, value=TEXT, train={"type": "boolean"}, **_FROM)
    ),
    tools={"type": ["string", "null"], "contentMediaType": "application/json", "minLength": 2},
)
"""A row for Axolotl's `type: chat_template` with `field_messages: conversations`, `message_property_mappings` (`role: from` and `content:
value`), `message_field_training: train` and `roles` for the five names. Axolotl 0.19 takes the schemas from `tools` (whatever `field_tools`
says): a list, or the JSON of one; an empty text is none, and ends the loading."""


def llama_factory_refuses(row: dict[str, Any]) -> str:
    """Why LLaMA-Factory throws a ShareGPT row away, or cannot format it; empty where it takes it.

    Its documentation: after an optional system turn human and observation stand in odd positions, gpt and function_call in even ones; a
    function call is the JSON of a name and arguments or of a list of them; tools is the JSON of a list, or empty, or null. Its code (0.9.5)
    decodes that text, and its template `default` wants the properties of every tool's parameters.
    """
    turns = row["conversations"]
    if turns and turns[0]["from"] == "system":
        turns = turns[1:]
    for at, turn in enumerate(turns):
        if turn["from"] not in (("human", "observation"), ("gpt", "function_call"))[at % 2]:
            return f"{turn['from']} in position {at + 1}"
        if turn["from"] == "function_call":
            calls = json.loads(turn["value"])
            if not all(
                set(call) == {"name", "arguments"}
                for call in (calls if isinstance(calls, list) else [calls])
            ):
                return "a function call that is none"
    if len(turns) % 2:
        return "an odd number of turns"
    if not row["tools"]:
        return ""
    tools = json.loads(row["tools"])
    if not isinstance(tools, list):
        return "tools that are no list"
    return (
        ""
        if all("properties" in tool.get("function", tool)["parameters"] for tool in tools)
        else "a tool without properties"
    )
