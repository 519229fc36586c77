"""Tool calls and tool results that a record holds as text, in the format of Hermes.

The format is `<tool_call>{...}</tool_call>` and `<tool_response>...</tool_response>`. Datasets of
function calls are published in this format. A model that is trained on such text would write about
calls without making any. Calls in the formats of other models are recognized (`has_call_words`) but
not parsed; they count as damage.
"""

import re
from collections.abc import Mapping

from agent_pipeline.sessions.json_text import dump_json, parse_json, parse_object
from agent_pipeline.sessions.session import Message, ToolCall

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
"""Patterns of the text formats in which models write calls. The last pattern matches a call and its
result in one turn.
"""
_TEMPLATE_MARKS = re.compile(
    r"<\|(?:channel|message|call|constrain|recipient|start|end|return|im_start|im_end"
    r"|start_header_id|end_header_id|eot_id|eom_id|begin_of_text|end_of_text|endoftext"
    r"|START_\w+|END_\w+|assistant|user|system)\|>|<(?:start|end)_of_turn>"
    r"|assistant(?:final|commentary)[^a-z]|^>>>\w+\n\s*\{",
    re.DOTALL,
)
"""Special tokens of chat templates. A text with such a token is raw model output with calls and
thoughts.
"""
_CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)
_FENCE = re.compile(r"```(?:json)?\s*\n?(.*?)\s*```\s*", re.DOTALL)
_THOUGHT = re.compile(r"\s*<think>.*?</think>", re.DOTALL)
_PYTHON_CALLS = re.compile(r"\[\s*[A-Za-z_][\w.]*\(\s*(?:[A-Za-z_]\w*\s*=.*)?\)\s*\]", re.DOTALL)
_NAME_FIELDS = ("name", "tool_name")
_ARGUMENT_FIELDS = ("arguments", "parameters", "args")
_FUNCTION_TYPES = ("function", "function_call")


CALL_BEGINNINGS = ("<", "[", "{", "```tool_", "assistant", "Observation:")
"""Strings that are fast to search for. Every text with a written call contains one of them."""


def has_call_words(text: str) -> bool:
    """Return whether a text contains a tool call that is written out as text.

    The call has the format of a model (`<tool_call>{...`), or the whole text is JSON of calls.
    """
    # Without code, a text may contain other words, so a text with code is always searched.
    if "`" not in text and not any(beginning in text for beginning in CALL_BEGINNINGS):
        return False
    if _CALL_WORDS.search(text) or _TEMPLATE_MARKS.search(_CODE.sub("", text)):
        return True
    text = _THOUGHT.sub("", text, count=1).strip()
    fenced = _FENCE.fullmatch(text)
    if fenced is not None:
        text = fenced[1].strip()
    if text.startswith("[") and _PYTHON_CALLS.fullmatch(text) is not None:
        return True
    if text[:1] not in ("{", "[") or not any(f'"{name}"' in text for name in _NAME_FIELDS):
        return False
    try:
        return _is_calls(parse_json(text))
    except (ValueError, RecursionError):
        return False


def _is_calls(value: object) -> bool:
    """Return whether a value is a tool call, or a list of tool calls, in the format of an API."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(call, Mapping) and _is_calls(call) for call in value)
    if not isinstance(value, Mapping):
        return False
    if isinstance(value.get("tool_calls"), list):
        return _is_calls(value["tool_calls"])
    function = value.get("function")
    if value.get("type") in _FUNCTION_TYPES and isinstance(function, Mapping):
        return isinstance(function.get("name"), str) and "arguments" in function
    if not any(isinstance(value.get(name), str) for name in _NAME_FIELDS):
        return False
    if any(isinstance(value.get(name), Mapping) for name in _ARGUMENT_FIELDS):
        return True
    has_call_type = value.get("type") in (*_FUNCTION_TYPES, "tool_use")
    return has_call_type and not value.keys().isdisjoint((*_ARGUMENT_FIELDS, "input"))


def read_call_words(message: Message) -> Message | None:
    """Return an assistant message with the calls parsed from its text.

    The result is None if the message is not text followed by calls.
    """
    text = message["content"]
    calls: list[ToolCall] = []
    for match in _CALL.finditer(text):
        call = _read_call(match[1])
        if call is None:
            return None
        calls.append(call)
    pieces = _CALL.split(text)  # text, call, text, call, …, text
    words_before_calls = pieces[0].strip()
    words_after_calls = "".join(pieces[2::2]).strip()
    if words_after_calls or not calls or has_call_words(words_before_calls):
        return None
    return {**message, "content": words_before_calls, "tool_calls": calls}


def _read_call(text: str) -> ToolCall | None:
    """Return the tool call that a JSON text contains.

    The result is None if the text is not a call in the format of Hermes.
    """
    fields = parse_object(text)
    if fields is None or not fields.keys() <= {"name", "arguments", "id"}:
        return None
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str):
        return None
    if not isinstance(arguments, str):
        arguments = dump_json({} if arguments is None else arguments)
    if arguments is None:
        return None
    call_id = fields["id"] if isinstance(fields.get("id"), str) else ""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def read_result_words(message: Message) -> list[Message] | None:
    """Return the results that the text of a user's or a tool's message contains.

    Text after the results becomes a separate user message. The result is None if the message is not
    results followed by text.
    """
    text = message["content"]
    results = _RESULT.findall(text)
    pieces = _RESULT.split(text)  # text, result, text, result, …, text
    words_among_results = "".join(pieces[0:-1:2]).strip()
    if not results or words_among_results or "<tool_response>" in pieces[-1]:
        return None
    words = pieces[-1].strip()
    if message["role"] == "tool":
        if words:
            return None
        if len(results) == 1:
            return [{**message, "content": results[0]}]
    messages: list[Message] = [
        {"role": "tool", "tool_call_id": "", "content": result} for result in results
    ]
    if words:
        messages.append({"role": "user", "content": words})
    return messages
