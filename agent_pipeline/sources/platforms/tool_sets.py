"""The tools that a model had when it answered, and the answers that the tools of a row explain.

A row of a conversation has one list of tools. An answer that was given with other tools would teach
a falsehood: "I cannot do that" beside the tool that does it, or a call that fits no schema.
"""

from collections import Counter
from collections.abc import Iterable

from agent_pipeline.sessions.session import dump_canonical_json
from agent_pipeline.sources.formats.fields import function_tools, section
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
    sets: list[tuple[range, frozenset[str]]] = []
    calls: dict[frozenset[str], list[Span]] = {}
    for answer in conversation.model_answers:
        tool_set = _tool_set(answer.call)
        if tool_set:
            calls.setdefault(tool_set, []).append(answer.call)
            keys = range(answer.start, answer.end)
            if any(keyed[key][1].trained for key in keys):
                sets.append((keys, tool_set))
    if len(calls) < 2 or not sets:
        return
    counts = Counter(tool_set for _, tool_set in sets)
    most = max(counts.values())
    kept = [tool_set for _, tool_set in sets if counts[tool_set] == most][-1]
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


def _tool_set(span: Span) -> frozenset[str] | None:
    """Return the tools of a model call in canonical form, or None if the call states none."""
    tools, _ = function_tools(_stated(span))
    return frozenset(map(dump_canonical_json, tools)) or None
