"""JSON values, JSON texts, and the arguments of calls.

Functions that parse, write and repair JSON belong here. Functions that interpret a value do not.
"""

import json
import re
from collections import Counter
from typing import Any

import msgspec

from agent_pipeline.json_types import JsonObject
from agent_pipeline.structs import json_decoder

MAX_DEPTH = 100
"""Maximum nesting depth of a stored value."""

_MAX_ENCODINGS = 3
"""Maximum nesting of JSON strings inside JSON strings in the arguments of a call."""

_OBJECT_DECODER = json_decoder(dict[str, Any])
_KEY = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:')
_SURROGATES = re.compile("[\ud800-\udfff]")


def is_storable(text: str) -> bool:
    """Return whether a text can be written as UTF-8."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def replace_surrogates(text: str) -> str:
    """Replace each unpaired surrogate (half an emoji) by U+FFFD."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)


def parse_json(text: str) -> object:
    """Parse a text as JSON.

    msgspec parses most texts, because it is fast. Python's parser is used for NaN and unpaired
    surrogates, which msgspec refuses.
    """
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return json.loads(text)


def make_storable(value: object, damage: Counter[str], depth: int = MAX_DEPTH) -> Any:
    """Return a JSON value in which all texts can be written as UTF-8.

    Args:
        value: A JSON value.
        damage: Receives the count of changed texts as `invalid_unicode`.
        depth: Maximum nesting depth.

    Raises:
        ValueError: The value is nested deeper than `depth`, so that other functions could fail with
            a RecursionError.
    """
    if depth < 0:
        raise ValueError("nested too deeply")
    if isinstance(value, str) and not is_storable(value):
        damage["invalid_unicode"] += 1
        return replace_surrogates(value)
    if isinstance(value, dict):
        return {
            make_storable(key, damage): make_storable(inner, damage, depth - 1)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [make_storable(inner, damage, depth - 1) for inner in value]
    return value


def dump_json(value: object) -> str | None:
    """Return a value as JSON text, or None if it is nested too deeply.

    NaN is written as NaN. A caller that needs strict JSON has to check for it.
    """
    try:
        make_storable(value, Counter())  # raises if the value is nested too deeply
        return json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return None


def dump_json_line(record: object) -> str:
    """Return a record as a JSON line that ends with a line feed.

    Raises:
        ValueError: The record has a NaN or an infinity, which JSON cannot hold.
    """
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def parse_object(value: object) -> JsonObject | None:
    """Return an object unchanged, or parse a JSON text that contains an object.

    Return None for any other value.
    """
    if isinstance(value, str):
        try:
            value = parse_json(value)
        except (ValueError, RecursionError):
            return None
    return value if isinstance(value, dict) else None


def decode_arguments(arguments: object) -> object:
    """Decode a call's arguments, and return them as an object.

    Arguments that are not the JSON text of an object (invalid JSON, a bare list) are returned
    unchanged.
    """
    parsed = parse_object(arguments)
    return arguments if parsed is None else parsed


def has_repeated_key(text: str) -> bool:
    """Return whether an object in a JSON text contains the same key twice.

    JSON parsers keep only one of the two values, and parsers differ in which value they keep.
    """
    keys = _KEY.findall(text)
    if len(set(keys)) == len(keys) and not any("\\" in key for key in keys):
        return False
    repeats = 0

    def count_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
        nonlocal repeats
        fields = dict(pairs)
        repeats += len(pairs) - len(fields)
        return fields

    try:
        json.loads(text, object_pairs_hook=count_repeats)
    except (ValueError, RecursionError):
        return False
    return repeats > 0


def repair_arguments(raw: str, damage: Counter[str]) -> str:
    """Return a call's arguments as the JSON text of one object, if a certain repair exists.

    JSON inside a JSON string is decoded, and unpaired surrogates are replaced. Arguments that
    contain NaN, infinity or a repeated key stay unchanged and count as `invalid_arguments`.

    Args:
        raw: The arguments as the record has them.
        damage: Receives the counts of damage by kind.
    """
    if not raw.strip():
        return "{}"
    value: object = raw
    text = raw
    times_decoded = 0
    try:
        while isinstance(value, str) and times_decoded < _MAX_ENCODINGS:
            text = value
            value = parse_json(text)
            times_decoded += 1
        if isinstance(value, dict) and not has_repeated_key(text):
            clean = make_storable(value, damage)
            clean_text = json.dumps(clean, ensure_ascii=False, allow_nan=False)
            if times_decoded > 1:
                damage["double_encoded_arguments"] += 1
            return raw if times_decoded == 1 and clean == value else clean_text
    except (ValueError, RecursionError):
        pass
    damage["invalid_arguments"] += 1
    return raw


def is_shallow_object(arguments: str) -> bool:
    """Return whether arguments are certainly a valid JSON object.

    A valid object has no repeated key and is not nested deeper than `MAX_DEPTH`.
    """
    if has_repeated_key(arguments):
        return False
    may_be_deep = (
        len(arguments) >= 2 * MAX_DEPTH and arguments.count("[") + arguments.count("{") >= MAX_DEPTH
    )
    if may_be_deep:
        return False
    try:
        _OBJECT_DECODER.decode(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
