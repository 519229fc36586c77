"""Sizes of the pages of a Parquet file after they are unpacked.

A page states its unpacked size in its own header, and Arrow reserves that size. The file's footer
may state less. The headers are read here before Arrow reads the pages. A page header is a struct in
Thrift's compact protocol, of which only these fields are looked at:

    PageHeader            2: unpacked bytes, 3: packed bytes, 5: data page, 7: dictionary, 8: data
    page 2 data page, dictionary 1: number of values

No library that is installed reads page headers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

_WINDOW = 64 << 10
"""Number of bytes that are read for a page header. A header with long statistics needs more."""
_LARGEST_HEADER = 16 << 20
_MAX_DEPTH = 16
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(
    13
)
_UNPACKED, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2 = 2, 3, 5, 7, 8
_VALUES = 1


@dataclass(frozen=True)
class PageHeader:
    """The page sizes that the header of a Parquet page states.

    Attributes:
        unpacked: Size of the page in bytes after it is unpacked.
        values: Number of values in the page.
    """

    unpacked: int
    values: int


def read_page_headers(path: Path, chunk: Any) -> Iterator[PageHeader]:
    """Yield the headers of all pages of a column chunk.

    Args:
        path: The file.
        chunk: pyarrow's metadata of the column chunk.

    Raises:
        ValueError: A header is damaged.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    end = start + chunk.total_compressed_size
    with path.open("rb") as file:
        while start < end:
            fields, length = _read_struct_at(file, start)
            sizes = [fields.get(_UNPACKED), fields.get(_PACKED)]
            if not all(isinstance(size, int) and size >= 0 for size in sizes):
                raise ValueError("a page header states no size")
            pages = [fields.get(kind) for kind in (_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2)]
            values = [page.get(_VALUES, 0) for page in pages if isinstance(page, dict)]
            yield PageHeader(fields[_UNPACKED], max(values, default=0))
            start += length + fields[_PACKED]


def _read_struct_at(file: BinaryIO, offset: int) -> tuple[dict[int, Any], int]:
    """Return the fields of a Thrift struct in a file, and the struct's length in bytes."""
    size = _WINDOW
    while True:
        file.seek(offset)
        content = file.read(size)
        reader = _CompactReader(content)
        try:
            return reader.read_struct(0), reader.position
        except IndexError as error:
            if len(content) < size or size >= _LARGEST_HEADER:
                raise ValueError("a page header is cut off") from error
            size *= 4


class _CompactReader:
    """A reader of values in the compact protocol of Apache Thrift.

    Attributes:
        position: Offset of the next value, in bytes.
    """

    def __init__(self, content: bytes) -> None:
        self._content = content
        self.position = 0

    def read_struct(self, depth: int) -> dict[int, object]:
        """Return the fields of a Thrift struct that are numbers or structs, by field id.

        Values of other types are skipped.

        Raises:
            IndexError: The content ends before the struct does.
            ValueError: The struct is damaged.
        """
        if depth > _MAX_DEPTH:
            raise ValueError("a page header is nested too deeply")
        fields: dict[int, object] = {}
        field_id = 0
        while True:
            head = self._read_byte()
            kind, delta = head & 0x0F, head >> 4
            if kind == _STOP:
                return fields
            field_id = field_id + delta if delta else self._read_number()
            fields[field_id] = None if kind in (_TRUE, _FALSE) else self._read_value(kind, depth)

    def _read_value(self, kind: int, depth: int) -> object:
        """Read a number or a struct and return it.

        Skip a value of any other type and return None.
        """
        if kind in (_I16, _I32, _I64):
            return self._read_number()
        if kind == _STRUCT:
            return self.read_struct(depth + 1)
        if kind in (_TRUE, _FALSE, _BYTE):
            self._skip(1)
        elif kind == _DOUBLE:
            self._skip(8)
        elif kind == _BINARY:
            self._skip(self._read_varint())
        elif kind in (_LIST, _SET):
            head = self._read_byte()
            count = head >> 4 if head >> 4 < 15 else self._read_varint()
            for _ in range(count):
                self._read_value(head & 0x0F, depth + 1)
        elif kind == _MAP:
            count = self._read_varint()
            kinds = self._read_byte() if count else 0
            for _ in range(count):
                self._read_value(kinds >> 4, depth + 1)
                self._read_value(kinds & 0x0F, depth + 1)
        else:
            raise ValueError(f"a page header has a value of the unknown kind {kind}")
        return None

    def _read_number(self) -> int:
        """Return a signed number that is stored in zigzag encoding."""
        zigzag = self._read_varint()
        return (zigzag >> 1) ^ -(zigzag & 1)

    def _read_varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7
            if shift > 63:
                raise ValueError("a page header has a number that is too long")

    def _read_byte(self) -> int:
        byte = self._content[self.position]
        self.position += 1
        return byte

    def _skip(self, count: int) -> None:
        self.position += count
        if self.position > len(self._content):
            raise IndexError
