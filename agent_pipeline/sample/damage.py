"""How records break: what a reader of real stores meets, planted one kind at a time."""

from collections.abc import Callable
from random import Random

Texts = list[str]
"""A session's items as the JSON texts that are stored."""


def cut_json(texts: Texts, rng: Random) -> Texts:
    """One item is cut off in the middle, as by a full disk."""
    place = rng.randrange(1, len(texts))
    return [text[: len(text) // 2] if index == place else text for index, text in enumerate(texts)]


def orphan_output(texts: Texts, rng: Random) -> Texts:
    """A result whose call is missing."""
    return without_one(texts, '"function_call"', rng)


def unanswered_call(texts: Texts, rng: Random) -> Texts:
    """A call whose result never came."""
    return without_one(texts, '"function_call_output"', rng)


def empty(texts: Texts, rng: Random) -> Texts:
    """A session that was opened and never used."""
    return []


DAMAGES: dict[str, Callable[[Texts, Random], Texts]] = {
    damage.__name__: damage for damage in (cut_json, orphan_output, unanswered_call, empty)
}


def without_one(texts: Texts, kind: str, rng: Random) -> Texts:
    """The texts less one item of a type."""
    place = rng.choice([index for index, text in enumerate(texts) if f'"type": {kind}' in text])
    return texts[:place] + texts[place + 1 :]
