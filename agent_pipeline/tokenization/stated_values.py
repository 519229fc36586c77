"""Values that a message states, and whether they were only in what was cut away from its conversation.

A value is what an agent must read somewhere before it can say it: a number, an id, a date, an address, a name, or a value of a JSON
result. Ordinary words are not values.
"""

import json
import re
from collections.abc import Iterable, Iterator
from decimal import Decimal
from typing import Any

from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import THOUGHT, Message, list_calls
from agent_pipeline.sessions.transcript import list_texts

SHORTEST_SOURCE = 3
"""Characters; a shorter value (a count, "no") is in many texts by chance."""
_LONGEST_LEAF = 80
"""Characters of a JSON value that may be repeated word for word; a longer one is a text."""
_FEWEST_DIGITS = 2
_WORDS_OF_A_NAME = 4

_WORD = re.compile(r"[^\W_](?:[\w'’@#+./,:-]*\w)?")
_GROUPS = re.compile(r"\d{1,3}(?:[.,'’ ]\d{3})+")
_DECIMAL = re.compile(r"(\d+|\d{1,3}(?:[.,'’]\d{3})+)[.,](\d+)")
_STARTS_SENTENCE = re.compile(r"(?:^|[.!?:;\n*>-])[\s\"'“”«»(*_-]*$")
_IS_VALUE = re.compile(r"[A-Z_@]|\d\D*\d|[^\x00-\x7f]")
"""What an ordinary word of English does not have: a capital letter, two digits, a sign, or a letter of another script."""
_OPENS = re.compile(r"[{\[]")


class Said:
    """The values that are readable in texts, so that a value can be looked for in whatever form it was written."""

    def __init__(self, messages: Iterable[Message] = (), texts: Iterable[str] = ()) -> None:
        self._text = ""
        self._words: set[str] = set()
        self._names: set[str] = set()
        self._names_in_leaves: set[str] = set()
        self.leaves: set[str] = set()
        for text in texts:
            self._add_text(text)
        for message in messages:
            self.add(message)

    def add(self, message: Message) -> None:
        """Add what a message says, calls and returns."""
        for text in list_texts(message):
            self._add_text(text)
            if message["role"] != "user":
                leaves = set(_leaves(text))
                self.leaves |= leaves
                self._names_in_leaves.update(
                    word
                    for leaf in leaves
                    if len(leaf.split()) <= _WORDS_OF_A_NAME
                    for word in leaf.split()
                )

    def _add_text(self, text: str) -> None:
        self._text += "\n" + text.casefold()
        for start, word in _words(text):
            self._words |= _forms(word)
            self._words.update(part for part in re.split(r"[^\w]+", word.casefold()) if part)
            if word[0].isupper() and not _starts_sentence(text, start):
                self._names.add(word.casefold())

    def has(self, value: str) -> bool:
        """Tell whether a value is readable here, in this or another form."""
        return bool(_forms(value) & self._words) or (
            len(value) >= SHORTEST_SOURCE and _contains(self._text, value.casefold())
        )

    def has_name(self, word: str) -> bool:
        """Tell whether a word is used as a name here: it has a capital letter within a sentence, or is in a short JSON value."""
        return word.casefold() in self._names or word in self._names_in_leaves


def lost_values(message: Message, cut: Said, left: Said) -> list[str]:
    """Return the values that a message states and that are readable in `cut`, and not in `left`."""
    return [
        value
        for value in dict.fromkeys(_values(message, cut))
        if cut.has(value) and not left.has(value)
    ]


def _values(message: Message, cut: Said) -> Iterator[str]:
    for _, raw in list_calls([message]):
        yield from (
            leaf for leaf in _scalars(decode_arguments(raw)) if len(leaf) >= SHORTEST_SOURCE
        )
    for text in (message.get("content") or "", message.get(THOUGHT) or ""):
        folded = text.casefold()
        yield from (leaf for leaf in cut.leaves if _contains(folded, leaf.casefold()))
        for start, word in _words(text):
            is_id = sum(character.isdigit() for character in word) >= _FEWEST_DIGITS or any(
                sign in word for sign in "_@"
            )
            is_name = (
                word[0].isupper()
                and len(word) >= SHORTEST_SOURCE
                and (not _starts_sentence(text, start) or cut.has_name(word))
            )
            if is_id or is_name:
                yield word


def _words(text: str) -> Iterator[tuple[int, str]]:
    """The words of a text with their positions; signs inside a word belong to it (`48.20`, `mia_li_3668`, `2024-05-20`)."""
    for match in _WORD.finditer(text):
        yield match.start(), match.group()


def _forms(word: str) -> set[str]:
    """The forms in which a value is compared. A number has one form, however its thousands and decimals are written."""
    word = word.casefold()
    forms = {word, word.removesuffix("'s").removesuffix("’s")}
    if _GROUPS.fullmatch(word):
        forms.add(re.sub(r"\D", "", word))
    if match := _DECIMAL.fullmatch(word):
        forms.add(f"{Decimal(re.sub(r'[^0-9]', '', match[1]) + '.' + match[2]).normalize():f}")
    return forms


def _starts_sentence(text: str, start: int) -> bool:
    return bool(_STARTS_SENTENCE.search(text[max(0, start - 20) : start])) and (
        start <= 20 or bool(text[start - 20 : start].strip())
    )


def _contains(text: str, value: str) -> bool:
    """Tell whether a text has a value as whole words; scripts without spaces between words have no word borders."""
    before, after = (
        (r"(?<!\w)" if value[0].isascii() else ""),
        (r"(?!\w)" if value[-1].isascii() else ""),
    )
    return value in text and re.search(before + re.escape(value) + after, text) is not None


def _leaves(text: str) -> Iterator[str]:
    """The scalar values of JSON objects and lists in a text; words may stand around them."""
    decoder, position = json.JSONDecoder(), 0
    while (match := _OPENS.search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.end()
            continue
        yield from (leaf for leaf in _scalars(value) if _is_leaf(leaf))


def _is_leaf(leaf: str) -> bool:
    shortest = SHORTEST_SOURCE if leaf.isascii() else 2
    return shortest <= len(leaf) <= _LONGEST_LEAF and _IS_VALUE.search(leaf) is not None


def _scalars(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _scalars(each)
    elif isinstance(value, str) and value.strip():
        yield value.strip()
    elif type(value) in (int, float):
        yield str(value)
