"""The kinds of damage that readers of real stores meet. Each function adds one kind of damage to a
session.
"""

from collections.abc import Callable
from random import Random

Texts = list[str]
"""The items of a session, as the JSON texts that are stored."""


def cut_json(texts: Texts, rng: Random) -> Texts:
    """Cut off one item in the middle, as if the disk was full."""
    place = rng.randrange(1, len(texts))
    return [text[: len(text) // 2] if index == place else text for index, text in enumerate(texts)]


def orphan_output(texts: Texts, rng: Random) -> Texts:
    """Remove a tool call, so that its result has no call."""
    return without_one(texts, '"function_call"', rng)


def unanswered_call(texts: Texts, rng: Random) -> Texts:
    """Remove a tool result, so that its call has no result."""
    return without_one(texts, '"function_call_output"', rng)


def empty(texts: Texts, rng: Random) -> Texts:
    """Return no items, like a session that was opened and never used."""
    return []


DAMAGES: dict[str, Callable[[Texts, Random], Texts]] = {
    damage.__name__: damage for damage in (cut_json, orphan_output, unanswered_call, empty)
}


def without_one(texts: Texts, kind: str, rng: Random) -> Texts:
    """Return the texts of a session without one random item of a given type."""
    place = rng.choice([index for index, text in enumerate(texts) if f'"type": {kind}' in text])
    return texts[:place] + texts[place + 1 :]
