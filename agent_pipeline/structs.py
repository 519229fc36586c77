"""Reading JSON and plain values into typed structs, safely from several threads.

Every module that reads a value into a type calls these functions instead of msgspec's. msgspec
builds its description of a type when the type is used for the first time, and other threads can see
that description while it is half built: the process then dies with a segmentation fault
(msgspec 0.22). These functions build each description once, under a lock.

Reading without a type (`msgspec.json.decode(text)`) and writing need no description, and stay as
they are.
"""

from threading import RLock
from typing import Any, TypeVar, overload

import msgspec

T = TypeVar("T")

_lock = RLock()
_decoders: dict[Any, "msgspec.json.Decoder[Any]"] = {}


@overload
def json_decoder(kind: type[T]) -> "msgspec.json.Decoder[T]": ...
@overload
def json_decoder(kind: Any) -> "msgspec.json.Decoder[Any]": ...
def json_decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    """Return the decoder that reads JSON texts into a type. The same type has one decoder."""
    decoder = _decoders.get(kind)
    if decoder is None:
        with _lock:
            decoder = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder


@overload
def decode_json(content: bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(content: bytes | str, kind: Any) -> Any: ...
def decode_json(content: bytes | str, kind: Any) -> Any:
    """Return the value of a JSON text as an instance of a type.

    Raises:
        msgspec.ValidationError: The value does not fit the type.
        msgspec.DecodeError: The text is not JSON.
    """
    return json_decoder(kind).decode(content)


@overload
def convert_value(value: object, kind: type[T]) -> T: ...
@overload
def convert_value(value: object, kind: Any) -> Any: ...
def convert_value(value: object, kind: Any) -> Any:
    """Return a value that consists of dictionaries, lists and scalars as an instance of a type.

    Raises:
        msgspec.ValidationError: The value does not fit the type.
    """
    json_decoder(kind)  # builds the description of the type
    return msgspec.convert(value, kind)
