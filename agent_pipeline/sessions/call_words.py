"""Calls and results that a record tells as words, in the form of Hermes: `<tool_call>{...}</tool_call>`, `<tool_response>...`.

Datasets of function calls are published like that. A model that is trained on such words would write of calls and make none.
"""

import re
from typing import Any

from agent_pipeline.sessions.evidence import has_call_words
from agent_pipeline.sessions.json_text import json_text, object_in
from agent_pipeline.sessions.session import Message

_CALL = re.compile(r"<tool_call>\s*(\{(?:(?!</?tool_call>).)*\})\s*</tool_call>", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\s*((?:(?!</?tool_response>).)*?)\s*</tool_response>", re.DOTALL)


def calls_from_words(message: Message) -> Message | None:
    """Return an assistant's message with the calls that it tells as words; `None` if its words are not text and then calls."""
    text = message["content"]
    calls: list[dict[str, Any]] = []
    for match in _CALL.finditer(text):
        told = object_in(match[1])
        if told is None or not isinstance(told.get("name"), str) or not told.keys() <= {"name", "arguments", "id"}:
            return None
        arguments = told.get("arguments")
        arguments = arguments if isinstance(arguments, str) else json_text({} if arguments is None else arguments)
        call_id = told["id"] if isinstance(told.get("id"), str) else ""
        calls.append({"id": call_id, "type": "function", "function": {"name": told["name"], "arguments": arguments}})
    others = _CALL.split(text)
    words, behind = others[0].strip(), "".join(others[2::2]).strip()
    if behind or not calls or has_call_words(words) or any(call["function"]["arguments"] is None for call in calls):
        return None
    return message | {"content": words, "tool_calls": calls}


def results_from_words(message: Message) -> list[Message] | None:
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
    messages: list[Message] = [{"role": "tool", "tool_call_id": "", "content": result} for result in results]
    return [*messages, {"role": "user", "content": words}] if words else messages
