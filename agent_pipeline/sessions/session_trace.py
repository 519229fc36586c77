"""Sessions in the Session Trace Simple Format (STS), which the viewer of the Hugging Face Hub shows.

The format is described at https://huggingface.co/docs/hub/session-traces-format. The reader `pi` reads it.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from agent_pipeline.sessions.session import THOUGHT, Message

HARNESS = "agent-pipeline"
"""What the header calls the program that let the model speak."""


def format_session_trace(
    session_id: str, messages: Iterable[Message], *, model: str = "", **more: Any
) -> str:
    """Return a session as the text of an STS file.

    Args:
        session_id: The id of the session.
        messages: OpenAI chat messages.
        model: The model that wrote the assistant's messages.
        more: Further fields of the header, such as `name`. The Hub ignores those that it does not know.
    """
    head = {
        "type": "session",
        "harness": HARNESS,
        "id": session_id,
        **{name: value for name, value in more.items() if value is not None},
    }
    lines = [
        head,
        *({"type": "message", "message": _message(message, model)} for message in messages),
    ]
    return "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)


def _message(message: Mapping[str, Any], model: str) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message["role"], "content": message.get("content") or ""}
    if message["role"] == "assistant" and model:
        said["model"] = model
    if message.get(THOUGHT):
        said["reasoningContent"] = message[THOUGHT]
    if message.get("tool_calls"):
        said["toolCalls"] = [
            {"id": call.get("id", ""), "function": dict(call["function"])}
            for call in message["tool_calls"]
        ]
    if message["role"] == "tool":
        said["toolCallId"] = message.get("tool_call_id", "")
    return said
