"""Values in a message, and the search for values that occurred only in removed messages.

A value is what an agent must read somewhere before it can state it: a number, an id, a date, an
address, a name, or a value of a JSON result. Ordinary words are not values. Which messages are
removed, and which turns are then not trained, belongs in `truncation`.
"""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal

from agent_pipeline.sessions.json_text import decode_arguments
from agent_pipeline.sessions.session import THOUGHT, Message, list_calls
from agent_pipeline.sessions.transcript import list_texts

MIN_SOURCE_LENGTH = 3
"""Minimum length of a value in characters. A shorter value, such as "no", is in many texts by
chance.
"""
_MAX_LEAF_LENGTH = 80
"""Maximum length of a JSON value in characters. A longer value is a text that is not repeated word
for word.
"""
_MIN_DIGITS_OF_ID = 2
_MAX_WORDS_OF_NAME = 4
_SENTENCE_CONTEXT = 20
"""Number of characters before a word that decide whether the word starts a sentence."""

_WORD = re.compile(r"[^\W_](?:[\w'’@#+./,:-]*\w)?")
_GROUPED_NUMBER = re.compile(r"\d{1,3}(?:[.,'’ ]\d{3})+")
_DECIMAL_NUMBER = re.compile(r"(\d+|\d{1,3}(?:[.,'’]\d{3})+)[.,](\d+)")
_SENTENCE_START = re.compile(r"(?:^|[.!?:;\n*>-])[\s\"'“”«»(*_-]*$")
_UNUSUAL_CHARACTERS = re.compile(r"[A-Z_@]|\d\D*\d|[^\x00-\x7f]")
"""Pattern of characters that ordinary English words lack: a capital, two digits, a sign, or another
script.
"""
_JSON_OPENS = re.compile(r"[{\[]")


@dataclass(frozen=True)
class _Word:
    """A word in a text, and its start position."""

    start: int
    text: str


class ReadableValues:
    """The values that a reader can find in texts, in whatever form they are written.

    Attributes:
        leaves: The short scalar values of JSON in messages that are not the user's.
    """

    def __init__(self, messages: Iterable[Message] = (), texts: Iterable[str] = ()) -> None:
        self._text = ""
        self._words: set[str] = set()
        self._names: set[str] = set()
        self._names_in_leaves: set[str] = set()
        self.leaves: set[str] = set()
        for text in texts:
            self._add_text(text)
        for message in messages:
            self.add_message(message)

    def add_message(self, message: Message) -> None:
        """Add the words, the calls and the results of a message."""
        for text in list_texts(message):
            self._add_text(text)
            if message["role"] == "user":
                continue
            for leaf in _find_leaves(text):
                self.leaves.add(leaf)
                words = leaf.split()
                if len(words) <= _MAX_WORDS_OF_NAME:
                    self._names_in_leaves.update(words)

    def _add_text(self, text: str) -> None:
        self._text += "\n" + text.casefold()
        for word in _find_words(text):
            self._words |= _list_forms(word.text)
            self._words.update(part for part in re.split(r"[^\w]+", word.text.casefold()) if part)
            if word.text[0].isupper() and not _starts_sentence(text, word.start):
                self._names.add(word.text.casefold())

    def has_value(self, value: str) -> bool:
        """Return whether the texts contain a value, in its own form or in another form."""
        if _list_forms(value) & self._words:
            return True
        return len(value) >= MIN_SOURCE_LENGTH and _contains_words(self._text, value.casefold())

    def has_name(self, word: str) -> bool:
        """Return whether the texts contain a word that is used as a name.

        A name has a capital letter within a sentence, or is in a short JSON value.
        """
        return word.casefold() in self._names or word in self._names_in_leaves


def find_lost_values(
    message: Message, cut_values: ReadableValues, kept_values: ReadableValues
) -> list[str]:
    """Return the values of a message that only the removed messages contained.

    Args:
        message: An assistant's message.
        cut_values: The values of the messages that were cut away.
        kept_values: The values of what the model reads before the message.
    """
    stated_values = dict.fromkeys(_find_stated_values(message, cut_values))
    return [
        value
        for value in stated_values
        if cut_values.has_value(value) and not kept_values.has_value(value)
    ]


