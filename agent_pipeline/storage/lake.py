"""The lake: Parquet tables, JSONL files and model directories under one root, a folder or a bucket.

    <root>/tables/<asset>/project=<p>/agent=<a>/part-0.parquet  a table
    <root>/jsonl/<asset>/project=<p>/agent=<a>/<split>.jsonl    the same rows for other trainers
    <root>/models/<asset>/project=<p>/agent=<a>/<identity>/     an artifact with its manifest
    <root>/models/<asset>/project=<p>/agent=<a>/pointers/       the pointers and their history
    <root>/messages/<asset>/project=<p>/agent=<a>/              messages of a remote worker
    <root>/lake.json                                            the version of this layout
    <root>/.locks/                                              one lock per partition

DuckDB, Polars and Spark read the tables of an asset as one Hive-partitioned table. A reader sees
the old or the new version of a file, never half of a file (`agent_pipeline.storage.filesystem`).

The columns of tables and the files of artifacts do not belong here.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from importlib.metadata import version
from pathlib import Path

import msgspec
from filelock import Timeout
from upath import UPath

from agent_pipeline.errors import DataError, LakeError, first_line
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.artifacts import MANIFEST, Artifact, read_manifest
from agent_pipeline.storage.filesystem import is_staged, put_file, remove, sha256_file, sync
from agent_pipeline.storage.leases import lease
from agent_pipeline.storage.paths import LakeFile
from agent_pipeline.storage.pointers import Pointers
from agent_pipeline.storage.tables import StagedTable, Tables
from agent_pipeline.structs import decode_json

__all__ = [
    "MANIFEST",
    "Artifact",
    "Lake",
    "LakeFile",
    "StagedTable",
    "put_file",
    "read_manifest",
    "remove",
    "sha256_file",
    "sync",
]


FORMAT = 1
"""Version of the layout that this code writes. It increases if an older agent-pipeline would
misread data of a newer one.
"""
FORMAT_FILE = "lake.json"
_CHECKED_BUCKETS: set[str] = set()
"""Buckets whose format this process has already checked."""


class LakeFormat(msgspec.Struct, frozen=True):
    """The content of `lake.json`.

    A lake without this file was written before layouts had versions; its layout is version 1.
    """

    format: int
    written_by: str = ""


class Lake(Tables, Pointers):
    """The tables, artifacts and pointers under one root.

    The object holds no state except the root and a local folder for copies.

    Args:
        root: a folder, or a URL for fsspec.
        cache: the local folder for copies of files in a bucket.
        options: options for fsspec.

    Raises:
        LakeError: a newer agent-pipeline wrote the lake, or `lake.json` is damaged.
    """

    def __init__(
        self,
        root: str | UPath,
        cache: Path | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(root, cache, options)
        self._check_format()

    def prepare(self) -> None:
        """Check that the lake can be written, and write its layout version if it is missing.

        Raises:
            LakeError: the lake cannot be written.
        """
        self.fs.check_writable()
        if self._read_format() is None:
            content = msgspec.json.encode(LakeFormat(FORMAT, version("agent-pipeline")))
            with suppress(FileExistsError):  # another machine was faster
                self.fs.write(self.root / FORMAT_FILE, content, over="")

    def _check_format(self) -> None:
        """Raise an error if the layout of the lake is newer than this code.

        A bucket is checked once per process.
        """
        if not self.is_local and str(self.root) in _CHECKED_BUCKETS:
            return
        written = self._read_format()
        if written is not None and written.format > FORMAT:
            raise LakeError(
                f"The lake {self.root} has format {written.format}, which agent-pipeline "
                f"{written.written_by} wrote, but this version reads only formats up to {FORMAT}: "
                f"install agent-pipeline {written.written_by} or a later one."
            )
        _CHECKED_BUCKETS.add(str(self.root))

    def _read_format(self) -> LakeFormat | None:
        """Return the content of `lake.json`, or `None` if there is no such file."""
        path = self.root / FORMAT_FILE
        try:
            return decode_json(self.fs.read(path), LakeFormat)
        except FileNotFoundError:
            return None
        except (msgspec.DecodeError, UnicodeError) as error:
            raise LakeError(
                f"{path} is damaged ({error}): restore it, or delete it if no newer "
                "agent-pipeline wrote "
                "this lake."
            ) from error
        except OSError as error:
            raise LakeError(
                f"The lake {self.root} cannot be read ({first_line(error)}): correct the setting "
                "`lake`, or the permissions of the lake."
            ) from error

    @contextmanager
    def run_of(
        self, key: PartitionKey | None, waiting: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """Lock a partition for one run, so that no other run works on it at the same time.

        In a shared folder and in `s3://`, this includes the runs of other machines. If another run
        holds the partition, `waiting` is called once, and this run waits. If there is no `waiting`,
        an error is raised.

        Args:
            key: the partition. `None` means the assets that combine all agents.
            waiting: called once before this run waits.

        Raises:
            DataError: another run holds the partition, and there is no `waiting`.
        """
        path = self.root.joinpath(".locks", *(key or ("all",)), "run.lock")
        what = str(key or "what pools all agents")
        lock = self.fs.lock(path)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            if waiting is None:
                raise DataError(
                    f"A run is working on {what}: wait until the run ends or cancel it, then try "
                    "again."
                ) from error
            waiting()
            lock.acquire(poll_interval=0.5)
        try:
            with lease(self.fs, path, what, waiting) if self.fs.is_shared else nullcontext():
                yield
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove files that killed runs had staged, and the rest of killed deletions of models.

        Raises:
            DataError: a run is working on a partition that has such a file.
        """
        for deletion in list(self.find_deletions()):
            with self.run_of(deletion.key):
                self.complete_deletion(deletion)
        for file in self.files():
            if is_staged(file.path.name):
                with self.run_of(file.key):
                    remove(file.path)
