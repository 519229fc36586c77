"""The search for many given values in a text. The time depends on the length of the text and not on
the number of values.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import groupby

from agent_pipeline.redaction.kinds import WORDS
from agent_pipeline.redaction.scripts import is_of_script_without_blanks

_MAX_PREFIXES_TO_SEARCH = 8
_MAX_CHARACTERS_TO_COMPARE = 6


class Addresses:
    """A set of lower-case e-mail addresses that are searched in texts by their @."""

    def __init__(self, addresses: Iterable[str]) -> None:
        self._addresses = frozenset(addresses)
        self._lengths: dict[int, set[int]] = {}
        for address in self._addresses:
            self._lengths.setdefault(address.find("@"), set()).add(len(address))

    def occurrences(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the start of each address in a text, and the address."""
        position = text.find("@")
        while position >= 0:
            for before, lengths in self._lengths.items():
                start = position - before
                for length in lengths if start >= 0 else ():
                    if (address := text[start : start + length]) in self._addresses:
                        yield start, address
            position = text.find("@", position + 1)


class Values:
    """A set of private values that are searched in texts exactly as they are written.

    If `at_words` is true, only places without a letter before them are found. This makes the search
    for many values faster.
    """

    def __init__(self, kinds: Iterable[str], at_words: bool = False) -> None:
        self._values = frozenset(kinds)
        self._boundary = r"(?<![^\W\d_])" if at_words else ""
        self._prefix_length = min(map(len, self._values), default=1)
        self._lengths: dict[str, set[int]] = {}
        for value in self._values:
            self._lengths.setdefault(value[: self._prefix_length], set()).add(len(value))

    @cached_property
    def _first_characters(self) -> re.Pattern[str]:
        """Return a pattern that matches the empty string at each place where a value may begin.

        The pattern compares the first characters of the values.
        """
        beginnings = {value[:_MAX_CHARACTERS_TO_COMPARE] for value in self._values}
        return re.compile(f"{self._boundary}(?={_expression_for(sorted(beginnings))})")

    def occurrences(self, text: str) -> Iterator[tuple[int, str]]:
        """Yield the start of each value in a text, and the value."""
        size, lengths, values = self._prefix_length, self._lengths, self._values
        for start in self._starts(text):
            for length in lengths.get(text[start : start + size], ()):
                if (value := text[start : start + length]) in values:
                    yield start, value

    def _starts(self, text: str) -> Iterator[int]:
        """Yield the places where a value may begin.

        If the values have few different prefixes, a search for each prefix is faster than a test of
        every place.
        """
        if len(self._lengths) > _MAX_PREFIXES_TO_SEARCH:
            for match in self._first_characters.finditer(text):
                yield match.start()
            return
        for prefix in self._lengths:
            start = text.find(prefix)
            while start >= 0:
                yield start
                start = text.find(prefix, start + 1)

    def within(self, texts: Iterable[str], kinds: Mapping[str, str]) -> set[str]:
        """Return the values that occur in at least one of the texts. A short value must occur as a
        separate word.
        """
        return {
            value
            for text in texts
            for start, value in self.occurrences(text)
            if is_whole_word(value, kinds[value], text, start)
        }


def _expression_for(texts: list[str]) -> str:
    """Return a regular expression that matches any of the sorted texts. Common beginnings are
    compared only once.
    """
    if "" in texts:  # a text ends here, and every longer text begins with it
        return ""
    branches = []
    for first, group in groupby(texts, key=lambda text: text[0]):
        branches.append(re.escape(first) + _expression_for([text[1:] for text in group]))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def is_whole_word(value: str, kind: str, text: str, start: int) -> bool:
    """Return whether a value at a place in a text counts. Values of the kinds in `WORDS` must be
    separate words.

    Args:
        value: The value.
        kind: The kind of the value.
        text: The text.
        start: The index at which the value begins in the text.
    """
    return kind not in WORDS or not (continues(text, start) or continues(text, start + len(value)))


def continues(text: str, place: int) -> bool:
    """Return whether a word or number continues across the position between two characters.

    The letter of an escaped line end, such as the n of `\\n`, does not count as a part of a word.
    """
    if not (0 < place < len(text) and text[place - 1].isalnum() and text[place].isalnum()):
        return False
    if is_of_script_without_blanks(text[place - 1]) != is_of_script_without_blanks(text[place]):
        return False
    return not (text[place - 1] in "nrt" and text[place - 2 : place - 1] == "\\")


def lowered(text: str) -> str:
    """Return a text in lower case with the same length."""
    small = text.lower()
    return (
        small
        if len(small) == len(text)
        else "".join(low if len(low := letter.lower()) == 1 else letter for letter in text)
    )
