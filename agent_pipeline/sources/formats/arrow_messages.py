"""Sizes of the messages of an Arrow file after they are unpacked.

Arrow's buffers may be packed with LZ4 or Zstandard. Each packed buffer begins with its unpacked
size, which Arrow reserves at once. The sizes are read here before Arrow reads the file. A message
is a Flatbuffers table, of which only these fields are looked at:

    Message     1: kind of header, 2: header (a record batch, or a dictionary with one in it)
    RecordBatch 2: buffers (offset and length in the body), 3: compression
    Dictionary  1: record batch
"""

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

_MAGIC_BYTES = 8
_DICTIONARY, _RECORD_BATCH = 2, 3


def unpacked_sizes(path: Path, is_file: bool) -> Iterator[int]:
    """Yield the size in bytes of each message of an Arrow file or stream after it is unpacked.

    Raises:
        pa.ArrowException: The file is damaged.
        ValueError: A message is damaged.
    """
    with pa.OSFile(str(path)) as file:
        if is_file:  # a file is a stream after its magic bytes
            file.seek(_MAGIC_BYTES)
        for message in pa.ipc.MessageReader.open_stream(file):
            if message.body is not None:
                yield _unpacked_size(bytes(message.metadata), message.body)


def _unpacked_size(metadata: bytes, body: pa.Buffer) -> int:
    try:
        message = _Table(metadata, _pointer(metadata, 0))
        kind_offset, batch = message.field_offset(1), message.table(2)
        if batch is not None and kind_offset and metadata[kind_offset] == _DICTIONARY:
            batch = batch.table(1)
        if batch is None or batch.table(3) is None:
            return int(body.size)
        return sum(_unpacked_buffers(batch, body))
    except (struct.error, IndexError) as error:
        raise ValueError(f"a message is damaged: {error}") from error


def _unpacked_buffers(batch: "_Table", body: pa.Buffer) -> Iterator[int]:
    slot = batch.field_offset(2)
    if not slot:
        return
    vector = _pointer(batch.data, slot)
    (count,) = struct.unpack_from("<I", batch.data, vector)
    content = memoryview(body)
    for index in range(count):
        offset, length = struct.unpack_from("<qq", batch.data, vector + 4 + 16 * index)
        if length >= 8:
            (unpacked,) = struct.unpack_from("<q", content, offset)
            yield length if unpacked < 0 else unpacked  # -1 means that this buffer is not packed


class _Table:
    """A table in a Flatbuffers message, given the message's bytes and the table's offset."""

    def __init__(self, data: bytes, begin: int) -> None:
        self.data, self._begin = data, begin
        (offset,) = struct.unpack_from("<i", data, begin)
        self._fields = begin - offset

    def field_offset(self, field: int) -> int:
        """Return the offset of a field in `data`, or 0 if the table does not have the field."""
        (size,) = struct.unpack_from("<H", self.data, self._fields)
        if 4 + 2 * field >= size:
            return 0
        (offset,) = struct.unpack_from("<H", self.data, self._fields + 4 + 2 * field)
        return self._begin + offset if offset else 0

    def table(self, field: int) -> "_Table | None":
        """Return the nested table that a field contains, or None if the field is missing."""
        slot = self.field_offset(field)
        return _Table(self.data, _pointer(self.data, slot)) if slot else None


def _pointer(data: bytes, slot: int) -> int:
    (offset,) = struct.unpack_from("<I", data, slot)
    return slot + int(offset)
