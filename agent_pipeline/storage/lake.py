"""Where everything is kept: Parquet tables, JSONL files and model directories, under one root.

    <root>/tables/<asset>/project=<p>/agent=<a>/part-0.parquet     DuckDB, Polars and Spark read an asset as one Hive-partitioned table
    <root>/jsonl/<asset>/project=<p>/agent=<a>/<split>.jsonl       the same rows for other trainers
    <root>/models/<asset>/project=<p>/agent=<a>/<identity>/        a directory with a manifest
    <root>/models/<asset>/project=<p>/agent=<a>/current.json       which identity is the partition's latest

A reader sees the old version or the new one, never half of one: files are written beside their place, synced and renamed; a model's
directory is renamed when it is complete. The root is a local folder or any fsspec URL (`s3://bucket/lake`); there, objects appear whole by
themselves, and models are built locally and copied, their manifest last.
"""

import glob
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.storage.row_groups import rewrite

MANIFEST = "manifest.json"


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

    def commit(self) -> None:
        """Put the file in its place, in one step."""
        put_file(self.file, self.target)


@dataclass(frozen=True)
class Artifact:
    """A model directory that is complete: `path` on this machine, `manifest` as written."""

    asset: str
    key: PartitionKey
    identity: str
    path: Path
    manifest: dict[str, Any]


class LakeFile(NamedTuple):
    """A file of the lake: of which kind (`tables`, `jsonl`, `models`, …), of which asset and partition, and its name beneath that."""

    path: UPath
    kind: str
    asset: str
    key: PartitionKey | None
    name: str


