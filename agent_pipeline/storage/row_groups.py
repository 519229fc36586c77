"""Rewriting a few row groups of a Parquet file: the bytes of the others are copied, neither decoded nor compressed again.

A Parquet file is row groups one after another and, at its end, a footer that says where each column of each begins (apache/parquet-format,
`README.md` and `parquet.thrift`). pyarrow can't write a footer for pages that lie there already, so this reads and writes it: Thrift's
compact protocol (apache/thrift, `doc/specs/thrift-compact-protocol.md`), as a tree whose unknown fields stay as they are.
"""

import struct
from collections.abc import Mapping
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from agent_pipeline.errors import DataError

_MAGIC = b"PAR1"
_CHUNK = 8 << 20

# Types of Thrift's compact protocol. In a struct a boolean's value is its type; in a list it is a byte.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST = range(1, 10)
_STRUCT = 12

# Field numbers of parquet.thrift.
_FILE_ROWS, _FILE_GROUPS = 3, 4
_FILE_ENCRYPTION = (8, 9)
_GROUP_COLUMNS, _GROUP_ROWS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 3, 5, 7
_CHUNK_OFFSET, _CHUNK_META, _CHUNK_INDEXES = 2, 3, (4, 5, 6, 7)
_META_SIZE, _META_OFFSETS, _META_BLOOM = 7, (9, 10, 11), (14, 15)


class _Value(NamedTuple):
    """A field of a struct: `value` is an int, bytes (a double's too), a `_List` or a `_Struct`; null for a boolean, whose kind says all."""

    kind: int
    value: Any


class _List(NamedTuple):
    """A Thrift list: the kind of its items, and their values."""

    kind: int
    items: list[Any]


_Struct = dict[int, _Value]


def rewrite(source: BinaryIO, target: BinaryIO, groups: Mapping[int, pa.Table], **options: Any) -> None:
    """Copy a Parquet file with other rows in some of its row groups (none: the group goes); `options` are those of `ParquetWriter`.

    The schema and its metadata stay. An index of pages or a Bloom filter, which stand outside the row groups, are left out.

    Raises:
        DataError: the file is encrypted, cut off, or no Parquet file.
    """
    footer = _footer(source)
    copied: list[_Struct] = []
    target.write(_MAGIC)
    at = len(_MAGIC)
    for number, group in enumerate(footer[_FILE_GROUPS].value.items):
        if number not in groups:
            start, size = _extent(group)
            source.seek(start)
            _copy(source, target, size)
            at = _placed(group, at - start, at, size, len(copied))
            copied.append(group)
        elif (rows := groups[number]).num_rows:
            made = BytesIO()
            with pq.ParquetWriter(made, rows.schema, **options) as writer:
                writer.write_table(rows, row_group_size=rows.num_rows)
            for new in _footer(made)[_FILE_GROUPS].value.items:
                start, size = _extent(new)
                target.write(made.getbuffer()[start : start + size])
                at = _placed(new, at - start, at, size, len(copied))
                copied.append(new)
    footer[_FILE_GROUPS] = _Value(_LIST, _List(_STRUCT, copied))
    footer[_FILE_ROWS] = _Value(_I64, sum(group[_GROUP_ROWS].value for group in copied))
    text = bytearray()
    _write_struct(text, footer)
    target.write(text + struct.pack("<I", len(text)) + _MAGIC)


def _copy(source: BinaryIO, target: BinaryIO, size: int) -> None:
    while size:
        part = source.read(min(size, _CHUNK))
        target.write(part)
        size -= len(part)


def _footer(source: BinaryIO) -> _Struct:
    end = source.seek(0, 2)
    source.seek(max(end - 8, 0))
    tail = source.read(8)
    if end < 12 or tail[4:] != _MAGIC:
        raise DataError("A file that should be a Parquet file is none, or is encrypted: materialize its asset again.")
    (size,) = struct.unpack("<I", tail[:4])
    source.seek(end - 8 - size)
    footer = _Reader(source.read(size)).struct()
    if any(field in footer for field in _FILE_ENCRYPTION):
        raise DataError("A Parquet file is encrypted: what it holds cannot be changed without its key.")
    groups = footer.setdefault(_FILE_GROUPS, _Value(_LIST, _List(_STRUCT, []))).value.items
    if any(sum(_extent(group)) > end - 8 - size for group in groups):
        raise DataError("A Parquet file ends before its last row group does: it is cut off, materialize its asset again.")
    return footer


