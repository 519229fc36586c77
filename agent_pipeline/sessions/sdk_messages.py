"""Conversion of messages of LangChain, pydantic-ai and AutoGen into a common form.

Their messages have a different shape than chat messages. The functions return messages in a shape
that `chat` can read; reading them belongs to `chat`.
"""

import re

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sessions.part_fields import read_part_type

_PYDANTIC_ROLES = {
    "system-prompt": "system",
    "user-prompt": "user",
    "retry-prompt": "user",
    "tool-return": "tool",
}
_PERSON = re.compile("proxy|human|user", re.IGNORECASE)
"""Words in the source of a message that a person wrote to an agent of AutoGen."""
AUTOGEN_ROLES = {
    "SystemMessage": "system",
    "UserMessage": "user",
    "AssistantMessage": "assistant",
    "FunctionExecutionResultMessage": "tool",
}


def shorten_langchain_type(name: str) -> str:
    """Return the role in the name of a LangChain class: `AIMessageChunk` becomes `ai`."""
    return name.removesuffix("Chunk").removesuffix("Message").lower()


def read_langchain_message(record: JsonObject) -> JsonObject:
    """Return the message that LangChain wraps in `{"lc", "id", "kwargs"}` or `{"type", "data"}`.

    Other records are returned unchanged.
    """
    kwargs, class_path, data = record.get("kwargs"), record.get("id"), record.get("data")
    if isinstance(kwargs, dict) and isinstance(class_path, list) and class_path:
        return kwargs | {"type": shorten_langchain_type(str(class_path[-1]))}
    if isinstance(data, dict) and "role" not in record:
        return data | {"type": record.get("type")}
    return record


def read_pydantic_messages(record: JsonObject) -> list[object]:
    """Return the messages that a request or a response of pydantic-ai contains."""
    if record["kind"] == "response":
        message: JsonObject = {"role": "assistant", "content": record["parts"]}
        if record.get("finish_reason") is not None:
            message["finish_reason"] = record["finish_reason"]
        if record.get("state") is not None:
            message["status"] = record["state"]
        return [message]
    messages: list[object] = []
    if record.get("instructions"):
        messages.append({"role": "system", "content": record["instructions"]})
    for part in record["parts"]:
        kind = read_part_type(part)
        if kind == "retry-prompt" and part.get("tool_name"):
            role: str | None = "tool"
        else:
            role = _PYDANTIC_ROLES.get(kind)
        if role is None:
            messages.append(part)
        else:
            fields = {name: value for name, value in part.items() if name != "parts"}
            messages.append(fields | {"role": role})
    return messages


def read_autogen_messages(record: JsonObject) -> list[object]:
    """Return the messages in a record of AutoGen, whose parts have no types.

    If the record has calls, its thought becomes the text of the message. The source of a message is
    its name, except for a person: the task has the source `user`, and the replies of the same
    person have the name of the agent that asked for them (`user_proxy`).
    """
    content, thought = record.get("content"), record.get("thought")
    parts = content if isinstance(content, list) else [content]
    role, name = AUTOGEN_ROLES[record["type"]], record.get("source")
    if role == "user" and isinstance(name, str) and _PERSON.search(name):
        name = None
    if role == "tool":
        results: list[object] = []
        for part in parts:
            if isinstance(part, dict):
                results.append(part | {"role": role, "tool_call_id": part.get("call_id")})
            else:
                results.append(None)
        return results
    calls = [part for part in parts if isinstance(part, dict) and "arguments" in part]
    if not calls:
        return [{"role": role, "name": name, "content": content, "reasoning": thought}]
    messages: list[object] = [{"role": role, "name": name, "content": thought, "tool_calls": calls}]
    for part in parts:
        if not any(part is call for call in calls):
            messages.append(mark_unread("part beside calls"))
    return messages
