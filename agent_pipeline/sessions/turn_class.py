"""What kind of decision an assistant's turn is: it calls a tool, asks for something, says that it cannot, or answers.

The four classes are those of When2Call (Ross et al., 2025). A call is known by its form. The other three are told apart by wording: a
question at the end asks in any language; requests and refusals are recognised in English only, everything else is an answer.
"""

import re
from typing import Literal

from agent_pipeline.sessions.session import Message

TurnClass = Literal["call", "ask", "cannot", "answer"]

_QUESTION_MARKS = ("?", "？", "؟")
_COURTESY = re.compile(
    r"\b(?:anything|something|what) else\b|\bhow (?:can|may|else) (?:can )?i (?:help|assist)\b|\b(?:can|may) i (?:help|assist)\b"
    r"|\b(?:more|further|any other) (?:questions?|help|assistance)\b|\b(?:feel free|don't hesitate)\b",
)
_REQUEST = re.compile(
    r"\b(?:please|kindly|could you|can you|would you)\b[^.!?]{0,40}\b"
    r"(?:provide|give|tell|share|send|confirm|specify|check|enter|clarify|let me know|choose|name|repeat)\b"
    r"|\blet me know (?:which|what|when|where|who|how|if you|whether|your|the)\b"
    r"|\b(?:i|we)(?:'ll|'d| will| would| do| still|) ?(?:need|require)(?: to know)? (?:your|the|to know|a|an|some|more|which)\b",
)
_OFFER = re.compile(
    r"\b(?:would you like|shall i|should i|do you want|want me to|may i|can i|i can|please check)\b"
)
_NOT_FOUND = re.compile(
    r"\b(?:can't|cannot|can not|could not|couldn't|unable to|not able to)"
    r" (?:find|be found|see|locate|identify|tell|understand|make out|look up)\b",
)
_SYMPATHY = re.compile(
    r"\bsorry (?:to hear|about|for (?:the|any|your|this|that)|that you|you|your|it took)\b|\bapologi[sz]e for (?:the|any|your)\b",
)
_CANNOT = re.compile(
    r"\bsorry\b|\bunfortunately\b|\bi(?:'m| am) afraid\b"
    r"|\b(?:can't|cannot|can not|could not|couldn't|won't|unable to|not able to|not allowed|not permitted|not possible|impossible)\b"
    r"|\bnot eligible\b|\bno longer (?:possible|eligible|available)\b|\btoo late\b|\bnot (?:available|offered|supported)\b"
    r"|\bagainst (?:the|our|my) (?:policy|rules)\b|\bso no \w+|\bdid(?:n't| not) work\b|\bwent wrong\b"
    r"|\b(?:have|is|are) (?:no (?:tool|access|way|permission|booking|such)|not booked)\b"
    r"|\bdon't have (?:access|a tool|the ability|permission)\b"
    r"|\bfound no\b",
)
_HINTS = (
    *_QUESTION_MARKS, "no", "n't", "you", "please", "kindly", "need", "require", "sorry", "unfortunately", "afraid", "unable", "impossible",
    "too late", "against", "went wrong",
)  # fmt: skip
"""Every text in which `_REQUEST` or `_CANNOT` finds something has one of these, which are found ten times as fast."""


def classify_turn(message: Message) -> TurnClass | None:
    """The class of an assistant's message in the OpenAI form; None where it says nothing."""
    return "call" if message.get("tool_calls") else classify_text(message.get("content") or "")


def classify_text(text: str) -> TurnClass | None:
    """The class of a turn that only speaks; None for an empty text. A refusal stays one with an offer or a courtesy after it."""
    plain = (
        text.replace("\u2019", "'").strip().lower()
    )  # once: patterns that ignore case take twice as long
    if not any(map(plain.__contains__, _HINTS)):
        return "answer" if plain else None
    if not (
        _CANNOT.search(plain)
        or _REQUEST.search(plain)
        or any(mark in plain for mark in _QUESTION_MARKS)
    ):
        return "answer"
    sentences = [each for each in re.split(r"(?<=[.!?？؟])\s+|\n+", plain) if each.strip()]
    meant = [each for each in sentences if not _COURTESY.search(each)]
    asking = [each for each in meant if _is_question(each) or _REQUEST.search(each)]
    denying = [each for each in meant if _CANNOT.search(each)]
    refuses = any(_CANNOT.search(_SYMPATHY.sub("", _NOT_FOUND.sub("", each))) for each in denying)
    if asking and not (refuses and all(map(_OFFER.search, asking))):
        return "ask"
    return "cannot" if refuses or any(map(_NOT_FOUND.search, denying)) else "answer"


def _is_question(sentence: str) -> bool:
    return sentence.rstrip(" *_\"')").endswith(_QUESTION_MARKS)
