"""JSON as stores really hold it: NaN, control characters, half emoji and bytes that are no UTF-8 are let in; repair deals with them."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

_TOP_LEVEL = msgspec.json.Decoder(dict[str, msgspec.Raw])
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


class LazyObject(Mapping[str, Any]):
    """A JSON object of which a field is decoded when somebody asks for it: an index needs an id and not the conversation beside it."""

    __slots__ = ("_fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields

    def __getitem__(self, name: str) -> Any:
        value = self._fields[name]
        if type(value) is msgspec.Raw:
            value = self._fields[name] = parsed(value)
        return value

    def get(self, name: str, default: Any = None) -> Any:  # the mixin's raises and catches a KeyError for each absent field
        return self[name] if name in self._fields else default

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def raw(self, name: str) -> Any:
        """A field as its JSON text (`msgspec.Raw`), or its value where it has been decoded; `None` where there is no such field."""
        return self._fields.get(name)


def holds_list(record: Mapping[str, Any], name: str) -> bool:
    """Whether a field is a list; of a `LazyObject` nothing is decoded to find out."""
    value = record.raw(name) if isinstance(record, LazyObject) else record.get(name)
    return bytes(memoryview(value)[:1]) == b"[" if isinstance(value, msgspec.Raw) else isinstance(value, list)


def lazy_object(raw: Any) -> LazyObject | None:
    """The object in a JSON text, or a value that is one; `None` for anything else.

    Raises:
        ValueError: the text is no JSON. Asking for a field may raise it too, since what is not asked for is not looked at closely.
    """
    if isinstance(raw, bytes | msgspec.Raw):
        try:
            return LazyObject(_TOP_LEVEL.decode(raw))
        except _REFUSED:
            raw = parsed(raw)
    return LazyObject(raw) if isinstance(raw, dict) else None
