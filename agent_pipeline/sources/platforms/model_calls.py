"""A model call's request and response, as every API spells them: the input and output that tracing platforms store."""

from typing import Any, NamedTuple

from agent_pipeline.sources.formats.fields import decoded, objects, section

_ASKED = ("messages", "input_messages", "message", "input", "inputs", "prompt", "question", "query", "content", "text")
_ANSWERED = ("messages", "message", "output", "outputs", "answer", "response", "content", "text", "result")


class Exchange(NamedTuple):
    """One side of a model call: what was asked (with `tools`) or answered (with `usage`, as the API counts it)."""

    messages: list[Any]
    model: Any = None
    tools: Any = None
    usage: dict[str, Any] = {}


def request_of(value: Any) -> Exchange:
    """A request in any spelling: messages, an API's request, a text."""
    value = decoded(value)
    if not isinstance(value, dict):
        return Exchange(messages_of(value, "user"))
    system = value.get("system") or value.get("instructions")
    head = [{"role": "system", "content": system}] if isinstance(system, str | list) and system else []
    messages = [value] if "role" in value else _first(value, _ASKED, "user")
    return Exchange([*head, *messages], value.get("model"), tools=value.get("tools") or value.get("functions"))


def response_of(value: Any) -> Exchange:
    """A response in any spelling: choices (the first is taken), output items, content blocks, messages, a text."""
    value = decoded(value)
    if not isinstance(value, dict):
        return Exchange(messages_of(value, "assistant"))
    choice = next(iter(objects(value.get("choices"))), None)
    if choice is not None:
        answered = messages_of(choice.get("message", choice.get("text")), "assistant")
    elif "role" in value or value.get("type") in ("function_call", "message"):
        answered = [value]
    elif "tool_calls" in value:
        answered = [{"role": "assistant", **value}]
    else:
        answered = _first(value, _ANSWERED, "assistant")
    return Exchange(answered, value.get("model"), usage=section(value, "usage"))


def messages_of(value: Any, role: str) -> list[Any]:
    """Messages as they are; a text, or content blocks, as one message of this role; nothing else."""
    value = decoded(value)
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value.strip() else []
    if isinstance(value, dict):
        return [value] if "role" in value else [{"role": role, **value}] if value.keys() & {"content", "parts", "tool_calls"} else []
    if not isinstance(value, list):
        return []
    if value and all(isinstance(each, dict) and "role" not in each and "text" in each for each in value):
        return [{"role": role, "content": value}]
    return [each if not isinstance(each, str) else {"role": role, "content": each} for each in value]


def _first(value: dict[str, Any], names: tuple[str, ...], role: str) -> list[Any]:
    return next((messages for name in names if name in value and (messages := messages_of(value[name], role))), [])