def _extent(group: _Struct) -> tuple[int, int]:
    """Where a row group's pages begin, and how many bytes they are: its columns lie side by side."""
    metas = [column[_CHUNK_META].value for column in group[_GROUP_COLUMNS].value.items]
    starts = [min(meta[field].value for field in _META_OFFSETS if field in meta and meta[field].value > 0) for meta in metas]
    ends = [start + meta[_META_SIZE].value for start, meta in zip(starts, metas, strict=True)]
    return min(starts), max(ends) - min(starts)


def _placed(group: _Struct, shift: int, at: int, size: int, ordinal: int) -> int:
    """Tell a row group that its pages begin at `at`, `shift` bytes further than it says; the byte after its last."""
    for chunk in group[_GROUP_COLUMNS].value.items:
        meta = chunk[_CHUNK_META].value
        for fields, names in ((chunk, (_CHUNK_OFFSET,)), (meta, _META_OFFSETS)):
            for name in names:
                if name in fields and fields[name].value > 0:
                    fields[name] = _Value(_I64, fields[name].value + shift)
        for name in _CHUNK_INDEXES:
            chunk.pop(name, None)
        for name in _META_BLOOM:
            meta.pop(name, None)
    if _GROUP_OFFSET in group:
        group[_GROUP_OFFSET] = _Value(_I64, at)
    if _GROUP_ORDINAL in group:
        group[_GROUP_ORDINAL] = _Value(_I16, ordinal)
    return at + size


class _Reader:
    """Thrift's compact protocol, read into `_Value`s."""

    def __init__(self, text: bytes) -> None:
        self._text, self._at = text, 0

    def struct(self) -> _Struct:
        found: _Struct = {}
        field = 0
        while head := self._byte():
            field = field + (head >> 4) if head >> 4 else self._zigzag()
            found[field] = _Value(head & 15, self._value(head & 15))
        return found

    def _value(self, kind: int) -> Any:
        if _I16 <= kind <= _I64:
            return self._zigzag()
        if kind == _BINARY:
            return self._bytes(self._varint())
        if kind == _STRUCT:
            return self.struct()
        if kind in (_TRUE, _FALSE):
            return None
        if kind == _BYTE:
            return self._byte()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind != _LIST:  # parquet.thrift has neither sets nor maps
            raise DataError(f"A Parquet file's footer holds a value of Thrift's type {kind}, which the format has no use for.")
        head = self._byte()
        count = self._varint() if head >> 4 == 15 else head >> 4
        of = head & 15
        return _List(of, [self._byte() if of in (_TRUE, _FALSE) else self._value(of) for _ in range(count)])

    def _byte(self) -> int:
        self._at += 1
        return self._text[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._text[self._at - size : self._at]

    def _varint(self) -> int:
        byte = self._text[self._at]
        self._at += 1
        if byte < 128:
            return byte
        value, shift = byte & 127, 7
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7

    def _zigzag(self) -> int:
        value = self._varint()
        return (value >> 1) ^ -(value & 1)


def _write_struct(text: bytearray, fields: _Struct) -> None:
    last = 0
    for field, (kind, value) in sorted(fields.items()):
        if 0 < field - last < 16:
            text.append((field - last) << 4 | kind)
        else:
            text.append(kind)
            _write_zigzag(text, field)
        last = field
        _write_value(text, kind, value)
    text.append(0)


def _write_value(text: bytearray, kind: int, value: Any) -> None:
    if kind in (_I16, _I32, _I64):
        _write_zigzag(text, value)
    elif kind == _BYTE:
        text.append(value)
    elif kind == _DOUBLE:
        text += value
    elif kind == _BINARY:
        _write_varint(text, len(value))
        text += value
    elif kind == _LIST:
        text.append(min(len(value.items), 15) << 4 | value.kind)
        if len(value.items) > 14:
            _write_varint(text, len(value.items))
        for each in value.items:
            _write_value(text, _BYTE if value.kind in (_TRUE, _FALSE) else value.kind, each)
    elif kind == _STRUCT:
        _write_struct(text, value)


def _write_varint(text: bytearray, value: int) -> None:
    while value > 127:
        text.append(value & 127 | 128)
        value >>= 7
    text.append(value)


def _write_zigzag(text: bytearray, value: int) -> None:
    _write_varint(text, (value << 1) if value >= 0 else ((-value << 1) - 1))
