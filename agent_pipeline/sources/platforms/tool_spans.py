"""Tool spans in a trace.

They add results to calls, and reveal calls that the messages lack.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence

import msgspec

from agent_pipeline.sessions.chat import read_call, read_result
from agent_pipeline.sessions.items import Item
from agent_pipeline.sources.platforms.conversation import (
    Conversation,
    add,
    key_of,
    open_calls,
    steps_around,
)
from agent_pipeline.sources.platforms.spans import Span


def add_results(conversation: Conversation, tools: Iterable[Span]) -> list[Span]:
    """Add the results that tool spans recorded to the last calls of a conversation.

    Returns:
        The spans whose calls no message contains.
    """
    left = [(span, *tool_items(span)) for span in tools]
    seen = Counter(key_of(item) for item in conversation.items if item.kind == "function_call")
    for call in open_calls(conversation.items):
        answers = [entry for entry in left if entry[1].call_id and entry[1].call_id == call.call_id]
        answers = answers or [entry for entry in reversed(left) if key_of(entry[1]) == key_of(call)]
        if answers:
            _, _, result = answers[0]
            add(conversation, [msgspec.structs.replace(result, call_id=call.call_id)])
            left.remove(answers[0])
            seen[key_of(call)] -= 1
    unplaced = []
    for span, call, _ in left:
        seen[key_of(call)] -= 1
        unplaced += [span] if seen[key_of(call)] < 0 else []
    return unplaced


def kind_of_tool_span(
    span: Span, conversations: Sequence[Conversation], spans: Sequence[Span]
) -> str | None:
    """Return the reason why a tool span that does not answer a call is harmless, or None.

    None means that the span shows a call that the messages lack. A span may be harmless although no
    call matches exactly: instrumentations write arguments in other forms or leave them out, and
    code may put a tool's output into a prompt. If the messages have neither the call nor its
    output, the answer depends on content that the training row would not contain.
    """
    if any(
        outer.kind == "tool"
        for outer in steps_around(span, {(step.trace, step.id): step for step in spans})
    ):
        return "nested_tool_span"
    call, result = tool_items(span)
    items = [
        item
        for conversation in conversations
        for item in (*conversation.system, *conversation.items)
    ]
    for item in items:
        is_call = item.kind == "function_call" and item.name == call.name
        if is_call and (
            span.arguments is None
            or key_of(item) == key_of(call)
            or (call.call_id and item.call_id == call.call_id)
        ):
            return "known_tool_span"
    output = result.text.strip()
    return "known_tool_span" if output and any(output in item.text for item in items) else None


def mark_failed(conversation: Conversation, tools: Sequence[Span]) -> None:
    """Mark the tool results that tool spans recorded as failed.

    A result is found by the call's id. If there is no id, calls with the same name and arguments
    are matched in order.
    """
    failed: dict[object, deque[bool]] = defaultdict(deque)
    for span in tools if any(span.error for span in tools) else ():
        failed[span.call_id or key_of(tool_items(span)[0])].append(bool(span.error))
    calls = {item.call_id: item for item in conversation.items if item.kind == "function_call"}
    for item_index, item in enumerate(conversation.items):
        if item.kind == "function_call_output" and (call := calls.get(item.call_id)):
            outcomes = failed.get(item.call_id) or failed.get(key_of(call))
            if outcomes and outcomes.popleft():
                conversation.items[item_index] = msgspec.structs.replace(item, failed=True)


def tool_items(span: Span) -> tuple[Item, Item]:
    """Return the call and the result of a tool span."""
    call = read_call({"name": span.name, "arguments": span.arguments, "call_id": span.call_id})
    return call, read_result(call.call_id, span.output, bool(span.error))
