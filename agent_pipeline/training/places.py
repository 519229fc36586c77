"""Where a turn decides between words and a call: at its first token, after each of its sentences, and at its end."""

import re

from agent_pipeline.sessions.session import Message

PLACES = 8
"""Most places of a turn at which a call may begin: the first ones, and the end of the words."""

_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+|\n+")


def call_places(words: str) -> list[int]:
    """The positions in a turn's words, stripped, at which a call may begin."""
    return list(dict.fromkeys([*[0, *(match.start() for match in _SENTENCE_END.finditer(words))][: PLACES - 1], len(words)]))


def deciding_spans(message: Message, text: str) -> list[tuple[int, int]]:
    """The character ranges [start, end) of `text`, an assistant's message as rendered, that say whether it calls, and what.

    At each place the character that follows; where its first call begins, all up to the end of the tool's name. Only the first character
    where the template does not write the words as they are.
    """
    words = (message.get("content") or "").strip()
    begin = text.find(words)
    if begin < 0:
        return [(0, 1)]
    spans = [(begin + place, begin + place + 1) for place in call_places(words)]
    for call in (message.get("tool_calls") or [])[:1]:
        at = text.find(call["function"]["name"], begin + len(words))
        if at >= 0:
            spans[-1] = (begin + len(words), at + len(call["function"]["name"]))
    return spans
