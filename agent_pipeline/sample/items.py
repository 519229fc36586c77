"""The conversion of events to the items that omniagents stores: OpenAI Responses items, one JSON
text per item.
"""

import json
from random import Random
from typing import Any

from agent_pipeline.sample.world import Call, Event, Result, Say, User

PREAMBLES = ("Let me check.", "One moment, please.", "I'll see to that.")

Item = dict[str, Any]


def items(system: str, events: tuple[Event, ...], preamble: bool, rng: Random) -> list[Item]:
    """Return a session as Responses items. A call's note becomes a message before the call.

    Args:
        system: The system message.
        events: The events of the session.
        preamble: Whether the first call of a turn gets a sentence before it.
        rng: The random stream for call ids and sentences.
    """
    out: list[Item] = [{"role": "system", "content": system}]
    call_id = ""
    for before, event in zip((None, *events), events, strict=False):
        match event:
            case User(text):
                out.append({"role": "user", "content": text})
            case Call(name, arguments, note):
                if preamble and isinstance(before, User):
                    note = f"{rng.choice(PREAMBLES)} {note}".rstrip()
                if note:
                    out.append(assistant(note))
                call_id = f"call_{rng.getrandbits(64):016x}"
                out.append(
                    {
                        "type": "function_call",
                        "name": name,
                        "arguments": compact(arguments),
                        "call_id": call_id,
                    }
                )
            case Result(value):
                out.append(
                    {"type": "function_call_output", "call_id": call_id, "output": compact(value)}
                )
            case Say(text):
                out.append(assistant(text))
    return out


def assistant(text: str) -> Item:
    """Return an assistant message item."""
    return {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": text}],
    }


def compact(value: object) -> str:
    """Return a value as JSON without spaces and without escaped non-ASCII characters."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
