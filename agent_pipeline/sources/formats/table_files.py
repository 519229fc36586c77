"""Parquet and Arrow tables as records, with limits on their unpacked size.

A Parquet column may store a text once and refer to it many times, and Arrow compresses its buffers.
Repeated texts therefore stay references in memory, and each row is measured before it is unpacked.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from agent_pipeline.errors import StoreError, first_line
from agent_pipeline.sources.formats.arrow_messages import unpacked_sizes
from agent_pipeline.sources.formats.fields import decoded
from agent_pipeline.sources.formats.limits import TooLargeError, check_need
from agent_pipeline.sources.formats.parquet_pages import read_page_headers

_BYTES_PER_VALUE = 8
"""Bytes that a value takes in Arrow's memory in addition to its text, for an offset or a number."""
_BYTES_PER_OBJECT = 64
"""Bytes that a value takes as a Python object in addition to its text."""


class Rows(Sequence[dict[str, Any]]):
    """The rows of a table as records.

    A column of JSON texts is decoded. A value that JSON cannot represent becomes text. A struct has
    the keys of all rows, so a key without a value counts as a key that the row does not have.

    Raises:
        StoreError: The file is damaged, or would take too much memory.
    """

    def __init__(self, path: Path) -> None:
        self._bytes_on_disk = path.stat().st_size
        self.has_empty_keys = False
        """True if a struct in one of the rows read so far had a key without a value."""
        try:
            with path.open("rb") as file:
                head = file.read(4)
            self._table = _parquet(path) if head == b"PAR1" else _arrow(path, head == b"ARRO")
            check_need(
                _BYTES_PER_OBJECT * self._table.num_rows, self._bytes_on_disk
            )  # rows may take no bytes on disk
            self._table.validate(
                full=True
            )  # Arrow trusts the offsets in a file, and would otherwise read outside of its memory
        except TooLargeError as error:
            raise StoreError(
                f"{path} is not read, because {error}, or move the file out of the store."
            ) from error
        except (pa.ArrowException, OSError, ValueError) as error:
            why = first_line(error)
            raise StoreError(
                f"{path} is not a complete Parquet or Arrow file ({why}): restore the file, or "
                "move the file out of the store."
            ) from error

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: Any) -> Any:
        """Return a row as a record.

        Raises:
            TooLargeError: The row needs too much memory.
            IndexError: There is no such row.
        """
        if index >= len(self):
            raise IndexError(index)
        row = self._table.slice(index, 1)
        check_need(
            sum(_need(chunk) for column in row.columns for chunk in column.chunks),
            self._bytes_on_disk,
        )
        try:
            record = {name: self._own_keys(value) for name, value in row.to_pylist()[0].items()}
            values = msgspec.to_builtins(record, str_keys=True, enc_hook=str)
        except (pa.ArrowException, UnicodeError, ValueError, TypeError, OverflowError) as error:
            raise StoreError(
                f"A row of a table cannot be read (row {index}: {error}): restore the file, or "
                "move the file out of the store."
            ) from error
        return {name: decoded(value) for name, value in values.items()}

    def _own_keys(self, value: object) -> object:
        """Remove the keys that have no value from the structs inside a value."""
        if isinstance(value, dict):
            kept = {key: self._own_keys(inner) for key, inner in value.items() if inner is not None}
            self.has_empty_keys |= len(kept) < len(value)
            return kept
        return [self._own_keys(inner) for inner in value] if isinstance(value, list) else value


def _parquet(path: Path) -> pa.Table:
    """Read a Parquet file as a table.

    A text that is repeated is stored in memory once.
    """
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        needed, size = 0, path.stat().st_size
        for chunk in _chunks(metadata):
            needed += _chunk_need(path, chunk)
            check_need(needed, size)
        texts = [
            column.path
            for column in file.schema
            if column.physical_type == "BYTE_ARRAY" and column.logical_type.type != "DECIMAL"
        ]
    return pq.read_table(path, read_dictionary=texts, partitioning=None)


def _chunks(metadata: pq.FileMetaData) -> Iterator[pq.ColumnChunkMetaData]:
    for group_index in range(metadata.num_row_groups):
        group = metadata.row_group(group_index)
        for column_index in range(group.num_columns):
            yield group.column(column_index)


def _chunk_need(path: Path, chunk: pq.ColumnChunkMetaData) -> int:
    """Return the bytes that a column chunk needs after it is unpacked.

    The result is the larger of the sizes that the footer and the page headers state. The footer is
    checked first, so that the pages of an honest large file are not read in vain.

    Raises:
        TooLargeError: The footer states more than is allowed.
        ValueError: A page header is damaged.
    """
    size, values = chunk.total_uncompressed_size, chunk.num_values
    check_need(size + _BYTES_PER_VALUE * values, path.stat().st_size)
    pages = list(read_page_headers(path, chunk))
    size = max(size, sum(page.unpacked for page in pages))
    values = max(values, sum(page.values for page in pages))
    return int(size + _BYTES_PER_VALUE * values)


def _arrow(path: Path, is_file: bool) -> pa.Table:
    """Read an Arrow file or stream after checking the unpacked size of its messages."""
    check_need(sum(unpacked_sizes(path, is_file)), path.stat().st_size)
    with pa.OSFile(
        str(path)
    ) as file:  # not memory-mapped, because a mapped file that shrinks would crash the process
        return (pa.ipc.open_file if is_file else pa.ipc.open_stream)(file).read_all()


def _need(array: pa.Array) -> int:
    """Return the minimum number of bytes that an array's values need as Python objects."""
    needed = _BYTES_PER_OBJECT * len(array)
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return _need(array.storage)
    if pa.types.is_dictionary(kind):
        if pa.types.is_string(kind.value_type) or pa.types.is_binary(kind.value_type):
            lengths = pc.binary_length(array.dictionary).take(array.indices)
            return needed + int(pc.sum(lengths.cast(pa.int64()), min_count=0).as_py())
        return needed + len(array) * int(array.dictionary.nbytes)
    if pa.types.is_struct(kind):
        return needed + sum(_need(field) for field in array.flatten())
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_map(kind)
    ):
        return needed + _need(_items(array))
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(
        kind
    ):  # rows may share their values
        values = int(pc.sum(pc.list_value_length(array), min_count=0).as_py())
        return needed + values * (
            _BYTES_PER_OBJECT + int(array.values.nbytes) // max(1, len(array.values))
        )
    if pa.types.is_run_end_encoded(kind):
        return needed + len(array) * int(array.values.nbytes)
    return needed + int(array.nbytes)


def _items(array: pa.Array) -> pa.Array:
    """Return the items in an array of lists or maps, limited to the slice of the array."""
    if not pa.types.is_map(array.type):
        return array.flatten()
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"]).slice(
        begin, end - begin
    )
