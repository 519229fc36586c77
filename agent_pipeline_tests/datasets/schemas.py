"""What trainers document that they accept, written down from their documentation, so that a test can hold our files against it."""

import json
from typing import Any

_NAME = {"type": "string", "pattern": "^[a-zA-Z0-9_-]{1,64}$"}

_CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string"},
        "type": {"const": "function"},
        "function": {
            "type": "object",
            "required": ["name", "arguments"],
            "additionalProperties": False,
            "properties": {"name": _NAME, "arguments": {"type": "string"}},
        },
    },
}

_PLAIN = {
    "type": "object",
    "required": ["role", "content"],
    "additionalProperties": False,
    "properties": {"role": {"enum": ["system", "user"]}, "content": {"type": "string"}},
}

_ASSISTANT = {
    "type": "object",
    "required": ["role"],
    "additionalProperties": False,
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": "string"},
        "tool_calls": {"type": "array", "minItems": 1, "items": _CALL},
        "weight": {"enum": [0, 1]},
    },
    "anyOf": [{"required": ["content"]}, {"required": ["tool_calls"]}],
}

_TOOL_RESULT = {
    "type": "object",
    "required": ["role", "tool_call_id", "content"],
    "additionalProperties": False,
    "properties": {"role": {"const": "tool"}, "tool_call_id": {"type": "string"}, "content": {"type": "string"}},
}

OPENAI = {
    "type": "object",
    "required": ["messages"],
    "additionalProperties": False,
    "properties": {
        "messages": {"type": "array", "minItems": 1, "items": {"oneOf": [_PLAIN, _ASSISTANT, _TOOL_RESULT]}},
        "tools": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["type", "function"],
                "properties": {
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": _NAME,
                            "description": {"type": "string"},
                            "parameters": {"type": "object"},
                        },
                    },
                },
            },
        },
        "parallel_tool_calls": {"type": "boolean"},
    },
}
"""A line of OpenAI's supervised fine-tuning file (FineTuneChatRequestInput in its API description): no other keys, no nulls."""

AXOLOTL = {
    "type": "object",
    "required": ["conversations"],
    "properties": {
        "conversations": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["from", "value"],
                "properties": {
                    "from": {"enum": ["system", "human", "gpt", "function_call", "observation"]},
                    "value": {"type": "string"},
                    "train": {"type": "boolean"},
                },
            },
        },
        "tools": {"type": ["string", "null"], "contentMediaType": "application/json", "minLength": 2},
    },
}
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
            if not all(set(call) == {"name", "arguments"} for call in (calls if isinstance(calls, list) else [calls])):
                return "a function call that is none"
    if len(turns) % 2:
        return "an odd number of turns"
    if not row["tools"]:
        return ""
    tools = json.loads(row["tools"])
    if not isinstance(tools, list):
        return "tools that are no list"
    return "" if all("properties" in tool.get("function", tool)["parameters"] for tool in tools) else "a tool without properties"
