"""The search for private values in texts, in every form in which the values may be written.

The time of a search depends on the length of the text and not on the number of values. This module
decides which characters are replaced; `pseudonyms` decides by what. `forms` lists the forms of
numbers, `owners` finds the names of address owners, and `encoded` decodes texts.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from agent_pipeline.redaction.encoded import decode
from agent_pipeline.redaction.forms import (
    NUMERIC,
    Key,
    bank_codes,
    compact,
    digits_of,
    identity,
    part_keys,
    plain,
    spellings,
    whole_keys,
)
from agent_pipeline.redaction.kinds import KINDS
from agent_pipeline.redaction.owners import OwnerSearch, case_of
from agent_pipeline.redaction.values import Addresses, Values, continues, is_whole_word, lowered

_PRIORITIES = {kind: priority for priority, kind in enumerate(KINDS)}


class Place(NamedTuple):
    """An occurrence of a private value in a text.

    If several occurrences begin at the same character, the first in the order of these fields is
    used.

    If several places begin at the same character, the first in the order of these fields is used.

    Attributes:
        start: The index of the first character.
        priority: The position of the kind in `KINDS`.
        shortness: The negative length, so that longer places come first.
        end: The index after the last character.
        value: The value as it was detected.
        kind: The kind of the value.
        identity: A text that is equal for all forms of the value.
        part: The part of the value that stands here; empty for the whole value.
    """

    start: int
    priority: int
    shortness: int
    end: int
    value: str
    kind: str
    identity: str
    part: str


class _Target(NamedTuple):
    value: str
    kind: str
    identity: str
    part: str


class Search:
    """A search for private values in all forms in which they may be written.

    Args:
        kinds: The kind of each value.
        regions: The countries whose telephone numbers may be written without a country code.
        prompts: The texts of system messages, whose names are not private.
    """

    def __init__(
        self, kinds: Mapping[str, str], regions: tuple[str, ...] = (), prompts: Iterable[str] = ()
    ) -> None:
        self._texts: dict[str, _Target] = {}
        self._addresses: dict[str, _Target] = {}
        self._digits: dict[str, _Target] = {}
        self._ibans: dict[str, _Target] = {}
        self._endings: dict[str, _Target] = {}
        self._bank_codes: dict[str, _Target] = {}
        parts: list[tuple[Key, _Target]] = []
        for value, kind in sorted(
            kinds.items(), key=lambda entry: (_PRIORITIES[entry[1]], entry[0])
        ):
            target = self._target(value, kind, regions)
            if kind == "EMAIL" and "@" in plain(value):
                self._addresses[lowered(plain(value))] = target
                continue
            for text in spellings(kind, value):
                self._texts.setdefault(
                    text, target._replace(part=case_of(text)) if kind == "NAME" else target
                )
            if kind in NUMERIC:
                for digits in whole_keys(kind, value, regions):
                    self._digits.setdefault(digits, target)
                parts.extend((key, target) for key in part_keys(kind, value, regions))
                self._add_ending(value, target)
                if kind == "IBAN":
                    self._ibans.setdefault(compact(value), target)
                    for code, bank_code in bank_codes(value).items():
                        self._bank_codes.setdefault(code, target._replace(part=bank_code))
        for key, target in parts:
            self._digits.setdefault(key.digits, target._replace(part=key.part))
        self._values = Values(self._texts)
        self._address_values = Addresses(self._addresses)
        self._lengths = frozenset(map(len, self._digits))
        self._iban_lengths = sorted(set(map(len, self._ibans)), reverse=True)
        names = [value for value, kind in kinds.items() if kind == "NAME"]
        self.owners = OwnerSearch(self._addresses, names, prompts)

    def _target(self, value: str, kind: str, regions: tuple[str, ...]) -> _Target:
        """Return the kind and the identity of a value. If a number is another form of a known
        value, return those of the known value.
        """
        if kind in NUMERIC:
            for digits in whole_keys(kind, value, regions):
                if known := self._digits.get(digits):
                    return known
        return _Target(value, kind, identity(kind, value, regions), "")

    def _add_ending(self, value: str, target: _Target) -> None:
        digits = digits_of(value)
        if len(digits) >= _LAST_DIGITS + 3:
            self._endings.setdefault(
                digits[-_LAST_DIGITS:], target._replace(part=f"last{_LAST_DIGITS}")
            )

    def places(self, text: str, before: str = "") -> list[Place]:
        """Return the places of private values in a text, from left to right. Places may overlap.

        Args:
            text: The text to search.
            before: The characters that precede the text, such as the key of a JSON value.
        """
        places = list(self._places(text, before))
        layers = decode(text)
        for depth, layer in enumerate(layers):
            for place in self._places(layer.text, before):
                start, end = place.start, place.end
                for outer in reversed(layers[: depth + 1]):
                    start, end = outer.encoded_range(start, end)
                places.append(place._replace(start=start, end=end, shortness=start - end))
        return sorted(places)

    def depends_on_context(self, text: str) -> bool:
        """Return whether the characters before a text may decide which values it contains."""
        return bool(self._endings) or self.owners.has_single_name(lowered(text))

    def _places(self, text: str, before: str) -> Iterator[Place]:
        for start, value in self._values.occurrences(text):
            if is_whole_word(value, self._texts[value].kind, text, start):
                yield _place(start, start + len(value), self._texts[value])
        if self._addresses:
            small = lowered(text)
            for start, address in self._address_values.occurrences(small):
                yield _place(start, start + len(address), self._addresses[address])
            for named in self.owners.places(text, small, before):
                target = self._addresses[named.address]
                named_value = ("NAME", named.name) if named.name else (target.kind, target.identity)
                target = _Target(target.value, *named_value, named.part)
                yield _place(named.start, named.end, target)
        if self._digits:
            yield from self._numbers(text)
        if self._ibans:
            yield from self._accounts(text)
        if self._endings:
            yield from self._labelled(text, before)

    def _numbers(self, text: str) -> Iterator[Place]:
        """Yield the places of numbers, regardless of how their digits are grouped."""
        longest = max(self._lengths)
        for run in _DIGIT_RUN.finditer(text):
            groups = [
                (*match.span(), _ascii_digits(match.group()))
                for match in _DIGITS.finditer(text, *run.span())
            ]
            for first, (start, _, _) in enumerate(groups):
                digits = ""
                for _, end, group in groups[first : first + longest]:
                    digits += group
                    if len(digits) > longest:
                        break
                    if len(digits) in self._lengths and (target := self._digits.get(digits)):
                        is_within_word = continues(text, start) or continues(text, end)
                        if not is_within_word or (not target.part and len(digits) >= _LONG_NUMBER):
                            yield _place(_with_prefix(text, start, end), end, target)

    def _accounts(self, text: str) -> Iterator[Place]:
        for start in _IBAN_START.finditer(text):
            match = _IBAN.match(text, start.start())
            if match is None:
                continue
            ends = [
                number
                for number, character in enumerate(match.group(), match.start())
                if character.isalnum()
            ]
            account = compact(match.group())
            for length in self._iban_lengths:
                if length > len(ends):
                    continue
                if (target := self._ibans.get(account[:length])) and not continues(
                    text, ends[length - 1] + 1
                ):
                    yield _place(match.start(), ends[length - 1] + 1, target)
                    break

    def _labelled(self, text: str, before: str) -> Iterator[Place]:
        """Yield the last digits of values, and bank codes, if a label such as "ending in" precedes
        them.
        """
        for match in _SHORT_CODE.finditer(text):
            code = match.group().lower()
            ending, bank_code = self._endings.get(code), self._bank_codes.get(code)
            if ending and _is_ending(text, match.start(), match.end(), before):
                yield _place(match.start(), match.end(), ending)
            if bank_code and _BANK_LABEL.search(_words_before(text, match.start(), before)):
                yield _place(match.start(), match.end(), bank_code)

    def identity_of(self, address: str) -> str:
        """Return the identity of an e-mail address, which is equal for all forms of the address."""
        return self._addresses[address].identity

    def within(self, texts: Iterable[str]) -> set[str]:
        """Return the values that occur in at least one of the texts, in any form."""
        return {place.value for text in texts for place in self.places(text)}


def _place(start: int, end: int, target: _Target) -> Place:
    return Place(start, _PRIORITIES[target.kind], start - end, end, *target)


_LAST_DIGITS = 4
_MAX_PREFIX = 2
_LONG_NUMBER = 9
"""Minimum number of digits of a number that is also found next to letters, as in `tel4155552671`.
"""
_DASHES = "\u2010-\u2015"
_INVISIBLE = "\u00ad\u200b\u2060"
_SEPARATOR = rf"(?: [-\u2013] |[\u00a0 ]?\([\u00a0 ]?|\)[\u00a0 ./{_DASHES}-]?|[\u00a0 ./+_{_DASHES}{_INVISIBLE}-])"
_DIGIT_RUN = re.compile(rf"\d(?:{_SEPARATOR}?\d){{5,}}")
_DIGITS = re.compile(r"\d+")
_IBAN_START = re.compile(r"(?<![^\W_])[A-Za-z]{2}[ .-]?\d{2}")
_IBAN = re.compile(r"[A-Za-z]{2}[ .-]?\d{2}(?:[\u00a0 .-]?[A-Za-z0-9]){10,30}")
_SHORT_CODE = re.compile(r"(?<![A-WYZa-wyz0-9])[0-9A-Za-z]{4,5}(?![A-Za-z0-9]|[-/.:,]\d)")
_MASK = re.compile(
    r"(?:[*xX#\u2022\u00b7\u25cf\u2219]{2,}|[*#\u2022\u00b7\u25cf\u2026]|(?<![^\W_])x|\.{2,})[ "
    r"-]{0,2}$"
)
_ENDING_LABEL = re.compile(
    r"(?:(?:\bend(?:s|ed|ing)?|endet|endend|terminad[ao]|finissant|terminant|suffix|tail)\b|last[\W_]?(?:4|four)|four|4[\W_]digits"
    r"|\b(?:card|cards|visa|mastercard|amex|american "
    r"express|discover|maestro|debit|credit|account|acct|iban|ssn|pan|karte|tarjeta|carte))"
    r"(?:[\W_]*(?:in|with|on|by|are|is|of|the|my|your|his|her|this|that|our|card|number|no|digits|account|phone|ssn|iban|auf|mit|en|par|"
    r"and|was|were|as|ending|value)\b){0,6}[\W_]*$",
    re.IGNORECASE,
)
_AFTER_ENDING = re.compile(
    r"[)\s\"']{0,2}\s?(?:card|visa|mastercard|amex|debit|credit)\b", re.IGNORECASE
)
_BANK_LABEL = re.compile(
    r"(?:bank|blz|bankleitzahl|sort|branch|bic|guichet|banque|entidad|oficina|agency|abi|cab|institution)[a-z]*"
    r"(?:[\W_]*(?:code|number|no|id|is|of|the|value))*[\W_]*$",
    re.IGNORECASE,
)
_LABEL_LENGTH = 60


def _words_before(text: str, start: int, before: str) -> str:
    words = text[max(0, start - _LABEL_LENGTH) : start]
    return words if len(words) == _LABEL_LENGTH else (before + words)[-_LABEL_LENGTH:]


def _is_ending(text: str, start: int, end: int, before: str) -> bool:
    words = _words_before(text, start, before)
    return bool(
        _MASK.search(words) or _ENDING_LABEL.search(words) or _AFTER_ENDING.match(text, end)
    )


def _ascii_digits(digits: str) -> str:
    return digits if digits.isascii() else digits_of(digits)


def _with_prefix(text: str, start: int, end: int) -> int:
    """Return the index at which a number begins, including the plus and the opening brackets before
    its digits.
    """
    for _ in range(_MAX_PREFIX):
        if start and (
            text[start - 1] == "+" or (text[start - 1] == "(" and ")" in text[start:end])
        ):
            start -= 1
    return start
