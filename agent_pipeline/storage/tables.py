"""Tables: Parquet files that are written next to their final place and then moved in one step.

The columns of a table do not belong here.
"""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from upath import UPath

from agent_pipeline.errors import DamageError, DataError, MissingError, name_asset_to_select
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import DESCRIPTION
from agent_pipeline.storage.filesystem import put_file, remove, sha256_file, sync
from agent_pipeline.storage.paths import Paths

MAX_ROW_GROUP = 2000
"""Maximum number of rows per row group."""
_PARQUET_OPTIONS: dict[str, object] = {
    "compression": "zstd",
    "compression_level": 1,
    "data_page_size": 8 << 20,
    "write_statistics": ["session_id"],
}
_SEAL_NAME = b"agent-pipeline/1"
_SEAL_BYTES = len(_SEAL_NAME) + 16
_FOOTER_END_BYTES = 8
"""Number of bytes at the end of a Parquet file that hold the footer's length and the
magic number.
"""
_REPEATING_COLUMNS = {
    "project",
    "agent",
    "source",
    "tools",
    "tools_origin",
    "split",
    "verdict",
    "verdict_by",
    "judgment",
    "drop_reason",
    "task_key",
}
"""Columns with few distinct values, which are written with a dictionary."""


@dataclass(frozen=True)
class StagedTable:
    """A table that is written and synced, but not yet at its final place.

    Attributes:
        file: the local file.
        target: its final place.
        schema: the columns.
        rows: the number of rows.
        sha256: the sha256 of the file, which is the version of the data.
    """

    file: Path
    target: UPath
    schema: pa.Schema
    rows: int
    sha256: str

    @property
    def bytes(self) -> int:
        """Return the size of the file in bytes."""
        if self.file.exists():
            return self.file.stat().st_size
        size: int = self.target.stat().st_size
        return size

    def commit(self, over: str | None = None) -> None:
        """Move the file to its final place in one step.

        If `over` is set, the file is moved only if the target has this version, as in `put_file`.
        Nothing happens if the table was already committed.

        Raises:
            FileExistsError: the target has a different version.
        """
        if self.file.exists():
            put_file(self.file, self.target, over=over)


