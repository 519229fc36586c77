"""New names for tools and parameters, made from the words of the old name or at random.

A name that is made from the words of the old name still tells what the tool does, so a model can
choose the tool although no description explains it. Which names of a row are replaced belongs in
`masking`.
"""

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from random import Random
from string import ascii_lowercase
from typing import Literal

NameKind = Literal["tool", "parameter"]

LONGEST_NAME = 64
"""Maximum number of characters in a name that OpenAI's API accepts."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_VERBS = (
    ("get", "find", "look up", "fetch", "search", "retrieve", "query", "show"),
    ("list", "list all", "enumerate"),
    ("create", "add", "make", "new"),
    ("delete", "remove", "erase"),
    ("cancel", "void", "call off", "revoke"),
    ("update", "change", "edit", "modify"),
    ("send", "dispatch", "transmit"),
    ("refund", "reimburse", "pay back"),
    ("check", "verify", "validate"),
    ("book", "reserve"),
    ("transfer", "hand over", "pass on"),
    ("calculate", "compute", "work out"),
    ("exchange", "swap"),
    ("close", "end", "finish"),
    ("start", "begin", "launch"),
    ("run", "execute"),
    ("reply", "answer", "respond"),
    ("notify", "inform", "alert"),
    ("schedule", "arrange"),
    ("write", "save", "store"),
)
"""Groups of verbs with the same meaning in names of tools."""

_NOUNS = (
    ("id", "identifier", "ref", "key"),
    ("amount", "sum", "total"),
    ("query", "search text", "search term", "q"),
    ("reason", "cause"),
    ("message", "text", "body"),
    ("limit", "max results"),
    ("email", "email address", "mail"),
    ("phone", "phone number"),
    ("date", "day"),
    ("city", "town"),
)
"""Groups of nouns with the same meaning in names of parameters."""

_AFFIXES: dict[NameKind, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "tool": (
        ("", "do", "issue", "api", "run", "tool", "execute", "agent", "x", "my"),
        ("", "tool", "v2", "request", "action", "now", "fn", "3"),
    ),
    "parameter": (
        ("", "the", "in", "for", "given", "p", "arg"),
        ("", "value", "param", "field", "arg", "1", "input"),
    ),
}
"""Words that may stand before and after the words of a name."""


def split_name(name: str) -> list[str]:
    """Return the words of a name in lower case.

    >>> split_name("findOrders_v2")
    ['find', 'orders', 'v', '2']
    """
    return [word.lower() for word in _WORD.findall(name)]


def is_plain_word(name: str) -> bool:
    """Return whether a name looks like a word of prose, such as `refund`."""
    return name.isascii() and name.isalpha() and name[1:].islower()


@lru_cache(maxsize=4096)  # rows of an agent have the same names
def list_readable_names(name: str, kind: NameKind, keeps_words: bool = False) -> tuple[str, ...]:
    """Return names that mean the same as a name, without the name itself.

    Args:
        name: The name.
        kind: What is named.
        keeps_words: Whether every new name contains the words of the old name.
    """
    words = split_name(name)
    if not words or not name.isascii():
        return ()
    phrasings = [words] if keeps_words else list(_list_phrasings(words, kind))
    prefixes, suffixes = _AFFIXES[kind]
    names: dict[str, None] = {}
    for phrasing in phrasings:
        for prefix in prefixes:
            for suffix in suffixes:
                if prefix and suffix:
                    continue
                parts = [part for part in (prefix, *phrasing, suffix) if part]
                names.update(dict.fromkeys(_write_in_styles(parts, kind)))
    return tuple(
        new_name
        for new_name in names
        if new_name != name and new_name[0].isalpha() and len(new_name) <= LONGEST_NAME
    )


def _list_phrasings(words: Sequence[str], kind: NameKind) -> Iterator[list[str]]:
    """Yield the words, and the words with a first verb or a last noun of the same meaning."""
    yield list(words)
    for group in _VERBS if kind == "tool" else _NOUNS:
        for phrase in group:
            phrase_words = phrase.split()
            size = len(phrase_words)
            if kind == "tool" and list(words[:size]) == phrase_words:
                yield from ([*other.split(), *words[size:]] for other in group if other != phrase)
            elif kind == "parameter" and list(words[-size:]) == phrase_words:
                yield from ([*words[:-size], *other.split()] for other in group if other != phrase)


def _write_in_styles(words: Sequence[str], kind: NameKind) -> Iterator[str]:
    capitalized = [word.capitalize() for word in words]
    yield "_".join(words)
    yield words[0] + "".join(capitalized[1:])
    if kind == "tool":
        yield "".join(capitalized)
        yield "-".join(words)


def make_random_name(rng: Random) -> str:
    """Return a name without a meaning, of 5 to 9 lower-case letters."""
    return "".join(rng.choices(ascii_lowercase, k=rng.randint(5, 9)))


def have_same_meaning(name: str, other_name: str) -> bool:
    """Return whether two tool names differ only in verbs of one group, style and affixes.

    >>> have_same_meaning("get_order", "findOrder")
    True
    """
    return _find_meaning(name) == _find_meaning(other_name)


@lru_cache(maxsize=4096)
def _find_meaning(name: str) -> tuple[str, ...]:
    words = split_name(name)
    for group in _VERBS:
        for phrase in sorted(group, key=len, reverse=True):
            size = len(phrase.split())
            if words[:size] == phrase.split():
                return (group[0], *words[size:])
    return tuple(words)
