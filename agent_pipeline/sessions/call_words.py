"""Calls and results that a record tells as words, in the form of Hermes: `<tool_call>{...}</tool_call>`, `<tool_response>...`.

Datasets of function calls are published like that. A model that is trained on such words would write of calls and make none. The words
of other models (`has_call_words`) are not read: they are damage.
"""

import re
from collections.abc import Mapping
from typing import Any

from agent_pipeline.sessions.json_text import dump_json, parse_json, parse_object
from agent_pipeline.sessions.session import Message

_CALL = re.compile(r"<tool_call>\s*(\{(?:(?!</?tool_call>).)*\})\s*</tool_call>", re.DOTALL)
_RESULT = re.compile(
    r"<tool_response>\s*((?:(?!</?tool_response>).)*?)\s*</tool_response>", re.DOTALL
)

_CALL_WORDS = re.compile(
    r"<(?:\w+:)?tool_calls?>\s*(?:[{<\[]|[\w.-]+\s*<arg_key>)|<function=[\w.-]+>"
    r"|<(?:\w+:)?invoke(?: name=\"|>\s*<tool_name>)|<(?:\w+:)?function_calls>\s*(?:<|[\w.]+\()"
    r"|\[TOOL_CALLS\]|<TOOLCALL>|<tool>\s*\{|functools\[\s*\{|Calling tools:\n\[\{'id': "
    r"|```tool_(?:code|call)\b|^Action:\s*```json\s*\[|<｜(?:tool|DSML)|<\|tool|<\|python_tag\|>"
    r"|<details type=\"(?:tool_calls|reasoning|code_interpreter)\""
    r"|^Action Input:.*^Observation:",
    re.DOTALL | re.MULTILINE,
)
"""How models write calls, where nobody made calls of the words. The last is a call with its result in the words of one turn."""
_MARKS = re.compile(
    r"<\|(?:channel|message|call|constrain|recipient|start|end|return|im_start|im_end|start_header_id|end_header_id|eot_id|eom_id"
    r"|begin_of_text|end_of_text|endoftext|START_\w+|END_\w+|assistant|user|system)\|>|<(?:start|end)_of_turn>|assistant(?:final|commentary)[^a-z]"
    r"|^>>>\w+\n\s*\{",
    re.DOTALL,
)
"""Marks of chat templates. Where they stand in an answer, the record has a model's raw output, calls and thoughts among it."""
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)\s*```\s*", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_PYTHON_CALLS = re.compile(r"\[\s*[A-Za-z_][\w.]*\(\s*(?:[A-Za-z_]\w*\s*=.*)?\)\s*\]", re.DOTALL)
_NAMES = ("name", "tool_name")
_ARGUMENTS = ("arguments", "parameters", "args")


BEGINNINGS = ("<", "[", "{", "```tool_", "assistant", "Observation:")
"""A text without any of these has no words of a call."""


def has_call_words(text: str) -> bool:
    """Whether a text has the words of a call as models write them: `<tool_call>{...`, or the JSON of a call and nothing else."""
    if _CALL_WORDS.search(text) is not None or _MARKS.search(_CODE.sub("", text)) is not None:
        return True
    text = _THOUGHT.sub("", text, count=1).strip()
    if (fenced := _FENCE.fullmatch(text)) is not None:
        text = fenced[1].strip()
    if text.startswith("[") and _PYTHON_CALLS.fullmatch(text) is not None:
        return True
    if text[:1] not in ("{", "[") or not any(f'"{name}"' in text for name in _NAMES):
        return False
    try:
        return _tells_calls(parse_json(text))
    except (ValueError, RecursionError):
        return False


def _tells_calls(told: Any) -> bool:
    """Whether a value is a call or nothing but calls: a name with an object of arguments, as APIs write them."""
    if isinstance(told, list):
        return bool(told) and all(isinstance(each, Mapping) and _tells_calls(each) for each in told)
    if not isinstance(told, Mapping):
        return False
    if isinstance(told.get("tool_calls"), list):
        return _tells_calls(told["tool_calls"])
    if told.get("type") in ("function", "function_call") and isinstance(
        told.get("function"), Mapping
    ):
        return isinstance(told["function"].get("name"), str) and "arguments" in told["function"]
    if not any(isinstance(told.get(name), str) for name in _NAMES):
        return False
    return any(isinstance(told.get(name), Mapping) for name in _ARGUMENTS) or (
        told.get("type") in ("function", "function_call", "tool_use")
        and not told.keys().isdisjoint((*_ARGUMENTS, "input"))
    )


def read_call_words(message: Message) -> Message | None:
    """Return an assistant's message with the calls that it tells as words; `None` if its words are not text and then calls."""
    text = message["content"]
    calls: list[dict[str, Any]] = []
    for match in _CALL.finditer(text):
        told = parse_object(match[1])
        if (
            told is None
            or not isinstance(told.get("name"), str)
            or not told.keys() <= {"name", "arguments", "id"}
        ):
            return None
        arguments = told.get("arguments")
        arguments = (
            arguments
            if isinstance(arguments, str)
            else dump_json({} if arguments is None else arguments)
        )
        call_id = told["id"] if isinstance(told.get("id"), str) else ""
        calls.append(
            {
                "id": call_id,
                "type": "function",
                "function": {"name": told["name"], "arguments": arguments},
            }
        )
    others = _CALL.split(text)
    words, behind = others[0].strip(), "".join(others[2::2]).strip()
    if (
        behind
        or not calls
        or has_call_words(words)
        or any(call["function"]["arguments"] is None for call in calls)
    ):
        return None
    return message | {"content": words, "tool_calls": calls}


def read_result_words(message: Message) -> list[Message] | None:
    """Return the results that a user's or a tool's message tells as words, and the words behind them as a message of its own.

    Returns `None` if the message is not results and then words.
    """
    text = message["content"]
    results = _RESULT.findall(text)
    others = _RESULT.split(text)
    if not results or "".join(others[0:-1:2]).strip() or "<tool_response>" in others[-1]:
        return None
    words = others[-1].strip()
    if message["role"] == "tool":
        if words:
            return None
        if len(results) == 1:
            return [message | {"content": results[0]}]
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": "", "content": result} for result in results
    ]
    return [*messages, {"role": "user", "content": words}] if words else messages
