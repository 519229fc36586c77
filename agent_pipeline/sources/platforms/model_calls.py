"""A model call's request and response, as every API spells them: the input and output that tracing platforms store."""

from typing import Any, NamedTuple

from agent_pipeline.sources.formats.fields import decoded

_ASKED = ("messages", "input_messages", "message", "input", "inputs", "prompt", "question", "query", "content", "text")
_ANSWERED = ("messages", "message", "output", "outputs", "answer", "response", "content", "text", "result")


class Request(NamedTuple):
    """What a model was asked."""

    messages: list[Any]
    tools: Any = None
    model: Any = None


class Response(NamedTuple):
    """What it answered. Of several choices the first is taken; `usage` as the API counts it."""

    messages: list[Any]
    usage: dict[str, Any]
    model: Any = None


def request_of(value: Any) -> Request:
    """A request in any spelling: messages, an API's request, a text."""
    value = decoded(value)
    if not isinstance(value, dict):
        return Request(messages_of(value, "user"))
    system = value.get("system") or value.get("instructions")
    head = [{"role": "system", "content": system}] if isinstance(system, str | list) and system else []
    messages = [value] if "role" in value else _first(value, _ASKED, "user")
    return Request([*head, *messages], value.get("tools") or value.get("functions"), value.get("model"))


def response_of(value: Any) -> Response:
    """A response in any spelling: choices, output items, content blocks, messages, a text."""
    value = decoded(value)
    if not isinstance(value, dict):
        return Response(messages_of(value, "assistant"), {})
    usage = value.get("usage")
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        answered = messages_of(choices[0].get("message", choices[0].get("text")), "assistant")
    elif "role" in value or value.get("type") in ("function_call", "message"):
        answered = [value]
    elif "tool_calls" in value:
        answered = [{"role": "assistant", **value}]
    else:
        answered = _first(value, _ANSWERED, "assistant")
    return Response(answered, usage if isinstance(usage, dict) else {}, value.get("model"))


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