class Lake:
    """Reads and writes under one root; holds no state but the root and a local folder for what is being built."""

    def __init__(self, root: str | UPath, cache: Path | None = None) -> None:
        self.root = UPath(root)
        self._cache = cache

    @property
    def is_local(self) -> bool:
        return self.root.protocol in ("", "file", "local")

    # Tables

    def table(self, asset: str, key: PartitionKey | None) -> UPath:
        """The Parquet file of an asset's partition (`None`: the one file of an asset without partitions)."""
        return self._folder("tables", asset, key) / "part-0.parquet"

    def stage(self, asset: str, key: PartitionKey | None, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> StagedTable:
        """Write batches beside their place, each as a row group, in a thread of its own while the next one is made (two are in memory at
        a time); `commit` then makes them visible."""
        target = self.table(asset, key)
        with self._staging_file(target) as file:
            rows = _write(file, batches, schema)
            sync(file)
            return StagedTable(file, target, schema, rows, sha256_file(file))

    def restage(self, path: UPath, groups: Mapping[int, pa.Table]) -> StagedTable:
        """A Parquet file of the lake with other rows in some of its row groups (none: the group goes); the others' bytes are copied."""
        with self._staging_file(path) as file:
            with path.open("rb") as source, file.open("wb") as target:
                schema = pq.read_schema(source)
                rewrite(source, target, groups, **_PARQUET, use_dictionary=_dictionary_columns(schema))
            sync(file)
            return StagedTable(file, path, schema, pq.read_metadata(file).num_rows, sha256_file(file))

    def replace(self, path: UPath, parts: Iterable[bytes]) -> None:
        """Write a file anew, in one step; without a byte there is no file."""
        with self._staging_file(path) as file:
            with file.open("wb") as target:
                for part in parts:
                    target.write(part)
            sync(file)
        if file.stat().st_size:
            put_file(file, path)
        else:
            file.unlink()
            path.unlink(missing_ok=True)

    def has(self, asset: str, key: PartitionKey | None) -> bool:
        return self.table(asset, key).exists()

    def open(self, asset: str, key: PartitionKey | None) -> pq.ParquetFile:
        """The Parquet file of a partition.

        Raises:
            DataError: it was never materialized, or its file is damaged.
        """
        path = self.table(asset, key)
        if not path.exists():
            raise DataError(f"There is no {asset} of {key} at {path}: materialize {asset} first.")
        try:
            return pq.ParquetFile(path.path if self.is_local else path.fs.open(path.path))
        except pa.ArrowInvalid as error:
            raise DataError(f"The {asset} of {key} at {path} is damaged ({error}): materialize {asset} again.") from error

    def jsonl(self, asset: str, key: PartitionKey | None) -> UPath:
        """The folder of an asset's JSONL files."""
        return self._folder("jsonl", asset, key)

    def write_jsonl(self, asset: str, key: PartitionKey | None, name: str, rows: Iterable[dict[str, Any] | bytes]) -> int:
        """One JSON object a line, UTF-8 (bytes are a line already); returns the number of rows. Without rows there is no file."""
        target = self.jsonl(asset, key) / f"{name}.jsonl"
        count = 0
        with self._staging_file(target) as file:
            with file.open("wb") as lines:
                for row in rows:
                    lines.write(row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode("utf-8"))
                    lines.write(b"\n")
                    count += 1
            sync(file)
        if count:
            put_file(file, target)
        else:
            file.unlink()
            target.unlink(missing_ok=True)
        return count

    # Models

    def building(self, asset: str, key: PartitionKey, identity: str) -> Path:
        """The local folder in which an artifact is built; it survives a kill, so that the next run can go on from there."""
        base = Path(self._folder("models", asset, key).path) if self.is_local else self._local_copy(asset, key)
        path = base / f".building-{identity[:16]}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def unfinished(self) -> Iterator[Path]:
        """The local folders of artifacts whose building was killed, or goes on."""
        base = Path(self.root.path) if self.is_local else self._copies
        yield from sorted(path for path in (base / "models").glob("*/*/*/.building-*") if path.is_dir())

    def finish(
        self,
        asset: str,
        key: PartitionKey,
        identity: str,
        building: Path,
        made_from: dict[str, Any],
        report: dict[str, Any],
        tables: Mapping[str, str] | None = None,
    ) -> Artifact:
        """Write the manifest (each file's sha256 and size, what it was made from, of which versions of which tables, by which code, what
        came of it); rename the directory into place."""
        files = sorted(path for path in building.rglob("*") if path.is_file() and path.name != MANIFEST)
        manifest = {
            "asset": asset,
            "partition": str(key),
            "identity": identity,
            "made_from": made_from,
            "tables": dict(tables or {}),
            "made_by": code_version(),
            "report": report,
            "files": {path.relative_to(building).as_posix(): {"sha256": sha256_file(path), "bytes": path.stat().st_size} for path in files},
        }
        (building / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True, ensure_ascii=False), encoding="utf-8")
        final = building.with_name(identity[:16])
        if final.exists():
            shutil.rmtree(final)
        building.replace(final)
        if not self.is_local:
            remote = self._folder("models", asset, key) / identity[:16]
            for name in [*manifest["files"], MANIFEST]:
                put_file(final / name, remote / name, move=False)
        return Artifact(asset, key, identity, final, manifest)

    def find(self, asset: str, key: PartitionKey, identity: str) -> Artifact | None:
        """The artifact with this identity, if it is there and each file has the size that its manifest says."""
        folder = self._folder("models", asset, key) / identity[:16]
        manifest = read_manifest(folder / MANIFEST)
        if manifest is None or manifest["identity"] != identity:
            return None
        local = Path(folder.path) if self.is_local else self._local_copy(asset, key) / identity[:16]
        for name, file in manifest["files"].items():
            if not self.is_local and not _is_whole(local / name, file) and (folder / name).exists():
                (local / name).parent.mkdir(parents=True, exist_ok=True)
                folder.fs.get_file((folder / name).path, str(local / name))
            if not _is_whole(local / name, file):
                return None
        return Artifact(asset, key, identity, local, manifest)

    def drop_copy(self, file: LakeFile, identity: str) -> None:
        """Remove this machine's copy of a remote artifact, of which `file` is one: the next `find` fetches it again."""
        if not self.is_local and file.key is not None:
            shutil.rmtree(self._local_copy(file.asset, file.key) / identity[:16], ignore_errors=True)

    def set_current(self, artifact: Artifact) -> None:
        """Make an artifact its partition's latest, in one step."""
        target = self._folder("models", artifact.asset, artifact.key) / "current.json"
        with self._staging_file(target) as file:
            file.write_text(json.dumps({"identity": artifact.identity}), encoding="utf-8")
            sync(file)
        put_file(file, target)

    def current_identity(self, asset: str, key: PartitionKey) -> str | None:
        """Which artifact is the partition's latest; null where none was made."""
        pointer = read_manifest(self._folder("models", asset, key) / "current.json")
        return pointer["identity"] if pointer else None

    def current(self, asset: str, key: PartitionKey) -> Artifact:
        """The partition's latest artifact.

        Raises:
            DataError: there is none, or its files are gone.
        """
        pointer = self._folder("models", asset, key) / "current.json"
        current = read_manifest(pointer)
        if current is None:
            raise DataError(f"There is no {asset} of {key} in {self.root}: materialize {asset} first.")
        identity = current["identity"]
        artifact = self.find(asset, key, identity)
        if artifact is None:
            raise DataError(f"The {asset} of {key} at {pointer.parent / identity[:16]} is gone or incomplete: materialize {asset} again.")
        return artifact

    # Places

    def settle(self) -> None:
        """Remove what processes that are gone, or this one, had staged under the root.

        Raises:
            DataError: another process is writing there now.
        """
        for file in self.files():
            if staged := _STAGED.fullmatch(file.path.name):
                pid = int(staged[1])
                if pid != os.getpid() and _is_alive(pid):
                    raise DataError(f"The process {pid} is writing {file.asset} of {file.key} at {file.path.parent}: wait for it to end.")
                file.path.unlink()

    def files(self) -> Iterator[LakeFile]:
        """Every file under the root, those too that are being written, in the order of their paths."""
        for path in sorted((path for path in self.root.rglob("*") if path.is_file()), key=str):
            parts = [*path.relative_to(self.root).parts, ""]
            kind, asset = parts.pop(0), parts.pop(0)
            named = [part.partition("=")[2] for part in parts[:2] if part.startswith(("project=", "agent="))]
            key = PartitionKey(*map(unquote, named)) if len(named) == 2 else None
            yield LakeFile(path, kind, unquote(asset), key, "/".join(parts[2 if key else 0 :]).strip("/"))

    def manifests(self) -> Iterator[tuple[LakeFile, dict[str, Any]]]:
        """The manifest of every finished artifact of every partition, current or not."""
        for file in self.files():
            finished = file.kind == "models" and file.path.name == MANIFEST and not file.name.startswith(".")
            if finished and (manifest := read_manifest(file.path)) is not None:
                yield file, manifest

    def _folder(self, kind: str, asset: str, key: PartitionKey | None) -> UPath:
        folder = self.root / kind / quote(asset, safe="")
        return folder if key is None else folder / f"project={quote(key.project, safe='')}" / f"agent={quote(key.agent, safe='')}"

    @property
    def _copies(self) -> Path:
        return self._cache or Path(tempfile.gettempdir()) / "agent-pipeline"

    def _local_copy(self, asset: str, key: PartitionKey) -> Path:
        return self._copies.joinpath(*self._folder("models", asset, key).relative_to(self.root).parts)

    @contextmanager
    def _staging_file(self, target: UPath) -> Iterator[Path]:
        """A name for a local file, beside the target where that is local; the file is gone again if the writing fails."""
        folder = Path(target.parent.path) if self.is_local else Path(tempfile.gettempdir())
        folder.mkdir(parents=True, exist_ok=True)
        _remove_orphans(folder, target.name)
        file = folder / f".{target.name}-{os.getpid()}-{uuid4().hex[:8]}"
        try:
            yield file
        except BaseException:
            file.unlink(missing_ok=True)
            raise


