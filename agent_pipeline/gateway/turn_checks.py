"""The checks of a turn of the champion, before the gateway returns it to the agent.

A turn that fails a check is not returned: the large model answers instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec

from agent_pipeline.evaluation.confidence import TurnConfidence
from agent_pipeline.judging.call_faults import find_call_fault
from agent_pipeline.judging.preconditions import NO_PRECONDITIONS, Preconditions
from agent_pipeline.models.families import parse_reply
from agent_pipeline.sessions.session import Message, Tool
from agent_pipeline.sessions.transcript import pair_calls

RULES_FILE = "traffic.json"
"""The file with the rules of all agents, next to the configuration of the gateway."""
CHAMPION = "-champion"
"""The end of the name of a model group that the champion answers."""
Act = Literal["reads", "sure", "all"]
"""Which calls of the champion are accepted: only look-ups, also sure writes, or all calls."""

ObjectionKind = Literal[
    "cut_off",
    "no_answer",
    "unreadable_call",
    "write",
    "unsure_write",
    "precondition",
    "champion_moved",
    "no_rules",
    "check_failed",
]
"""The reasons against a turn. `champion_moved`: another model is the champion now. `no_rules`: the
rules, or a precondition, cannot be read. `check_failed`: a check raised an exception.
"""


class TrafficRules(msgspec.Struct, frozen=True):
    """The rules for an agent's traffic, as the gateway reads them.

    Attributes:
        share: The share of the conversations that the champion answers, from 0 to 1.
        champion: The first 16 digits of the champion's identity; empty without a champion.
        act: Which calls of the champion are accepted.
        reads: The tools that only look things up. All other tools count as tools that write.
        threshold: The smallest confidence of a sure write; None if no write counts as sure.
        preconditions: The preconditions by tool.
        log: The folder of the logs.
        modules: The folder of the user's modules.
    """

    share: float = 0.0
    champion: str = ""
    act: Act = "all"
    reads: list[str] = []
    threshold: float | None = None
    preconditions: dict[str, list[str]] = {}
    log: str = ""
    modules: str = ""


class Objection(NamedTuple):
    """The reason why a turn of the champion is not returned.

    Attributes:
        kind: The kind of reason.
        detail: The tool, the precondition or the exception, if the reason is about one.
    """

    kind: ObjectionKind
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}" if self.detail else self.kind


class ChampionTurn(NamedTuple):
    """A turn that the champion wrote.

    Attributes:
        message: The assistant message.
        finish_reason: Why the server stopped.
        confidence: The confidence of the turn; None without log-probabilities.
    """

    message: Message
    finish_reason: str | None = None
    confidence: TurnConfidence | None = None


def find_objection(
    turn: ChampionTurn,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    rules: TrafficRules,
    preconditions: Preconditions = NO_PRECONDITIONS,
) -> Objection | None:
    """Return the first reason why a turn is not returned to the agent, or None.

    Args:
        turn: The turn.
        messages: The conversation before the turn.
        tools: The tools of the request.
        rules: The agent's rules.
        preconditions: The preconditions of `rules`, parsed.
    """
    text = str(turn.message.get("content") or "")
    calls = pair_calls([turn.message])
    if turn.finish_reason == "length":
        return Objection("cut_off")
    if not calls and not text.strip():
        return Objection("no_answer")
    if parse_reply(text, tools).is_call:
        return Objection("unreadable_call")
    for call in calls:
        if find_call_fault(call, tools):
            return Objection("unreadable_call", call.name)
    for call in calls:
        if call.name in rules.reads or rules.act == "all":
            continue
        if rules.act == "reads":
            return Objection("write", call.name)
        if not is_sure(turn.confidence, rules.threshold):
            return Objection("unsure_write", call.name)
    conversation = [*messages, turn.message]
    broken = next(preconditions.find_broken(conversation, tools, len(messages)), None)
    return Objection("precondition", broken.name) if broken else None


def is_sure(confidence: TurnConfidence | None, threshold: float | None) -> bool:
    """Return whether a whole turn is confident, and the server's grammar forced none of its tokens.

    The words before a call count, not the call: they settle what the call will be.
    """
    if confidence is None or threshold is None:
        return False
    return confidence.words >= threshold and not confidence.forced


def plain_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Return messages of a request with text content, in the form of sessions."""
    plain: list[Message] = []
    for message in messages:
        content = message.get("content")
        if isinstance(content, list):
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = "".join(text for text in parts if isinstance(text, str))
        copied: Any = {**message, "content": content or ""}
        plain.append(copied)
    return plain
