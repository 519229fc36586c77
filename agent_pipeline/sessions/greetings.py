"""Detection of user messages that contain only a greeting.

Many sessions begin with "Hi" or "Hello, can you help me?". Such a message does not state a task.
`greeting_words` lists the words that people use to greet, to thank, to ask for attention and to
announce a question. A message that consists only of these words is a greeting.
"""

import re
import unicodedata
from collections.abc import Sequence

from agent_pipeline.sessions.greeting_words import SPACED, UNSPACED
from agent_pipeline.sessions.session import Message

_WORD = re.compile(r"[^\W_]+(?:[-'][^\W_]+)*")
_MAX_GREETING_CHARACTERS = 200
"""Maximum number of characters of a greeting."""


def _normalize(text: str) -> str:
    """Return a text in lower case and with one kind of apostrophe."""
    return unicodedata.normalize("NFKC", text).casefold().replace("’", "'").replace("`", "'")


_GREETING_WORDS = frozenset(_WORD.findall(_normalize(SPACED)))
_UNSPACED_PHRASES = sorted(_normalize(UNSPACED).split(), key=len, reverse=True)
_UNSPACED_GREETING = re.compile("|".join(map(re.escape, _UNSPACED_PHRASES)))


def says_something(text: str) -> bool:
    """Return whether a message has a topic and is not only a greeting.

    Example:
        >>> [says_something(text) for text in ("Hi!", "Hello, can you help me?", "Hi, cancel it")]
        [False, False, True]
    """
    if len(text) > _MAX_GREETING_CHARACTERS:
        return True
    words = _WORD.findall(_UNSPACED_GREETING.sub(" ", _normalize(text)))
    return any(
        word not in _GREETING_WORDS and _shorten_end(word) not in _GREETING_WORDS for word in words
    )


def _shorten_end(word: str) -> str:
    """Return a word without repeated letters at its end: `hiii` becomes `hi`."""
    return re.sub(r"(\w)\1+$", r"\1", word)


def find_request_end(messages: Sequence[Message]) -> int | None:
    """Return the index after the first user message that is more than a greeting.

    The result is None if there is no such message.
    """
    for index, message in enumerate(messages):
        if message["role"] == "user" and says_something(message["content"] or ""):
            return index + 1
    return None
