"""The tools that a model had when it answered, and the answers that the tools of a row explain.

A row of a conversation has one list of tools. An answer that was given with other tools would teach
a falsehood: "I cannot do that" beside the tool that does it, or a call that fits no schema.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from agent_pipeline.sources.formats.fields import section
from agent_pipeline.sources.formats.offered_tools import ToolSet, choose_tool_set, make_tool_set
from agent_pipeline.sources.platforms.conversation import (
    Conversation,
    ModelAnswer,
    leave_untrained,
    trained_answers,
)
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


@dataclass
class _Offer:
    """The tools that a model was offered when it answered.

    Attributes:
        answer: The answer.
        tool_set: The tools, or the whole tools of another call if some are missing.
        has_gap: Whether the numbers of the tools have a gap.
    """

    answer: ModelAnswer
    tool_set: ToolSet
    has_gap: bool


def keep_one_tool_set(conversation: Conversation) -> None:
    """Choose the tools of most trained answers, and do not train the answers with other tools.

    The order of the tools does not matter. A call that states no tools may have had any.
    """
    offers = _offers(conversation)
    was_incomplete = _complete(offers)
    if len({offer.tool_set for offer in offers}) < 2 and not was_incomplete:
        return
    trained = set(map(id, trained_answers(conversation)))
    offers_to_train = [offer for offer in offers if id(offer.answer) in trained]
    if not offers_to_train:
        return
    kept = choose_tool_set([offer.tool_set for offer in offers_to_train])
    same = [offer for offer in offers if offer.tool_set == kept]
    whole = [offer for offer in same if not offer.has_gap]
    conversation.tools = list_tools(offer.answer.call for offer in whole or same)
    others = [offer.answer for offer in offers_to_train if offer.tool_set != kept]
    if others:
        conversation.skipped["changed_tools"] += len(others)
        leave_untrained(conversation, others)


def _offers(conversation: Conversation) -> list[_Offer]:
    """Return the tools of the answers whose calls state tools."""
    offers = []
    tools: list[object] = []
    tool_set: ToolSet = frozenset()
    for answer in conversation.model_answers:
        if tools != (stated := _stated(answer.call)):  # most calls repeat the tools of the last one
            tools, tool_set = stated, make_tool_set(stated)
        if tool_set:
            offers.append(_Offer(answer, tool_set, None in tools))
    return offers


def _complete(offers: list[_Offer]) -> bool:
    """Complete tools of which a limit on the number of attributes dropped some.

    Tools with a gap in their numbers are incomplete. If another call has all of them and has no
    gap, its tools count.

    Returns:
        Whether any tools were completed.
    """
    whole = Counter(offer.tool_set for offer in offers if not offer.has_gap)
    was_incomplete = False
    for offer in offers:
        larger = [tool_set for tool_set in whole if offer.tool_set <= tool_set]
        if offer.has_gap and larger:
            offer.tool_set = max(larger, key=lambda tool_set: (whole[tool_set], len(tool_set)))
            was_incomplete = True
    return was_incomplete


def _stated(span: Span) -> list[object]:
    """Return the tools that a model call states."""
    if isinstance(span.tools, list):
        return span.tools
    return [span.tools] if span.tools else []
