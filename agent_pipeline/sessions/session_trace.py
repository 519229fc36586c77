"""Sessions in the Session Trace Simple Format (STS), which the Hugging Face Hub's viewer shows.

Only writing belongs here; the reader `pi` reads the format. The format is described at
https://huggingface.co/docs/hub/session-traces-format.
"""

import json
from collections.abc import Iterable

from agent_pipeline.json_types import JsonObject
from agent_pipeline.sessions.session import THOUGHT, Message

HARNESS = "agent-pipeline"
"""Name of this program, written into the header as the program that ran the model."""


def format_session_trace(
    session_id: str, messages: Iterable[Message], *, model: str = "", **header_fields: object
) -> str:
    """Return a session as the text of an STS file.

    Args:
        session_id: The id of the session.
        messages: OpenAI chat messages.
        model: The model that wrote the assistant's messages.
        header_fields: Further fields of the header, such as `name`. The Hub ignores unknown fields.
    """
    header: JsonObject = {"type": "session", "harness": HARNESS, "id": session_id}
    header |= {name: value for name, value in header_fields.items() if value is not None}
    records = [header]
    for message in messages:
        records.append({"type": "message", "message": _format_message(message, model)})
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _format_message(message: Message, model: str) -> JsonObject:
    """Return a message with the field names of STS."""
    fields: JsonObject = {"role": message["role"], "content": message.get("content") or ""}
    if message["role"] == "assistant" and model:
        fields["model"] = model
    if message.get(THOUGHT):
        fields["reasoningContent"] = message[THOUGHT]
    if message.get("tool_calls"):
        fields["toolCalls"] = [
            {"id": call.get("id", ""), "function": dict(call["function"])}
            for call in message["tool_calls"]
        ]
    if message["role"] == "tool":
        fields["toolCallId"] = message.get("tool_call_id", "")
    return fields
