"""The tools that a model had when it answered, and the answers that the tools of a row explain.

A row of a conversation has one list of tools. An answer that was given with other tools would teach
a falsehood: "I cannot do that" beside the tool that does it, or a call that fits no schema.
"""

from collections.abc import Iterable

from agent_pipeline.sources.formats.fields import section
from agent_pipeline.sources.formats.offered_tools import ToolSet, choose_tool_set, make_tool_set
from agent_pipeline.sources.platforms.conversation import Conversation, key_of, untrained
from agent_pipeline.sources.platforms.spans import Span


def list_tools(calls: Iterable[Span]) -> list[object] | None:
    """Return the tools of all model calls, without repetitions.

    If two tools have the same name, the later tool counts.
    """
    named: dict[str, object] = {}
    for span in calls:
        for tool in _stated(span):
            name = section(tool, "function").get("name") or (
                tool.get("name") if isinstance(tool, dict) else None
            )
            named[str(name or tool)] = tool
    return list(named.values()) or None


def keep_one_tool_set(conversation: Conversation) -> None:
    """Choose the tools of most trained answers, and do not train the answers with other tools.

    The order of the tools does not matter. A call that states no tools may have had any.
    """
    keyed = [
        (index, item) for index, item in enumerate(conversation.items) if key_of(item) is not None
    ]
    sets: list[tuple[range, ToolSet]] = []
    calls: dict[ToolSet, list[Span]] = {}
    tools: list[object] = []
    tool_set: ToolSet = frozenset()
    for answer in conversation.model_answers:
        if tools != (stated := _stated(answer.call)):  # most calls repeat the tools of the last one
            tools, tool_set = stated, make_tool_set(stated)
        if tool_set:
            calls.setdefault(tool_set, []).append(answer.call)
            keys = range(answer.start, answer.end)
            if any(keyed[key][1].trained for key in keys):
                sets.append((keys, tool_set))
    if len(calls) < 2 or not sets:
        return
    kept = choose_tool_set([tool_set for _, tool_set in sets])
    conversation.tools = list_tools(calls[kept])
    for keys, tool_set in sets:
        if tool_set != kept:
            conversation.skipped["changed_tools"] += 1
            for key in keys:
                index, item = keyed[key]
                conversation.items[index] = untrained(item)


def _stated(span: Span) -> list[object]:
    """Return the tools that a model call states."""
    if isinstance(span.tools, list):
        return span.tools
    return [span.tools] if span.tools else []
