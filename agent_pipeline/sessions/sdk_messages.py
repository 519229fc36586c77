"""The messages of LangChain, pydantic-ai and AutoGen, whose shape differs from a chat's: what `chat.py` reads in their place."""

from typing import Any

from agent_pipeline.sessions.items import mark_unread
from agent_pipeline.sessions.part_fields import read_part_type

_PYDANTIC = {
    "system-prompt": "system",
    "user-prompt": "user",
    "retry-prompt": "user",
    "tool-return": "tool",
}
AUTOGEN = {
    "SystemMessage": "system",
    "UserMessage": "user",
    "AssistantMessage": "assistant",
    "FunctionExecutionResultMessage": "tool",
}


def read_langchain_message(record: dict[str, Any]) -> dict[str, Any]:
    """A message out of LangChain's `{"lc", "id", "kwargs"}` or `{"type", "data"}`; anything else as it is."""
    if (
        isinstance(record.get("kwargs"), dict)
        and isinstance(record.get("id"), list)
        and record["id"]
    ):
        return record["kwargs"] | {
            "type": str(record["id"][-1]).removesuffix("Chunk").removesuffix("Message").lower()
        }
    return (
        record["data"] | {"type": record.get("type")}
        if isinstance(record.get("data"), dict) and "role" not in record
        else record
    )


def read_pydantic_messages(record: dict[str, Any]) -> list[Any]:
    """The messages in a request or a response of pydantic-ai."""
    if record["kind"] == "response":
        state = {
            name: record[name]
            for name in ("finish_reason", "state")
            if record.get(name) is not None
        }
        state |= {"status": state.pop("state")} if "state" in state else {}
        return [{"role": "assistant", "content": record["parts"]} | state]
    messages: list[Any] = (
        [{"role": "system", "content": record["instructions"]}]
        if record.get("instructions")
        else []
    )
    for part in record["parts"]:
        kind = read_part_type(part)
        role = "tool" if kind == "retry-prompt" and part.get("tool_name") else _PYDANTIC.get(kind)
        messages.append(
            {name: value for name, value in part.items() if name != "parts"} | {"role": role}
            if role
            else part
        )
    return messages


def read_autogen_messages(record: dict[str, Any]) -> list[Any]:
    """The messages in one of AutoGen's, whose parts say what they are by their fields. Beside calls, its thought is what was said."""
    content = record.get("content")
    parts = content if isinstance(content, list) else [content]
    role, thought = AUTOGEN[record["type"]], record.get("thought")
    if role == "tool":
        return [
            part | {"role": role, "tool_call_id": part.get("call_id")}
            if isinstance(part, dict)
            else None
            for part in parts
        ]
    calls = [part for part in parts if isinstance(part, dict) and "arguments" in part]
    if calls:
        others = [
            mark_unread("part beside calls")
            for part in parts
            if not any(part is call for call in calls)
        ]
        return [{"role": role, "content": thought, "tool_calls": calls}, *others]
    return [{"role": role, "content": content, "reasoning": thought}]
