"""Whether a user's message asks for anything, or only greets.

Many sessions begin with "Hi" or "Hello, can you help me?". Such a message names no task. `greeting_words` lists the words
that people use to greet, to thank, to ask for attention and to announce a question. A message that consists of such words only says
nothing about its task.
"""

import re
import unicodedata
from collections.abc import Sequence

from agent_pipeline.sessions.greeting_words import SPACED, UNSPACED
from agent_pipeline.sessions.session import Message

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
_MOST_CHARACTERS = 200
"""A longer message is not a greeting."""


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("`", "'")


_GREETING = frozenset(_WORD.findall(_plain(SPACED)))
_UNSPACED_GREETING = re.compile(
    "|".join(map(re.escape, sorted(_plain(UNSPACED).split(), key=len, reverse=True)))
)


def says_something(text: str) -> bool:
    """Tell whether a message says what it is about.

    Example:
        >>> [says_something(text) for text in ("Hi!", "Hello, can you help me?", "Hi, cancel my booking")]
        [False, False, True]
    """
    if len(text) > _MOST_CHARACTERS:
        return True
    spaced = _UNSPACED_GREETING.sub(" ", _plain(text))
    return any(
        word not in _GREETING and _stretched(word) not in _GREETING
        for word in _WORD.findall(spaced)
    )


def _stretched(word: str) -> str:
    """A word without repeated letters at its end (`hiii`, `heyyy`)."""
    return re.sub(r"(\w)\1+$", r"\1", word)


def find_request_end(messages: Sequence[Message]) -> int | None:
    """The position after the first user message that says something; `None` if there is no such message."""
    asked = (
        at + 1
        for at, message in enumerate(messages)
        if message["role"] == "user" and says_something(message["content"] or "")
    )
    return next(asked, None)
