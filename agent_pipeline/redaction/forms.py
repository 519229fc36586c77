"""The forms in which a private value may be written, and the identity that all forms of a value
share.

For example, a telephone number may have a country code or not, a card number may have blanks or
not, and an address may have any case and any tag. Parts that give the value away are forms too,
such as the last four digits of a card or the bank code in an IBAN.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import NamedTuple

from agent_pipeline.redaction.encoded import decode

NUMERIC = frozenset({"PHONE", "CARD", "IBAN", "SSN", "PASSPORT", "NATIONAL_ID", "ACCOUNT"})
"""Kinds whose values are numbers that people write with and without separators."""

FEWEST_DIGITS = 7
"""Minimum number of digits for a search with arbitrary separators. Shorter numbers are searched
only as they were written, because they would be found within other numbers.
"""

_FEWEST_DIGITS_OF_PART = 6
_LONGEST_NATIONAL_PREFIX = 2
_NOT_DIGITS = re.compile(r"\D+")
_NOT_WORD = re.compile(r"[\W_]+")
_TAG = re.compile(r"(?<=.)\+[^@]*(?=@)")


class Key(NamedTuple):
    """A run of digits that is enough to reveal a private value.

    Attributes:
        digits: The digits.
        part: The part of the value that the digits are; empty for the whole value.
    """

    digits: str
    part: str


def identity(kind: str, value: str, regions: tuple[str, ...]) -> str:
    """Return a text that is equal for all forms of a value.

    Args:
        kind: The kind of the value.
        value: The value in any form.
        regions: Countries (ISO 3166 codes) whose telephone numbers may be written without a country
            code.
    """
    if kind == "PHONE":
        number = _telephone(plain(value), regions)
        return f"+{number[0]}{number[1]}" if number else digits_of(value).lstrip("0")
    text = plain(value).casefold()
    if "@" in text:
        return _TAG.sub("", text)
    return _NOT_WORD.sub("", text) or text


def plain(value: str) -> str:
    """Return a value with its encoded characters decoded."""
    layers = decode(value)
    return layers[-1].text if layers else value


def digits_of(value: str) -> str:
    """Return the digits of a value as ASCII digits."""
    digits = _NOT_DIGITS.sub("", value)
    return (
        digits if digits.isascii() else "".join(str(unicodedata.decimal(digit)) for digit in digits)
    )


def whole_keys(kind: str, value: str, regions: tuple[str, ...]) -> set[str]:
    """Return the runs of digits that stand for the whole of a numeric value.

    Args:
        kind: The kind of the value.
        value: The value.
        regions: The countries whose telephone numbers may lack the country code.
    """
    value = plain(value)
    if kind == "IBAN" or (kind != "PHONE" and any(character.isalpha() for character in value)):
        return set()
    digits = digits_of(value)
    keys = {digits}
    if kind == "PHONE":
        number = _telephone(value, regions)
        keys |= (
            _telephone_keys(*number) if number else {digits.lstrip("0"), "0" + digits.lstrip("0")}
        )
    return {key for key in keys if len(key) >= FEWEST_DIGITS}


def part_keys(kind: str, value: str, regions: tuple[str, ...]) -> Iterator[Key]:
    """Yield the runs of digits that are parts of a value and give it away even without a label
    before them.

    Args:
        kind: The kind of the value.
        value: The value.
        regions: The countries whose telephone numbers may lack the country code.
    """
    if kind == "PHONE":
        number = _telephone(plain(value), regions)
        if number and number[0] == "1":
            yield Key(number[1][-FEWEST_DIGITS:], f"last{FEWEST_DIGITS}")
    elif kind == "IBAN":
        yield from _account_keys(compact(value))


def _account_keys(iban: str) -> Iterator[Key]:
    """Yield the beginnings and ends of the runs of digits in an IBAN's account number, such as bank
    codes and sort codes.
    """
    for run in re.finditer(rf"\d{{{_FEWEST_DIGITS_OF_PART},}}", iban[4:]):
        start, end = run.start() + 4, run.end() + 4
        for stop in range(start + _FEWEST_DIGITS_OF_PART, end):
            yield Key(iban[start:stop], f"{start + 1}-{stop}")
        for begin in range(start, end - _FEWEST_DIGITS_OF_PART + 1):
            is_last = end == len(iban)
            yield Key(iban[begin:end], f"last{end - begin}" if is_last else f"{begin + 1}-{end}")


def bank_codes(iban: str) -> dict[str, str]:
    """Return the short codes of banks and branches in an IBAN, in lower case. Each code maps to its
    position, such as `5-8`.
    """
    account = compact(iban)[4:]
    places = ((0, 4), (0, 5), (4, 8), (5, 10), (1, 6), (6, 11))
    return {
        account[start:end]: f"{start + 5}-{end + 4}" for start, end in places if end <= len(account)
    }


def compact(value: str) -> str:
    """Return only the letters and digits of a value, in lower case."""
    return _NOT_WORD.sub("", plain(value)).lower()


def spellings(kind: str, value: str) -> set[str]:
    """Return the spellings of a value that are searched literally.

    These are the value itself and, for a number that contains letters, the value in both cases and
    without separators.
    """
    texts = {value}
    if kind in NUMERIC and kind != "IBAN" and any(character.isalpha() for character in value):
        texts |= {value.lower(), value.upper(), compact(value), compact(value).upper()}
    return texts


@lru_cache(maxsize=1 << 15)
def _telephone(value: str, regions: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the country code and the national number of a telephone number, or None if the country
    is unknown.
    """
    import phonenumbers

    value = value.replace("(0)", "")
    digits = digits_of(value)
    if value.lstrip(" (").startswith("+"):
        attempts: list[tuple[str, str | None]] = [(f"+{digits}", None)]
    else:
        # First try each region, then the prefixes for calls abroad.
        attempts = [(digits, region) for region in regions]
        attempts += [
            (f"+{digits[len(prefix) :]}", None)
            for prefix in ("00", "011")
            if digits.startswith(prefix)
        ]
        attempts += (
            [(f"+{digits}", None)]
            if any(digits.startswith(str(_country_code(region))) for region in regions)
            else []
        )
    for is_right in (phonenumbers.is_valid_number, phonenumbers.is_possible_number):
        for text, region in attempts:
            try:
                number = phonenumbers.parse(text, region)
            except phonenumbers.NumberParseException:
                continue
            if is_right(number):
                return str(number.country_code), phonenumbers.national_significant_number(number)
    return None


@cache
def _country_code(region: str) -> int:
    import phonenumbers

    return phonenumbers.country_code_for_region(region)


def _telephone_keys(country: str, national: str) -> set[str]:
    return {
        national,
        country + national,
        f"00{country}{national}",
        f"011{country}{national}",
        *(prefix + national for prefix in _national_prefixes(country)),
        *(country + prefix + national for prefix in _national_prefixes(country)),
    }


@cache
def _national_prefixes(country: str) -> frozenset[str]:
    """Return the prefixes that are dialed before a national number within a country: 0 in most
    countries.
    """
    import phonenumbers

    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(country), ())
    metadata = (phonenumbers.PhoneMetadata.metadata_for_region(region) for region in regions)
    prefixes = {region.national_prefix for region in metadata if region and region.national_prefix}
    return frozenset(
        {prefix for prefix in prefixes if len(prefix) <= _LONGEST_NATIONAL_PREFIX} | {"0"}
    )
