"""A session's history as items (01 A1): what OpenAI's Responses API and Agents SDK keep of a conversation.

An item is a message, a `function_call`, a `function_call_output`, `reasoning`, … A reader of a store that keeps items gives them as they
are recorded (its member `histories`); of any other store they are made of the messages.
"""

from collections.abc import Iterator

from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.items import Item
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import TraceSource


def histories(source: TraceSource, key: PartitionKey) -> Iterator[tuple[Session, list[Item]]]:
    """Every session of a partition with its items; raises what `TraceSource.sessions` raises."""
    recorded = getattr(source, "histories", None)
    if recorded is not None:
        yield from recorded(key)
        return
    for session in source.sessions(key):
        yield session, items_of(session)


def items_of(session: Session) -> list[Item]:
    """A session's messages, and what was thought before each, as items; `items.to_messages` is the way back."""
    thoughts: dict[int, list[str]] = {}
    for each in session.reasoning:
        thoughts.setdefault(each["message"], []).append(each["text"])
    items: list[Item] = []
    for at, message in enumerate(session.messages):
        items += [{"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]} for text in thoughts.get(at, ())]
        if message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": message["tool_call_id"], "output": message["content"]})
            continue
        calls = message.get("tool_calls") or ()
        if message["content"] or not calls:
            items.append({"type": "message", "role": message["role"], "content": message["content"]})
        items += [{"type": "function_call", **call["function"], "call_id": call["id"]} for call in calls]
    return items
