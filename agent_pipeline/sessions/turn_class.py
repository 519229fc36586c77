"""Classification of an assistant turn: a tool call, a question, a refusal, or an answer.

The four classes come from When2Call (Ross et al., 2025). A call is recognized by its form, the
other three classes by their wording. A question at the end is recognized in any language; requests
and refusals are recognized only in English. Every other turn is an answer.
"""

import re
from typing import Literal

from agent_pipeline.sessions.session import Message

TurnClass = Literal["call", "ask", "cannot", "answer"]

_QUESTION_MARKS = ("?", "？", "؟")
_COURTESY = re.compile(
    r"\b(?:anything|something|what) else\b|\bhow (?:can|may|else) (?:can )?i (?:help|assist)\b"
    r"|\b(?:can|may) i (?:help|assist)\b"
    r"|\b(?:more|further|any other) (?:questions?|help|assistance)\b"
    r"|\b(?:feel free|don't hesitate)\b",
)
_REQUEST = re.compile(
    r"\b(?:please|kindly|could you|can you|would you)\b[^.!?]{0,40}\b"
    r"(?:provide|give|tell|share|send|confirm|specify|check|enter|clarify|let me know|choose"
    r"|name|repeat)\b"
    r"|\blet me know (?:which|what|when|where|who|how|if you|whether|your|the)\b"
    r"|\b(?:i|we)(?:'ll|'d| will| would| do| still|) ?(?:need|require)(?: to know)? "
    r"(?:your|the|to know|a|an|some|more|which)\b",
)
_OFFER = re.compile(
    r"\b(?:would you like|shall i|should i|do you want|want me to|may i|can i|i can|please check)\b"
)
_NO_FINDING = re.compile(
    r"\b(?:can't|cannot|can not|could not|couldn't|unable to|not able to)"
    r" (?:find|be found|see|locate|identify|tell|understand|make out|look up)\b",
)
_SYMPATHY = re.compile(
    r"\bsorry (?:to hear|about|for (?:the|any|your|this|that)|that you|you|your|it took)\b"
    r"|\bapologi[sz]e for (?:the|any|your)\b",
)
_REFUSAL = re.compile(
    r"\bsorry\b|\bunfortunately\b|\bi(?:'m| am) afraid\b"
    r"|\b(?:can't|cannot|can not|could not|couldn't|won't|unable to|not able to|not allowed"
    r"|not permitted|not possible|impossible)\b"
    r"|\bnot eligible\b|\bno longer (?:possible|eligible|available)\b|\btoo late\b"
    r"|\bnot (?:available|offered|supported)\b"
    r"|\bagainst (?:the|our|my) (?:policy|rules)\b|\bso no \w+|\bdid(?:n't| not) work\b"
    r"|\bwent wrong\b"
    r"|\b(?:have|is|are) (?:no (?:tool|access|way|permission|booking|such)|not booked)\b"
    r"|\bdon't have (?:access|a tool|the ability|permission)\b"
    r"|\bfound no\b",
)
_HINTS = (
    *_QUESTION_MARKS, "no", "n't", "you", "please", "kindly", "need", "require", "sorry",
    "unfortunately", "afraid", "unable", "impossible", "too late", "against", "went wrong",
)  # fmt: skip
"""Strings for a fast search. Every text that `_REQUEST` or `_REFUSAL` matches contains one of them.

A search for strings is ten times as fast as a search for the patterns.
"""


def classify_turn(message: Message) -> TurnClass | None:
    """Return the class of an assistant message (a call, a question, a refusal or an answer)."""
    if message.get("tool_calls"):
        return "call"
    return classify_text(message.get("content") or "")


def classify_text(text: str) -> TurnClass | None:
    """Return the class of a turn that does not call a tool, or None for an empty text.

    A refusal stays a refusal if an offer or a courtesy follows it.
    """
    # The text is lower-cased once, because patterns that ignore case take twice as long.
    plain = text.replace("\u2019", "'").strip().lower()
    if not plain:
        return None
    if not any(hint in plain for hint in _HINTS):
        return "answer"
    may_ask = _REQUEST.search(plain) or any(mark in plain for mark in _QUESTION_MARKS)
    if not may_ask and not _REFUSAL.search(plain):
        return "answer"
    sentences = [
        sentence
        for sentence in re.split(r"(?<=[.!?？؟])\s+|\n+", plain)
        if sentence.strip() and not _COURTESY.search(sentence)
    ]
    requests = [
        sentence for sentence in sentences if _is_question(sentence) or _REQUEST.search(sentence)
    ]
    denials = [sentence for sentence in sentences if _REFUSAL.search(sentence)]
    refuses = any(_refuses_to_act(sentence) for sentence in denials)
    only_offers = all(_OFFER.search(sentence) for sentence in requests)
    if requests and not (refuses and only_offers):
        return "ask"
    if refuses or any(_NO_FINDING.search(sentence) for sentence in denials):
        return "cannot"
    return "answer"


def _refuses_to_act(sentence: str) -> bool:
    """Return whether a sentence is a real refusal.

    Sentences such as "I cannot find it" or "sorry" alone do not count.
    """
    without_no_finding = _NO_FINDING.sub("", sentence)
    return _REFUSAL.search(_SYMPATHY.sub("", without_no_finding)) is not None


def _is_question(sentence: str) -> bool:
    """Return whether a sentence ends with a question mark."""
    return sentence.rstrip(" *_\"')").endswith(_QUESTION_MARKS)
