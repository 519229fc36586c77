"""The arguments of a call: the JSON text of one object, whatever form the record has."""

import json
from collections import Counter
from typing import Any

import msgspec

from agent_pipeline.sessions.items import MAX_DEPTH, mended_unicode

_OBJECT = msgspec.json.Decoder(dict[str, Any]).decode


def arguments_json(raw: str, damage: Counter[str]) -> str:
    """A call's arguments as the JSON text of one object; other forms are repaired where that is certain, else counted.

    NaN and infinity are no JSON; half an emoji may hide behind an escape that only decoding brings to light.
    """
    if not raw.strip():
        return "{}"
    value: Any = raw
    decoded = 0
    try:
        while isinstance(value, str) and decoded < 3:
            value, decoded = json.loads(value), decoded + 1
        if isinstance(value, dict):
            clean = mended_unicode(value, damage)
            text = json.dumps(clean, ensure_ascii=False, allow_nan=False)
            damage["double_encoded_arguments"] += decoded > 1
            return raw if decoded == 1 and clean == value else text
    except (ValueError, RecursionError):
        pass
    damage["invalid_arguments"] += 1
    return raw


def is_shallow_object(arguments: str) -> bool:
    """Whether arguments are the JSON text of an object that is nested no deeper than `MAX_DEPTH`, for certain."""
    if len(arguments) >= 2 * MAX_DEPTH and arguments.count("[") + arguments.count("{") >= MAX_DEPTH:
        return False
    try:
        _OBJECT(arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