def _find_stated_values(message: Message, cut_values: ReadableValues) -> Iterator[str]:
    for _, arguments in list_calls([message]):
        for scalar in _list_scalars(decode_arguments(arguments)):
            if len(scalar) >= MIN_SOURCE_LENGTH:
                yield scalar
    for text in (message.get("content") or "", message.get(THOUGHT) or ""):
        folded_text = text.casefold()
        for leaf in cut_values.leaves:
            if _contains_words(folded_text, leaf.casefold()):
                yield leaf
        for word in _find_words(text):
            if _looks_like_id(word.text) or _looks_like_name(word, text, cut_values):
                yield word.text


def _looks_like_id(word: str) -> bool:
    digits = sum(character.isdigit() for character in word)
    return digits >= _MIN_DIGITS_OF_ID or "_" in word or "@" in word


def _looks_like_name(word: _Word, text: str, cut_values: ReadableValues) -> bool:
    if not word.text[0].isupper() or len(word.text) < MIN_SOURCE_LENGTH:
        return False
    return not _starts_sentence(text, word.start) or cut_values.has_name(word.text)


def _find_words(text: str) -> Iterator[_Word]:
    """Yield the words of a text. Characters inside a word belong to it (`48.20`, `mia_li_3668`)."""
    for match in _WORD.finditer(text):
        yield _Word(match.start(), match.group())


def _list_forms(word: str) -> set[str]:
    """Return the forms of a value that are compared with other values.

    A number has one form, however its thousands and decimals are written.
    """
    word = word.casefold()
    forms = {word, word.removesuffix("'s").removesuffix("’s")}
    if _GROUPED_NUMBER.fullmatch(word):
        forms.add(re.sub(r"\D", "", word))
    decimal_number = _DECIMAL_NUMBER.fullmatch(word)
    if decimal_number:
        whole_digits = re.sub(r"[^0-9]", "", decimal_number[1])
        forms.add(f"{Decimal(whole_digits + '.' + decimal_number[2]).normalize():f}")
    return forms


def _starts_sentence(text: str, start: int) -> bool:
    """Return whether the word at a position is the first word of a sentence."""
    context = text[max(0, start - _SENTENCE_CONTEXT) : start]
    if not _SENTENCE_START.search(context):
        return False
    is_whole_beginning = start <= _SENTENCE_CONTEXT
    return is_whole_beginning or bool(context.strip())


def _contains_words(text: str, value: str) -> bool:
    """Return whether a text contains a value as whole words.

    Scripts without spaces between words have no word borders.
    """
    if value not in text:
        return False
    border_before = r"(?<!\w)" if value[0].isascii() else ""
    border_after = r"(?!\w)" if value[-1].isascii() else ""
    return re.search(border_before + re.escape(value) + border_after, text) is not None


def _find_leaves(text: str) -> Iterator[str]:
    """Yield the short scalar values of JSON objects and lists at any place in a text."""
    decoder = json.JSONDecoder()
    position = 0
    while (match := _JSON_OPENS.search(text, position)) is not None:
        try:
            value, position = decoder.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.end()
            continue
        for scalar in _list_scalars(value):
            if _is_leaf(scalar):
                yield scalar


def _is_leaf(scalar: str) -> bool:
    min_length = MIN_SOURCE_LENGTH if scalar.isascii() else 2
    if not min_length <= len(scalar) <= _MAX_LEAF_LENGTH:
        return False
    return _UNUSUAL_CHARACTERS.search(scalar) is not None


def _list_scalars(value: object) -> Iterator[str]:
    """Yield the texts and numbers inside a JSON value as texts."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _list_scalars(item)
    elif isinstance(value, str) and value.strip():
        yield value.strip()
    elif type(value) in (int, float):
        yield str(value)
