"""Exact texts of numbers, and white space, in the JSON that a chat template writes.

Python and llama.cpp write the same number differently. If a template can take an object, llama.cpp
gives the template a call's arguments as an object, and writes `100.0` as `100` and `12345.67` as
`12345.7`. This module has both forms: a number as it was recorded, and as llama.cpp's server writes
it. Which form a message gets belongs in `rendering`.
"""

import json
import re
from typing import Any

_INTEGER = re.compile(r"-?\d+")
_FIRST_STAND_IN = 10**60
"""First number that stands in for a number's text. It is longer than any number that a server
writes and any logged id.
"""


class NumberText(str):
    """A JSON number that keeps its original text, so that `100.50` stays `100.50`."""


def parse_json(text: str) -> object:
    """Parse a JSON text, and return every number as `NumberText`.

    Raises:
        ValueError, RecursionError: The text is not JSON.
    """
    return json.loads(text, parse_float=NumberText, parse_int=NumberText)


def with_number_texts(value: object) -> object:
    """Return a JSON value with every number as a `NumberText`, written as Python writes it."""
    if isinstance(value, dict):
        return {key: with_number_texts(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [with_number_texts(item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return NumberText(json.dumps(value)) if is_number else value


def _parse_arguments(arguments: object) -> object:
    """Return a call's arguments, a JSON text or a value, with every number as `NumberText`.

    Raises:
        ValueError, RecursionError: The text is not JSON.
    """
    return parse_json(arguments) if isinstance(arguments, str) else with_number_texts(arguments)


def parse_object(arguments: object) -> dict[str, object] | None:
    """Return a call's arguments as an object in which every number is a `NumberText`.

    Returns None if the arguments are anything else.
    """
    try:
        value = _parse_arguments(arguments)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def compact_arguments(arguments: object) -> object:
    r"""Return a call's arguments as JSON text without white space between its parts.

    Each number keeps its digits. Arguments that are not an object are returned unchanged.

    >>> compact_arguments('{"amount": 100.50, "to": "M\u00fcller & Co"}')
    '{"amount":100.50,"to":"Müller & Co"}'
    """
    value = parse_object(arguments)
    return arguments if value is None else _write_compact(value)


def _write_compact(value: object) -> str:
    if isinstance(value, dict):
        pairs = [
            f"{json.dumps(key, ensure_ascii=False)}:{_write_compact(item)}"
            for key, item in value.items()
        ]
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(_write_compact(item) for item in value) + "]"
    return str(value) if isinstance(value, NumberText) else json.dumps(value, ensure_ascii=False)


def served_number(number: str) -> str:
    """Return the text that the template engine of llama.cpp writes for a JSON number.

    The engine keeps 64 bits of a whole number, and six digits of any other number. A test compares
    this with the installed llama.cpp.

    >>> [served_number(number) for number in ("100.0", "12345.67", "1e5", "9223372036854775808")]
    ['100', '12345.7', '100000', '-9223372036854775808']
    """
    if not _INTEGER.fullmatch(number):
        return f"{float(number):g}"
    whole = int(number)
    if -(2**63) <= whole < 2**64:
        return str((whole + 2**63) % 2**64 - 2**63)
    return f"{float(whole):g}"


def changed_numbers(arguments: object) -> list[str]:
    """Return the numbers in a call's arguments that the template engine of llama.cpp changes."""
    try:
        value = _parse_arguments(arguments)
    except (ValueError, RecursionError):
        return []
    return [number for number in _list_numbers(value) if served_number(number) != number]


def _list_numbers(value: object) -> list[NumberText]:
    """Return all numbers in a value that `parse_json` returned, in order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for item in value for number in _list_numbers(item)]
    return [value] if isinstance(value, NumberText) else []


class NumberWriter:
    """A writer that makes a chat template write each number as a chosen text.

    Python's JSON writes one text per number. For any other text a whole number of 61 digits stands
    in, which `restore` replaces in the rendered conversation.
    """

    def __init__(self) -> None:
        self._texts: list[str] = []

    def recorded(self, value: object) -> Any:
        """Return a value of `parse_json` whose numbers a template writes as recorded."""
        return self._replace_numbers(value, served=False)

    def served(self, value: object) -> Any:
        """Return a value of `parse_json` whose numbers a template writes as llama.cpp does."""
        return self._replace_numbers(value, served=True)

    def restore(self, rendered: str) -> str:
        """Return a rendered text with the original numbers in place of their stand-ins."""
        for index, text in enumerate(self._texts):
            rendered = rendered.replace(str(_FIRST_STAND_IN + index), text)
        return rendered

    def _replace_numbers(self, value: object, served: bool) -> object:
        if isinstance(value, dict):
            return {key: self._replace_numbers(item, served) for key, item in value.items()}
        if isinstance(value, list):
            return [self._replace_numbers(item, served) for item in value]
        if not isinstance(value, NumberText):
            return value
        return self._make_number(served_number(value) if served else str(value))

    def _make_number(self, text: str) -> object:
        """Return a number that is written as the given text, or a stand-in for the number."""
        number = _parse_python_number(text)
        if number is not None and json.dumps(number) == text:
            return number
        if text not in self._texts:
            self._texts.append(text)
        return _FIRST_STAND_IN + self._texts.index(text)


def _parse_python_number(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:  # `inf`, or more digits than Python reads
        return None
