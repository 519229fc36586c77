"""Tables: Parquet files, written beside their place, then put there in one step."""

import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash
from upath import UPath

from agent_pipeline.errors import DataError, MissingError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.tables import DESCRIPTION
from agent_pipeline.storage.filesystem import put_file, remove, sha256_file, sync
from agent_pipeline.storage.paths import Paths

MAX_ROW_GROUP = 2000
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 1,
    "data_page_size": 8 << 20,
    "write_statistics": ["session_id"],
}
_SEAL = b"agent-pipeline/1"
_SEAL_BYTES = len(_SEAL) + 16
_REPEATING = {
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


@dataclass(frozen=True)
class StagedTable:
    """A table that is written and synced, but not yet in its place; `sha256` is the file's, and so the data's version."""

    file: Path
    target: UPath
    schema: pa.Schema
    rows: int
    sha256: str

    @property
    def bytes(self) -> int:
        return self.file.stat().st_size if self.file.exists() else self.target.stat().st_size

    def commit(self, over: str | None = None) -> None:
        """Put the file in its place, in one step (`over` a version only, as `put_file`); a table that is there already stays."""
        if self.file.exists():
            put_file(self.file, self.target, over=over)


class Tables(Paths):
    """Reads and writes the tables of a lake, and the files beside them."""

    def stage(
        self,
        asset: str,
        key: PartitionKey | None,
        batches: Iterable[pa.RecordBatch],
        schema: pa.Schema,
    ) -> StagedTable:
        """Write batches beside their place, each as a row group; `commit` then makes them visible.

        A thread compresses a batch while the caller makes the next one, so two batches are in memory at a time.
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
        """Replace a small table by what `change` makes of the one that lies there (`None`: it stays); of several writers none is lost.

        Raises:
            DataError: others were faster for ten minutes.
        """
        target = self.table(asset, key)

        def written() -> None:
            version = self.fs.version(target)
            if (table := change()) is not None:
                staged = self.stage(asset, key, table.to_batches(), table.schema)
                try:
                    staged.commit(version)
                finally:
                    staged.file.unlink(missing_ok=True)

        self.fs.in_turn(target.parent, written)

    def has(self, asset: str, key: PartitionKey | None) -> bool:
        """Whether a partition was ever materialized."""
        return self.table(asset, key).exists()

    def open(
        self, asset: str, key: PartitionKey | None, schema: pa.Schema | None = None
    ) -> pq.ParquetFile:
        """The Parquet file of a partition; the caller closes it.

        Raises:
            MissingError: it was never materialized.
            DataError: its file is damaged, or it lacks a column of `schema`, because an older version made it.
        """
        path = self.table(asset, key)
        try:
            if self.fs.is_local and not _is_as_written(path.path, _state(Path(path.path))):
                raise OSError("its bytes are not those that were written")
            file = pq.ParquetFile(self.fs.source(path))
        except FileNotFoundError as error:
            raise MissingError(
                f"There is no {asset} of {key} at {path}: materialize {asset} first."
            ) from error
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(
                f"The {asset} of {key} at {path} is damaged ({error}): materialize {asset} again."
            ) from error
        if schema is not None and (
            missing := sorted(set(schema.names) - set(file.schema_arrow.names))
        ):
            raise DataError(
                f"The {asset} of {key} has no column {', '.join(missing)}: an older version made it; materialize {asset} again."
            )
        return file

    def replace(self, path: UPath, parts: Iterable[bytes]) -> None:
        """Write a file anew, in one step; without a byte there is no file."""
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
    """Write batches; returns the number of rows. Compressing needs no interpreter lock, so it runs beside what makes the batches."""
    rows, dictionaries = 0, [name for name in schema.names if name in _REPEATING] or False
    with (
        pq.ParquetWriter(
            file, _undescribed(schema), **_PARQUET, use_dictionary=dictionaries
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


def _undescribed(schema: pa.Schema) -> pa.Schema:
    """The schema as a file has it: a better word for a column makes no other table."""
    known = (
        {key: value for key, value in (field.metadata or {}).items() if key != DESCRIPTION}
        for field in schema
    )
    fields = [
        field.with_metadata(left) if left else field.remove_metadata()
        for field, left in zip(schema, known, strict=True)
    ]
    return pa.schema(fields, schema.metadata)


def _seal(file: Path) -> None:
    """Put a checksum of the file before its footer, where Parquet has nothing: a flipped bit in a page changes values without a word."""
    with file.open("r+b") as opened:
        begin = _footer(opened)
        opened.seek(begin)
        footer = opened.read()
        digest = _digest(opened, begin, footer)
        opened.seek(begin)
        opened.write(_SEAL + digest + footer)


def _state(path: Path) -> tuple[int, ...]:
    """What tells one state of a file from another. Whoever sets a file's time back cannot set back when its inode changed."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


@lru_cache(maxsize=4096)
def _is_as_written(path: str, state: tuple[int, ...]) -> bool:
    """Whether a file's checksum is right; true of a file without one, which an older version wrote. Once for each state of a file."""
    with Path(path).open("rb") as opened:
        begin = _footer(opened) - _SEAL_BYTES
        if begin < 0:
            return True  # Arrow says what is wrong
        opened.seek(begin)
        seal, footer = opened.read(_SEAL_BYTES), opened.read()
        return not seal.startswith(_SEAL) or seal == _SEAL + _digest(opened, begin, footer)


def _footer(opened: BinaryIO) -> int:
    """Where a Parquet file's footer begins."""
    size = opened.seek(0, os.SEEK_END)
    opened.seek(max(size - 8, 0))
    return size - 8 - int.from_bytes(opened.read(4), "little")


def _digest(opened: BinaryIO, end: int, footer: bytes) -> bytes:
    """XXH3 (128 bits) of a file's bytes before `end` and of its footer."""
    hashed = xxhash.xxh3_128()
    opened.seek(0)
    while end and (part := opened.read(min(end, 1 << 20))):
        hashed.update(part)
        end -= len(part)
    hashed.update(footer)
    return hashed.digest()
