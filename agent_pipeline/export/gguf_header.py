"""Reads a GGUF file's header: its metadata, and whether all the tensor data it announces is there.

llama.cpp says of a bad file only that it could not be loaded (the reason goes to stderr), so the file is looked at before it is
given to it. Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 2 and 3, little-endian.
"""

import struct
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from agent_pipeline.errors import ExportError

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
LONGEST_STRING = 1 << 26
"""Bytes; a longer string is damage, not a chat template."""


class GgufHeader(msgspec.Struct):
    """`metadata` by key; `tensors`: how many; `size`: bytes of the file."""

    metadata: dict[str, Any]
    tensors: int
    size: int

    @property
    def chat_template(self) -> str | None:
        return self.metadata.get("tokenizer.chat_template")

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", "")

    @property
    def context_length(self) -> int | None:
        """The longest context the model was made for, in tokens."""
        return self.metadata.get(f"{self.architecture}.context_length")


def read_header(path: Path) -> GgufHeader:
    """The header of a GGUF file.

    Raises `ExportError` where the file is missing, is no GGUF, or ends before its header or its tensor data does.
    """
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise ExportError(f"{path} is no GGUF file (its first four bytes say so): export it again.")
            version, tensors, pairs = _read(file, "IQQ")
            if version not in (2, 3):
                raise ExportError(f"{path} is GGUF version {version}, and 2 and 3 are what can be read: export it again.")
            metadata = dict(_pair(file) for _ in range(pairs))
            last_offset = max((_tensor_offset(file) for _ in range(tensors)), default=-1)
            alignment = metadata.get("general.alignment", 32)
            data_start = -(-file.tell() // alignment) * alignment
    except OSError as error:
        raise ExportError(f"The GGUF file {path} can't be read ({error.strerror}): export it again.") from error
    except (EOFError, struct.error, UnicodeDecodeError, KeyError, MemoryError) as error:
        raise ExportError(f"The GGUF file {path} has a damaged header: export it again.") from error
    # The last tensor's exact length depends on its type; that it begins inside the file shows every cut but one inside it, and
    # that one llama.cpp notices itself.
    if tensors and data_start + last_offset >= size:
        raise ExportError(f"The GGUF file {path} ends before its last tensor begins ({size} bytes): it was cut off, export it again.")
    return GgufHeader(metadata=metadata, tensors=tensors, size=size)


def _read(file: BinaryIO, form: str) -> tuple:
    packed = struct.Struct("<" + form)
    raw = file.read(packed.size)
    if len(raw) < packed.size:
        raise EOFError
    return packed.unpack(raw)


def _string(file: BinaryIO) -> str:
    (length,) = _read(file, "Q")
    if length > LONGEST_STRING:
        raise EOFError
    raw = file.read(length)
    if len(raw) < length:
        raise EOFError
    return raw.decode("utf-8")


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == STRING:
        return _string(file)
    if kind == ARRAY:
        item, length = _read(file, "IQ")
        if item in SCALARS:
            if length > LONGEST_STRING:
                raise EOFError
            return list(_read(file, f"{length}{SCALARS[item]}"))
        return [_value(file, item) for _ in range(length)]
    return _read(file, SCALARS[kind])[0]


def _pair(file: BinaryIO) -> tuple[str, Any]:
    key = _string(file)
    return key, _value(file, _read(file, "I")[0])


def _tensor_offset(file: BinaryIO) -> int:
    """One tensor's description (name, dimensions, type), of which only the offset into the data is of use here."""
    _string(file)
    (dimensions,) = _read(file, "I")
    _read(file, f"{dimensions}QI")
    return _read(file, "Q")[0]
