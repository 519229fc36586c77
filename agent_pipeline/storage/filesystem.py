"""A folder or a bucket: the only module that knows which of the two the lake is.

A reader sees the old version of a file or the new one, never half of one. In a folder, a file is written beside its place, synced and
renamed. In a bucket, objects appear whole by themselves, so a file is written locally and uploaded.
"""

import errno
import glob
import hashlib
import os
import random
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pyarrow as pa
from filelock import FileLock
from upath import UPath

from agent_pipeline.errors import DataError, LakeError, SettingsError, disk_sentence, first_line
from agent_pipeline.storage.roots import LOCAL, open_root, resolved_options

Written = TypeVar("Written")
_S3 = ("s3", "s3a")
_LOST = (409, 412)
"""What S3 answers to a conditional write that another one was faster than; 404, where the other one removed the object."""
_STAGED = re.compile(r"\..+-[0-9a-f]{8}")
_STALE_SECONDS = 24 * 3600
_PATIENCE = 600.0
"""Seconds for which a writer tries before it gives up."""
_BLOCK = 16 << 20


class Filesystem:
    """Reads and writes files under one root.

    `root` is a local folder or a URL of fsspec's (`s3://bucket/lake`). `options` go to fsspec (`endpoint_url`, `key`, …); a value
    `$NAME` is read from the environment. `cache` is the local folder for copies of what lies in a bucket.

    Raises:
        SettingsError: the root is a file, its protocol is unknown, or a package or a variable that it needs is missing.
        LakeError: the bucket cannot be read.
    """

    def __init__(
        self, root: str | UPath, cache: Path | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        self.root = open_root(root, resolved_options(options or {}))
        self.cache = cache or Path(tempfile.gettempdir()) / "agent-pipeline"

    @property
    def is_local(self) -> bool:
        """Whether the root is a folder of this machine."""
        return self.root.protocol in LOCAL

    @property
    def is_shared(self) -> bool:
        """Whether the root is a bucket whose writes can be conditional: several machines may write at once."""
        return self.root.protocol in _S3

    def source(self, path: UPath) -> Any:
        """What pyarrow reads a file from: its path; of a bucket the bytes of a small file, which nobody can replace while they are read, or
        an open file, of which it asks for large blocks, each once (and fails where another was put in its place)."""
        if self.is_local:
            return path.path
        if path.fs.info(path.path)["size"] <= _BLOCK:
            return pa.BufferReader(path.fs.cat_file(path.path, start=0))
        return path.fs.open(
            path.path, block_size=_BLOCK, cache_type="blockcache", cache_options={"maxblocks": 4}
        )

    def local(self, path: UPath) -> Path:
        """The place of a path on this machine: the path itself, or that of its copy in the cache."""
        return (
            Path(path.path)
            if self.is_local
            else self.cache.joinpath(*path.relative_to(self.root).parts)
        )

    def fetch(self, path: UPath) -> Path:
        """A file on this machine, downloaded first from a bucket."""
        local = self.local(path)
        if not self.is_local:
            local.parent.mkdir(parents=True, exist_ok=True)
            path.fs.get_file(path.path, str(local))
        return local

    def scratch(self, folder: UPath) -> Path:
        """A local folder for temporary files: the folder itself, made where it is missing, or for a bucket the system's."""
        local = Path(folder.path) if self.is_local else Path(tempfile.gettempdir())
        local.mkdir(parents=True, exist_ok=True)
        return local

    @contextmanager
    def staging(self, target: UPath) -> Iterator[Path]:
        """The name of a local file to write and then `put`; the file is removed if the writing fails.

        What killed writers left of the same target is removed once it is a day old: the number of a process says nothing about one in
        another container.
        """
        folder = self.scratch(target.parent)
        for left in folder.glob(f".{glob.escape(target.name)}-*"):
            if is_staged(left.name):
                with suppress(
                    OSError
                ):  # gone already, or (in a shared temporary folder) another user's
                    if time.time() - left.lstat().st_mtime > _STALE_SECONDS:
                        left.unlink()
        file = folder / f".{target.name}-{uuid4().hex[:8]}"
        try:
            yield file
        except BaseException as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(folder)  # pyarrow and a full disk name no file
            file.unlink(missing_ok=True)
            raise

    def open(self, path: UPath) -> pa.OSFile:
        """A file opened on this machine: of a bucket a copy without a name, which nothing has to remove."""
        if self.is_local:
            return pa.OSFile(path.path)
        with self.staging(path) as file:
            path.fs.get_file(path.path, str(file))
            opened = pa.OSFile(str(file))
            file.unlink()
        return opened

    def files(self, folder: UPath) -> list[UPath]:
        """Every file beneath a folder, in the order of their paths; of a bucket by one listing, without a request for each."""
        if self.is_local:
            return sorted((path for path in folder.rglob("*") if path.is_file()), key=str)
        begin = len(folder.path.rstrip("/")) + 1
        return sorted(
            (folder / path[begin:] for path in folder.fs.find(folder.path) if path[begin:]), key=str
        )

    def version(self, path: UPath) -> str:
        """What a conditional write compares: of a file in `s3://` its ETag; empty where there is no file."""
        try:
            return path.fs.info(path.path).get("ETag") or "there"
        except FileNotFoundError:
            return ""

    @staticmethod
    def read(path: UPath) -> bytes:
        """A small file's bytes, of one version: who opens a file in a bucket fails where another replaces it meanwhile."""
        return path.fs.cat_file(path.path, **_at_once(path))

    def read_all(self, paths: Sequence[UPath]) -> list[bytes]:
        """The bytes of small files, of a bucket fetched at once; of one that is gone none."""
        names = [path.path for path in paths]
        contents = (
            self.root.fs.cat_ranges(names, None, None, on_error="return", **_at_once(self.root))
            if paths
            else []
        )
        if failed := next(
            (
                each
                for each in contents
                if isinstance(each, Exception) and not isinstance(each, FileNotFoundError)
            ),
            None,
        ):
            raise failed
        return [b"" if isinstance(each, Exception) else each for each in contents]

    def write(self, path: UPath, content: bytes, over: str | None = None) -> None:
        """Write a small file, `over` a version only, as `put_file`. Raises FileExistsError."""
        with self.staging(path) as file:
            file.write_bytes(content)
            sync(file)
            put_file(file, path, over=over)

    def in_turn(self, folder: UPath, write: Callable[[], Written]) -> Written:
        """What `write` gives, which reads and then writes a file of a folder over the version that it has read.

        One writer of this machine (in a folder: of all) at a time; where another machine was faster, and `write` raises FileExistsError,
        it is called again after a pause, which is at random and at most as long as it has tried by then: however many the writers are,
        and however long the bucket takes, they thin out until each gets through.

        Raises:
            DataError: others were faster for ten minutes.
        """
        began = time.monotonic()
        while True:
            with self.lock(folder / ".lock"), suppress(FileExistsError):
                return write()
            if (tried := time.monotonic() - began) >= _PATIENCE:
                raise DataError(
                    f"Others were faster to write to {folder} for {tried / 60:.0f} minutes: repeat it when fewer runs write."
                )
            time.sleep(random.uniform(0, min(tried, _PATIENCE - tried)))

    def keeps_conditions(self) -> bool:
        """Whether the bucket refuses a write whose condition does not hold, tried with an object that is removed again.

        Raises:
            SettingsError: it cannot be written to.
        """
        path, refused = self.root / f".check-{uuid4().hex[:8]}", 0
        try:
            for content, over in ((b"first", ""), (b"second", ""), (b"third", '"another"')):
                try:
                    self.write(path, content, over)
                except FileExistsError:
                    refused += 1
            path.fs.rm_file(path.path)
        except Exception as error:  # what clients raise is of no family
            raise SettingsError(
                f"The lake {self.root} cannot be written to ({first_line(error)}): correct lake or lake_options."
            ) from error
        return refused == 2

    def check_writable(self) -> None:
        """Write a small file beneath the root, and remove it again.

        Raises:
            LakeError: it cannot be written.
        """
        path = self.root / f".check-{uuid4().hex[:8]}"
        try:
            self.write(path, b"")
            remove(path)
        except Exception as error:  # what clients raise is of no family
            if (number := getattr(error, "errno", None)) in (errno.ENOSPC, errno.EDQUOT):
                raise LakeError(str(disk_sentence(error))) from error
            reason = os.strerror(number) if number else first_line(error)
            raise LakeError(
                f"The lake {self.root} cannot be written ({reason}): set lake (or AGENT_PIPELINE_LAKE) to a folder or a bucket that this "
                "user may write."
            ) from error

    def lock(self, path: UPath) -> FileLock:
        """A lock named by a path: among all processes that see a folder, or among those of this machine for a bucket (there `in_turn` and
        `Lake.run_of` reach further). The operating system releases the lock of a process that was killed."""
        local = self.local(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(local)


def is_staged(name: str) -> bool:
    """Whether a file of this name is being written, or was left by a writer that was killed."""
    return bool(_STAGED.fullmatch(name))


def put_file(file: Path, target: UPath, move: bool = True, over: str | None = None) -> None:
    """Put a finished local file in its place, a rename where the target is local, else an upload.

    With `over`, only where the version (`Filesystem.version`) is still that one (empty: where there is no file). In a folder, and in a
    bucket that is not `s3://`, the caller must be alone (`Filesystem.in_turn`).

    Raises:
        FileExistsError: the version is another.
    """
    if target.protocol in LOCAL:
        if over == "" and target.exists():
            raise FileExistsError(target.path)
        file.replace(target.path)
        return
    if over is None:
        target.fs.put_file(str(file), target.path)
    else:
        _put_over(target, file.read_bytes(), over)
    if move:
        file.unlink()


def _put_over(target: UPath, content: bytes, over: str) -> None:
    """Write an object over a version of it. Who succeeded, got no answer and asked once more is refused, and has succeeded."""
    only: dict[str, Any] = {} if over else {"mode": "create"}
    if target.protocol in _S3:
        only |= {
            "chunksize": 5 << 30,
            **({"IfMatch": over} if over else {}),
        }  # in one request: an upload in parts takes no condition
    try:
        target.fs.pipe_file(target.path, content, **only)
    except OSError as error:
        status = (
            getattr(error.__cause__, "response", {})
            .get("ResponseMetadata", {})
            .get("HTTPStatusCode")
        )
        if not (isinstance(error, FileExistsError) or status in _LOST or (over and status == 404)):
            raise
        with suppress(FileNotFoundError):
            if Filesystem.read(target) == content:
                return
        raise FileExistsError(target.path) from error


def _at_once(path: UPath) -> dict[str, Any]:
    """What has s3fs ask once: where it may fetch a file in parts, it asks for its size first."""
    return {"max_concurrency": 1} if path.protocol in _S3 else {}


def write_atomically(path: Path, data: bytes) -> Path:
    """A file with these bytes: readers see the old one or this one, never a part of it. Folders are made where they are missing.

    Raises:
        OSError: the disk is full, or not ours to write.
    """
    target = UPath(path.absolute())
    Filesystem(target.parent).write(target, data)
    return path


def remove(path: UPath) -> None:
    """Delete a file, if it is there. `UPath.unlink` reads the name of one in a bucket as a pattern, and deletes what matches it."""
    with suppress(FileNotFoundError):
        path.unlink() if path.protocol in LOCAL else path.fs.rm_file(path.path)


def sync(file: Path) -> None:
    """Have the disk hold a file's content before its name says that it does."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def give_usual_mode(path: Path) -> None:
    """Give a file the permissions that new files get, which the process's umask decides.

    safetensors writes files that only their owner can read, so that a server of another user could not load them.

    Raises:
        OSError: The file belongs to another user.
    """
    probe = path.with_name(f".{path.name}-{uuid4().hex[:8]}")
    probe.touch()
    try:
        usual = stat.S_IMODE(probe.stat().st_mode)
    finally:
        probe.unlink()
    if stat.S_IMODE(path.stat().st_mode) != usual:
        path.chmod(usual)


def sha256_file(path: Path) -> str:
    """sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_CHECKSUMS = "SHA256SUMS"


def write_checksum(file: Path) -> None:
    """Write the sha256 and the name of a file into a file next to it, as `sha256sum` does."""
    write_atomically(_checksum_file(file), _checksum_line(file))


def matches_checksum(file: Path) -> bool:
    """Whether a file is as it was when `write_checksum` read it. Reads the whole file."""
    try:
        return _checksum_file(file).read_bytes() == _checksum_line(file)
    except FileNotFoundError:
        return False


def write_checksums(folder: Path) -> None:
    """Write the sha256 and the name of every file of a folder into a file of the folder, as `sha256sum` does."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    write_atomically(folder / _CHECKSUMS, b"".join(_checksum_line(file) for file in files))


def damaged_files(folder: Path) -> list[str]:
    """Return the names of the files that are missing or not as they were when `write_checksums` read them. Reads every file.

    A folder without checksums has no damaged files.
    """
    try:
        lines = (folder / _CHECKSUMS).read_bytes().splitlines(keepends=True)
    except FileNotFoundError:
        return []
    files = {_checksum_line(path): path.name for path in folder.iterdir() if path.is_file()}
    damaged = [line.decode(errors="replace")[66:].rstrip() for line in lines if line not in files]
    return damaged if lines else [_CHECKSUMS]


def _checksum_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.sha256")


def _checksum_line(file: Path) -> bytes:
    return f"{sha256_file(file)}  {file.name}\n".encode()


def sha256_files(folder: Path, files: Iterable[Path]) -> str:
    """sha256 (hex) of the names, within a folder, and the bytes of files in it."""
    lines = (
        f"{file.relative_to(folder).as_posix()} {sha256_file(file)}\n" for file in sorted(files)
    )
    return hashlib.sha256("".join(lines).encode()).hexdigest()