_STAGED = re.compile(r"\..+-(\d+)-[0-9a-f]{8}")


def _remove_orphans(folder: Path, name: str) -> None:
    """Remove what processes that are gone (killed in the middle of a write) had staged for a target."""
    for file in folder.glob(f".{glob.escape(name)}-*-*"):
        pid = file.name.rsplit("-", 2)[1]
        if pid.isdigit() and int(pid) != os.getpid() and not _is_alive(int(pid)):
            with suppress(OSError):  # gone already, or (in a shared temporary folder) another user's
                file.unlink()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _write(file: Path, batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> int:
    """Write batches; returns the number of rows. Compressing needs no interpreter lock, so it goes on beside whoever makes the batches."""
    rows = 0
    with (
        pq.ParquetWriter(file, schema, **_PARQUET, use_dictionary=_dictionary_columns(schema)) as writer,
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


MAX_ROW_GROUP = 2000
_PARQUET: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "data_page_size": 8 << 20, "write_statistics": ["session_id"]}
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


@cache
def code_version() -> dict[str, str]:
    """Which code this is: the package's version, and the sha256 of its Python files (an edited checkout has its version's name still)."""
    package = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package).as_posix()}\0{sha256_file(path)}\n".encode())
    try:
        return {"version": version("agent-pipeline"), "code_sha256": found.hexdigest()}
    except PackageNotFoundError:  # on the path, not installed
        return {"code_sha256": found.hexdigest()}


def _dictionary_columns(schema: pa.Schema) -> list[str] | bool:
    return [name for name in schema.names if name in _REPEATING] or False


def read_manifest(path: UPath) -> dict[str, Any] | None:
    """The manifest, or pointer to one, in a file: a JSON object with an identity; null where there is none, or a part of one."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return value if isinstance(value, dict) and "identity" in value else None


def _is_whole(path: Path, file: dict[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == file["bytes"]


def put_file(file: Path, target: UPath, move: bool = True) -> None:
    """Put a finished local file in its place: a rename where the target is local, else an upload."""
    if target.protocol in ("", "file", "local"):
        file.replace(target.path)
    else:
        target.fs.makedirs(target.parent.path, exist_ok=True)
        target.fs.put_file(str(file), target.path)
        if move:
            file.unlink()


def sync(file: Path) -> None:
    """Have the disk hold a file before its name says that it does."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def sha256_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