class Tables(Paths):
    """Access to the tables in a lake."""

    def stage(
        self,
        asset: str,
        key: PartitionKey | None,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
    ) -> StagedTable:
        """Write batches to a staged file, one row group per batch.

        `commit` then makes the table visible. A thread compresses a batch while the caller creates
        the next one, so two batches are in memory at the same time.

        Args:
            asset: the asset of the table.
            key: its partition, or `None`.
            batches: the rows.
            schema: the columns.
        """
        target = self.table(asset, key)
        with self.fs.staging(target) as file:
            rows = _write(file, batches, schema)
            _seal(file)
            sync(file)
            return StagedTable(file, target, schema, rows, sha256_file(file))

    def update(
        self, asset: str, key: PartitionKey | None, change: Callable[[], pa.Table | None]
    ) -> None:
        """Replace a small table by the table that the function `change` returns.

        `change` reads the table. If it returns `None`, the table is kept. The changes of several
        writers are applied one after another.

        Raises:
            DataError: other writers were faster for ten minutes.
        """
        target = self.table(asset, key)

        def write_changed() -> None:
            version = self.fs.version(target)
            table = change()
            if table is None:
                return
            staged = self.stage(asset, key, table.to_batches(), table.schema)
            try:
                staged.commit(version)
            finally:
                staged.file.unlink(missing_ok=True)

        self.fs.in_turn(target.parent, write_changed)

    def has(self, asset: str, key: PartitionKey | None) -> bool:
        """Return whether the table of a partition exists."""
        return bool(self.table(asset, key).exists())

    def open(
        self, asset: str, key: PartitionKey | None, schema: pa.Schema | None = None
    ) -> pq.ParquetFile:
        """Open the Parquet file of a partition.

        The caller has to close it.

        Args:
            asset: the asset of the table.
            key: its partition, or `None`.
            schema: columns that the table must have.

        Raises:
            MissingError: the table was never materialized.
            DamageError: the file is damaged.
            DataError: the table lacks a column of `schema`, because an older version made it.
        """
        path = self.table(asset, key)
        owner = f" of {key}" if key else ""
        try:
            if self.fs.is_local and not _matches_seal(path.path, _file_state(Path(path.path))):
                raise OSError("its bytes are not those that were written")
            file = pq.ParquetFile(self.fs.open_for_arrow(path))
        except FileNotFoundError as error:
            raise MissingError(
                f"There is no `{asset}`{owner} at {path}: materialize "
                f"`{name_asset_to_select(asset)}` first."
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            raise DamageError(
                f"The {asset}{owner} at {path} is damaged ({error}): materialize "
                f"`{name_asset_to_select(asset)}` again.",
                path,
            ) from error
        missing = sorted(set(schema.names if schema else ()) - set(file.schema_arrow.names))
        if missing:
            raise DataError(
                f"The {asset} of {key} has no column {', '.join(missing)}, because an older "
                f"version of agent-pipeline made it: materialize `{name_asset_to_select(asset)}` "
                "again."
            )
        return file

    def checksum(self, asset: str, key: PartitionKey | None) -> str:
        """Return a checksum of a table's bytes, which is a part of the file.

        For a file of an older version without a checksum, the whole file is read.

        Raises:
            MissingError: the table was never materialized.
            DamageError: the file is damaged.
        """
        path = self.table(asset, key)
        if not path.exists():
            self.open(asset, key)  # raises the error
        with path.fs.open(path.path, "rb") as opened:
            footer_begin = _find_footer(opened)
            seal_begin = max(footer_begin - _SEAL_BYTES, 0)
            opened.seek(seal_begin)
            seal = opened.read(_SEAL_BYTES)
            if not seal.startswith(_SEAL_NAME):
                seal = _SEAL_NAME + _digest(opened, opened.seek(0, os.SEEK_END), b"")
        return bytes(seal).removeprefix(_SEAL_NAME).hex()

    def replace(self, path: UPath, parts: Iterable[bytes]) -> None:
        """Replace a file by the given bytes in one step.

        If there are no bytes, the file is removed.
        """
        with self.fs.staging(path) as file:
            with file.open("wb") as target:
                for part in parts:
                    target.write(part)
            sync(file)
        if file.stat().st_size:
            put_file(file, path)
        else:
            file.unlink()
            remove(path)


def _write(file: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches to a Parquet file, and return the number of rows.

    Compression does not need the interpreter lock, so it runs while the caller creates the next
    batch.
    """
    rows = 0
    repeating: list[str] | bool = [name for name in schema.names if name in _REPEATING_COLUMNS]
    with (
        pq.ParquetWriter(
            file,
            _without_descriptions(schema),
            **_PARQUET_OPTIONS,
            use_dictionary=repeating or False,
        ) as writer,
        ThreadPoolExecutor(1, thread_name_prefix="parquet") as thread,
    ):
        writing: Future[None] | None = None
        for batch in batches:
            rows += batch.num_rows
            if writing is not None:
                writing.result()
            writing = thread.submit(writer.write_batch, batch, row_group_size=MAX_ROW_GROUP)
        if writing is not None:
            writing.result()
    return rows


def _without_descriptions(schema: pa.Schema) -> pa.Schema:
    """Return a schema without the descriptions of its columns.

    A better description of a column must not change the file.
    """
    fields = []
    for field in schema:
        metadata = {
            name: value for name, value in (field.metadata or {}).items() if name != DESCRIPTION
        }
        fields.append(field.with_metadata(metadata) if metadata else field.remove_metadata())
    return pa.schema(fields, schema.metadata)


def _seal(file: Path) -> None:
    """Insert a checksum of the file before its footer, at a place that Parquet does not use.

    Without the checksum, a flipped bit in a page would change values unnoticed.
    """
    with file.open("r+b") as opened:
        footer_begin = _find_footer(opened)
        opened.seek(footer_begin)
        footer = opened.read()
        digest = _digest(opened, footer_begin, footer)
        opened.seek(footer_begin)
        opened.write(_SEAL_NAME + digest + footer)


@dataclass(frozen=True)
class FileState:
    """The facts that show whether a file has changed.

    The change time of the inode is included, because it cannot be set back, unlike the modification
    time.
    """

    bytes: int
    modified_ns: int
    inode_changed_ns: int
    inode: int


def _file_state(path: Path) -> FileState:
    status = path.stat()
    return FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)


@lru_cache(maxsize=4096)
def _matches_seal(path: str, state: FileState) -> bool:
    """Return whether the bytes of a file match its checksum.

    A file is read once per state. A file of an older version has no checksum and counts as a match.
    """
    with Path(path).open("rb") as opened:
        seal_begin = _find_footer(opened) - _SEAL_BYTES
        if seal_begin < 0:
            return True  # Arrow reports the problem
        opened.seek(seal_begin)
        seal, footer = opened.read(_SEAL_BYTES), opened.read()
        if not seal.startswith(_SEAL_NAME):
            return True
        return seal == _SEAL_NAME + _digest(opened, seal_begin, footer)


def _find_footer(opened: BinaryIO) -> int:
    """Return the offset of the footer of a Parquet file."""
    size = opened.seek(0, os.SEEK_END)
    opened.seek(max(size - _FOOTER_END_BYTES, 0))
    footer_bytes = int.from_bytes(opened.read(4), "little")
    return size - _FOOTER_END_BYTES - footer_bytes


def _digest(opened: BinaryIO, end: int, footer: bytes) -> bytes:
    """Return the XXH3 hash (128 bits) of a file's bytes before `end` and of its footer."""
    hashed = xxhash.xxh3_128()
    opened.seek(0)
    bytes_left = end
    while bytes_left > 0:
        part = opened.read(min(bytes_left, 1 << 20))
        if not part:
            break
        hashed.update(part)
        bytes_left -= len(part)
    hashed.update(footer)
    return hashed.digest()
