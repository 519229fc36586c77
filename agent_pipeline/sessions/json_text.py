"""Values as JSON that can be stored, and a call's arguments: the JSON text of one object, whatever form the record has."""

import json
import re
from collections import Counter
from typing import Any

import msgspec

MAX_DEPTH = 100
"""How deep a value may be nested."""

_OBJECT = msgspec.json.Decoder(dict[str, Any]).decode
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
_SURROGATES = re.compile("[\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Whether a text can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """A text with U+FFFD for each lone surrogate (half an emoji, cut off), which no UTF-8 can hold."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def parse_json(text: str) -> Any:
    """`json.loads`, which also takes what msgspec is too strict for (NaN, half an emoji), at msgspec's speed."""
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return json.loads(text)


def make_storable(value: Any, damage: Counter[str], depth: int = MAX_DEPTH) -> Any:
    """A JSON value whose texts can all be written as UTF-8; each that could not is counted as `invalid_unicode`.

    Raises:
        ValueError: the value is nested deeper than `depth`: whoever walks it after us would end in a RecursionError.
    """
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str) and not is_storable(value):
        damage["invalid_unicode"] += 1
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {
            make_storable(key, damage): make_storable(each, damage, depth - 1)
            for key, each in value.items()
        }
    if isinstance(value, list):
        return [make_storable(each, damage, depth - 1) for each in value]
    return value


def dump_json(value: Any) -> str | None:
    """A value as JSON text (NaN as it is: whoever needs strict JSON decides); `None` where it is nested too deeply."""
    try:
        make_storable(value, Counter())  # for its depth
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def dump_json_line(record: Any) -> str:
    """One record as a line with its newline.

    Raises:
        ValueError: it has a NaN or an infinity, which are no JSON.
    """
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def parse_object(value: Any) -> dict[str, Any] | None:
    """An object, or the one that a JSON text is; `None` for anything else (invalid JSON, a bare list)."""
    try:
        value = parse_json(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def decode_arguments(arguments: Any) -> Any:
    """A call's arguments as an object where they are the JSON text of one; anything else (invalid JSON, a bare list) stays as it is."""
    found = parse_object(arguments)
    return arguments if found is None else found


def has_repeated_key(text: str) -> bool:
    """Return whether an object in a JSON text has a key twice. Readers of JSON keep one of the two values, and which one differs."""
    keys = _KEY.findall(text)
    if len(set(keys)) == len(keys) and not any("\\" in key for key in keys):
        return False
    repeats = 0

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal repeats
        made = dict(pairs)
        repeats += len(pairs) - len(made)
        return made

    try:
        json.loads(text, object_pairs_hook=object_of)
    except (ValueError, RecursionError):
        return False
    return repeats > 0


def repair_arguments(raw: str, damage: Counter[str]) -> str:
    """A call's arguments as the JSON text of one object; other forms are repaired where that is certain, else counted.

    NaN and infinity are no JSON. Nobody knows which value of a key that stands twice was meant. Half an emoji may hide behind an escape
    that only decoding brings to light.
    """
    if not raw.strip():
        return "{}"
    value: Any = raw
    decoded = 0
    try:
        text = raw
        while isinstance(value, str) and decoded < 3:
            text = value
            value, decoded = parse_json(value), decoded + 1
        if isinstance(value, dict) and not has_repeated_key(text):
            clean = make_storable(value, damage)
            text = json.dumps(clean, ensure_ascii=False, allow_nan=False)
            damage["double_encoded_arguments"] += decoded > 1
            return raw if decoded == 1 and clean == value else text
    except (ValueError, RecursionError):
        pass
    damage["invalid_arguments"] += 1
    return raw


def is_shallow_object(arguments: str) -> bool:
    """Whether arguments are the JSON text of an object without repeated keys, nested no deeper than `MAX_DEPTH`, for certain."""
    if has_repeated_key(arguments):
        return False
    if len(arguments) >= 2 * MAX_DEPTH and arguments.count("[") + arguments.count("{") >= MAX_DEPTH:
        return False
    try:
        _OBJECT(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
