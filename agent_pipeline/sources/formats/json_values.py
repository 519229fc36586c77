"""JSON as stores really hold it: NaN, control characters, half emoji and bytes that are no UTF-8 are let in; repair deals with them."""

import json
from typing import Any

import msgspec

_REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError, TypeError)


def parsed(raw: Any) -> Any:
    """The value of a JSON text; what is neither bytes nor `msgspec.Raw` is a value already.

    Raises:
        ValueError: the text is no JSON.
    """
    if not isinstance(raw, bytes | msgspec.Raw):
        return raw
    try:
        return msgspec.json.decode(raw)
    except _REFUSED:
        pass
    try:
        return json.loads(bytes(raw).decode("utf-8", "surrogateescape"), strict=False)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parsed_object(raw: str | bytes | None) -> dict[str, Any] | None:
    """The JSON object in a text; `None` where it holds anything else."""
    try:
        value = parsed(raw.encode("utf-8", "surrogateescape") if isinstance(raw, str) else raw)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def decoded(value: Any) -> Any:
    """What a text that holds a JSON object or list stands for; any other value as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        try:
            return parsed(value.encode("utf-8", "surrogateescape"))
        except ValueError:
            pass
    return value
