"""The lake: Parquet tables, JSONL files and model directories under one root, a folder or a bucket.

    <root>/tables/<asset>/project=<p>/agent=<a>/part-0.parquet     DuckDB, Polars and Spark read an asset as one Hive-partitioned table
    <root>/jsonl/<asset>/project=<p>/agent=<a>/<split>.jsonl       the same rows for other trainers
    <root>/models/<asset>/project=<p>/agent=<a>/<identity>/        a directory with a manifest
    <root>/models/<asset>/project=<p>/agent=<a>/pointers/          which of them is the latest, which the champion, and the history
    <root>/messages/<asset>/project=<p>/agent=<a>/                 what a worker on another machine says while it runs
    <root>/.locks/                                                 one lock a partition, held by the run that works on it

A reader sees the old version or the new one, never half of one (`agent_pipeline.storage.filesystem`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from filelock import Timeout

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.artifacts import MANIFEST, Artifact, read_manifest
from agent_pipeline.storage.filesystem import is_staged, put_file, remove, sha256_file, sync
from agent_pipeline.storage.leases import lease
from agent_pipeline.storage.paths import LakeFile
from agent_pipeline.storage.pointers import Pointers
from agent_pipeline.storage.tables import StagedTable, Tables

__all__ = ["MANIFEST", "Artifact", "Lake", "LakeFile", "StagedTable", "put_file", "read_manifest", "remove", "sha256_file", "sync"]


class Lake(Tables, Pointers):
    """Tables, artifacts and pointers under one root; holds no state but the root and a local folder for copies."""

    @contextmanager
    def run_of(self, key: PartitionKey | None, waiting: Callable[[], None] | None = None) -> Iterator[None]:
        """Hold a partition for one run: no other run, of this machine or (in a shared folder, or `s3://`) another, works on it meanwhile.

        Where another run holds it, `waiting` is called once and the lock is waited for; without `waiting` that is an error.

        Raises:
            DataError: another run holds the partition.
        """
        place, what = self.root.joinpath(".locks", *(key or ("all",)), "run.lock"), str(key or "what pools all agents")
        lock = self.fs.lock(place)
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            if waiting is None:
                raise DataError(f"A run is working on {what}: let it end or cancel it, and repeat.") from error
            waiting()
            lock.acquire(poll_interval=0.5)
        try:
            with lease(self.fs, place, what, waiting) if self.fs.is_shared else nullcontext():
                yield
        finally:
            lock.release()

    def sweep(self) -> None:
        """Remove what killed runs had staged under the root.

        Raises:
            DataError: a run is working on a partition that has such a file.
        """
        for file in self.files():
            if is_staged(file.path.name):
                with self.run_of(file.key):
                    remove(file.path)
