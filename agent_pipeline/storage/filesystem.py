"""File access in a folder or a bucket; no other module distinguishes the two.

A reader sees the old or the new version of a file, never half of a file. In a folder, a file is
written next to its target, synced and renamed. In a bucket, an object appears only when it is
complete, so a file is written locally and uploaded. The content and the paths of files do not
belong here.
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
from typing import TypeVar
from uuid import uuid4

import pyarrow as pa
from filelock import FileLock
from upath import UPath

from agent_pipeline.errors import DataError, LakeError, SettingsError, disk_sentence, first_line
from agent_pipeline.storage.roots import LOCAL, open_root, resolve_options

Written = TypeVar("Written")
_S3 = ("s3", "s3a")
_REFUSED = (409, 412)
"""HTTP statuses with which S3 refuses a conditional write. S3 answers 404 if the object to be
replaced was removed.
"""
_STAGED_NAME = re.compile(r"\..+-[0-9a-f]{8}")
_STALE_SECONDS = 24 * 3600
_MAX_SECONDS = 600.0
"""Maximum time in seconds for which a writer retries."""
_BLOCK_BYTES = 16 << 20
_CHECKSUMS = "SHA256SUMS"


class Filesystem:
    """Access to the files under one root, which is a local folder or a bucket.

    Args:
        root: a local folder, or a URL of fsspec's (`s3://bucket/lake`).
        cache: the local folder for copies of files of a bucket.
        options: options for fsspec (`endpoint_url`, `key`, …). A value `$NAME` is read from the
            environment.

    Raises:
        SettingsError: the root is a file, its protocol is unknown, or a package or an environment
            variable that it needs is missing.
        LakeError: the bucket cannot be read.
    """

    def __init__(
        self,
        root: str | UPath,
        cache: Path | None = None,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.root = open_root(root, resolve_options(options or {}))
        self.cache = cache or Path(tempfile.gettempdir()) / "agent-pipeline"

    @property
    def is_local(self) -> bool:
        """True if the root is a folder on this machine."""
        return self.root.protocol in LOCAL

    @property
    def is_shared(self) -> bool:
        """True if several machines may write to the root.

        A bucket with conditional writes is such a root.
        """
        return self.root.protocol in _S3

    def open_for_arrow(self, path: UPath) -> object:
        """Return a source from which pyarrow reads a file.

        The source is a path, or one of these for a bucket:

        - the bytes of a small file, which cannot be replaced while they are read
        - an open file, from which pyarrow requests large blocks, each once; reading fails if the
          file was replaced in the meantime
        """
        if self.is_local:
            return path.path
        if path.fs.info(path.path)["size"] <= _BLOCK_BYTES:
            return pa.BufferReader(path.fs.cat_file(path.path, start=0))
        return path.fs.open(
            path.path,
            block_size=_BLOCK_BYTES,
            cache_type="blockcache",
            cache_options={"maxblocks": 4},
        )

    def local(self, path: UPath) -> Path:
        """Return the path of a file on this machine.

        For a bucket, it is the path of the copy in the cache.
        """
        if self.is_local:
            return Path(path.path)
        return self.cache.joinpath(*path.relative_to(self.root).parts)

    def fetch(self, path: UPath) -> Path:
        """Return the path of a file on this machine, after downloading it from a bucket."""
        local = self.local(path)
        if not self.is_local:
            local.parent.mkdir(parents=True, exist_ok=True)
            path.fs.get_file(path.path, str(local))
        return local

    def make_scratch_folder(self, folder: UPath) -> Path:
        """Return a local folder for temporary files.

        The folder is created if it is missing. For a lake in a folder, it is the given folder
        itself, so that a file can be renamed. For a bucket, it is the temporary folder of the
        system.
        """
        local = Path(folder.path) if self.is_local else Path(tempfile.gettempdir())
        local.mkdir(parents=True, exist_ok=True)
        return local

    @contextmanager
    def staging(self, target: UPath) -> Iterator[Path]:
        """Yield the name of a local file to be written and then `put`.

        The file is removed if writing it fails. Files that killed writers left for the same target
        are removed if they are a day old. Their age is used because a process number does not show
        whether a writer in another container is alive.
        """
        folder = self.make_scratch_folder(target.parent)
        _remove_stale(folder, target.name)
        file = folder / f".{target.name}-{uuid4().hex[:8]}"
        try:
            yield file
        except BaseException as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(folder)  # pyarrow names no file if the disk is full
            file.unlink(missing_ok=True)
            raise

    def open(self, path: UPath) -> pa.OSFile:
        """Open a file on this machine.

        The local copy of a file in a bucket has no name, so that it disappears by itself.
        """
        if self.is_local:
            return pa.OSFile(path.path)
        with self.staging(path) as file:
            path.fs.get_file(path.path, str(file))
            opened = pa.OSFile(str(file))
            file.unlink()
        return opened

    def files(self, folder: UPath) -> list[UPath]:
        """Return all files below a folder, ordered by path.

        A bucket is listed once.
        """
        if self.is_local:
            return sorted((path for path in folder.rglob("*") if path.is_file()), key=str)
        begin = len(folder.path.rstrip("/")) + 1
        names = [name[begin:] for name in folder.fs.find(folder.path)]
        return sorted((folder / name for name in names if name), key=str)

    def version(self, path: UPath) -> str:
        """Return the version of a file, which a conditional write compares.

        In `s3://`, the version of an object is its ETag. The version is empty if the file does not
        exist.
        """
        try:
            return path.fs.info(path.path).get("ETag") or "there"
        except FileNotFoundError:
            return ""

    @staticmethod
    def read(path: UPath) -> bytes:
        """Return the bytes of a small file.

        All bytes are from the same version; reading fails if a file in a bucket is replaced in the
        meantime.
        """
        content: bytes = path.fs.cat_file(path.path, **_single_request(path))
        return content

    def read_all(self, paths: Sequence[UPath]) -> list[bytes]:
        """Return the bytes of small files.

        A missing file gives empty bytes. Files in a bucket are downloaded at the same time.
        """
        if not paths:
            return []
        contents = self.root.fs.cat_ranges(
            [path.path for path in paths],
            None,
            None,
            on_error="return",
            **_single_request(self.root),
        )
        read: list[bytes] = []
        for content in contents:
            if isinstance(content, FileNotFoundError):
                read.append(b"")
            elif isinstance(content, Exception):
                raise content
            else:
                read.append(content)
        return read

    def write(self, path: UPath, content: bytes, over: str | None = None) -> None:
        """Write a small file.

        If `over` is set, the file is written only over this version, as `put_file` does.

        Raises:
            FileExistsError: the file has a different version.
        """
        with self.staging(path) as file:
            file.write_bytes(content)
            sync(file)
            put_file(file, path, over=over)

    def in_turn(self, folder: UPath, write: Callable[[], Written]) -> Written:
        """Call `write` while no other writer on this machine writes to the same folder.

        `write` reads a file of the folder, and writes it over the version that it read. Only one
        writer per machine writes at a time (in a folder, only one writer on all machines). If
        another machine was faster, `write` raises FileExistsError and is called again after a
        random pause. The pause is at most as long as the time that the writer has tried so far. The
        writers spread out in this way until each of them succeeds.

        Raises:
            DataError: other writers were faster for ten minutes.
        """
        began = time.monotonic()
        while True:
            with self.lock(folder / ".lock"), suppress(FileExistsError):
                return write()
            tried = time.monotonic() - began
            if tried >= _MAX_SECONDS:
                raise DataError(
                    f"Other processes kept writing to {folder} for {tried / 60:.0f} minutes, so "
                    "this process could not write: try again when fewer runs write to the lake."
                )
            time.sleep(random.uniform(0, min(tried, _MAX_SECONDS - tried)))

    def keeps_conditions(self) -> bool:
        """Return whether the bucket refuses a write whose condition does not hold.

        The object that is written for this test is removed again.

        Raises:
            SettingsError: the bucket cannot be written to.
        """
        path = self.root / f".check-{uuid4().hex[:8]}"
        refused = 0
        try:
            for content, over in ((b"first", ""), (b"second", ""), (b"third", '"another"')):
                try:
                    self.write(path, content, over)
                except FileExistsError:
                    refused += 1
            path.fs.rm_file(path.path)
        except Exception as error:  # the errors of different clients have no common class
            raise SettingsError(
                f"The lake {self.root} cannot be written to ({first_line(error)}): correct the "
                "settings `lake` or `lake_options`."
            ) from error
        return refused == 2

    def check_writable(self) -> None:
        """Check that a small file can be written below the root, and remove it again.

        Raises:
            LakeError: the file cannot be written.
        """
        path = self.root / f".check-{uuid4().hex[:8]}"
        try:
            self.write(path, b"")
            remove(path)
        except Exception as error:  # the errors of different clients have no common class
            number = getattr(error, "errno", None)
            if number in (errno.ENOSPC, errno.EDQUOT):
                raise LakeError(str(disk_sentence(error))) from error
            reason = os.strerror(number) if number else first_line(error)
            raise LakeError(
                f"The lake {self.root} cannot be written ({reason}): set `lake` (or "
                "AGENT_PIPELINE_LAKE) to a folder or a bucket that this user can write to."
            ) from error

    def lock(self, path: UPath) -> FileLock:
        """Return the lock with the given path.

        In a folder, the lock works among all processes that see the folder. For a bucket, it works
        only among the processes of this machine; `in_turn` and `Lake.run_of` also work across
        machines. The operating system releases the lock of a killed process.
        """
        local = self.local(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(local)


def is_staged(name: str) -> bool:
    """Return whether a file with this name is a staged file.

    A staged file is being written, or was left by a killed writer.
    """
    return bool(_STAGED_NAME.fullmatch(name))


def _remove_stale(folder: Path, name: str) -> None:
    """Remove staged files of a target that are older than a day."""
    for file in folder.glob(f".{glob.escape(name)}-*"):
        if not is_staged(file.name):
            continue
        with suppress(OSError):  # another process removed the file, or it belongs to another user
            if time.time() - file.lstat().st_mtime > _STALE_SECONDS:
                file.unlink()


def put_file(file: Path, target: UPath, move: bool = True, over: str | None = None) -> None:
    """Move a finished local file to its final place, by renaming or uploading it.

    Args:
        file: the local file.
        target: its final place.
        move: whether to remove the local file after an upload.
        over: if set, the file is put in place only if the target still has this version
            (`Filesystem.version`). An empty text means that the target must not exist. In a folder,
            and in a bucket other than `s3://`, no other writer may write at the same time
            (`Filesystem.in_turn`).

    Raises:
        FileExistsError: the target has a different version.
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
    """Replace an object in a bucket, but only if it still has a given version.

    A client that gets no answer sends its request again. The second request may be refused because
    the first one succeeded, so an object with the same content counts as success.

    Raises:
        FileExistsError: the object has a different version.
    """
    options: dict[str, object] = {} if over else {"mode": "create"}
    if target.protocol in _S3:
        # a single request, because an upload in parts cannot have a condition
        options["chunksize"] = 5 << 30
        if over:
            options["IfMatch"] = over
    try:
        target.fs.pipe_file(target.path, content, **options)
    except OSError as error:
        status = _http_status(error)
        was_removed = bool(over) and status == 404
        is_refused = isinstance(error, FileExistsError) or status in _REFUSED or was_removed
        if not is_refused:
            raise
        with suppress(FileNotFoundError):
            if Filesystem.read(target) == content:
                return
        raise FileExistsError(target.path) from error


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status behind an error of s3fs, or None if there was no answer."""
    response = getattr(error.__cause__, "response", {})
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _single_request(path: UPath) -> dict[str, int]:
    """Return options that make s3fs send a single request.

    By default, s3fs may fetch a file in parts, and therefore first requests the size of the file.
    """
    return {"max_concurrency": 1} if path.protocol in _S3 else {}


def write_atomically(path: Path, data: bytes) -> Path:
    """Write a local file in one step.

    Readers see the old or the new file, never a part of a file. Missing folders are created.

    Raises:
        OSError: the disk is full, or this user may not write.
    """
    target = UPath(path.absolute())
    Filesystem(target.parent).write(target, data)
    return path


def remove(path: UPath) -> None:
    """Delete a file if it exists.

    `UPath.unlink` is not used for a bucket, because it reads the name as a pattern and deletes all
    matching files.
    """
    with suppress(FileNotFoundError):
        if path.protocol in LOCAL:
            path.unlink()
        else:
            path.fs.rm_file(path.path)


def sync(file: Path) -> None:
    """Wait until the content of a file is stored on the disk."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def give_usual_mode(path: Path) -> None:
    """Give a file the usual permissions of new files, as defined by the umask of the process.

    safetensors writes files that only their owner can read, so a server of another user could not
    load them.

    Raises:
        OSError: the file belongs to another user.
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
    """Return the sha256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_files(folder: Path, files: Iterable[Path]) -> str:
    """Return the sha256 (hex) of the relative names and the contents of files."""
    hashed = hashlib.sha256()
    for file in sorted(files):
        hashed.update(f"{file.relative_to(folder).as_posix()} {sha256_file(file)}\n".encode())
    return hashed.hexdigest()


def write_checksum(file: Path) -> None:
    """Write a checksum file next to a file.

    The checksum file holds the sha256 and the name of the file, in the format of `sha256sum`.
    """
    write_atomically(_checksum_file(file), _checksum_line(file))


def matches_checksum(file: Path) -> bool:
    """Return whether a file still matches the checksum that `write_checksum` wrote.

    The whole file is read.
    """
    try:
        return _checksum_file(file).read_bytes() == _checksum_line(file)
    except FileNotFoundError:
        return False


def write_checksums(folder: Path) -> None:
    """Write the checksums of a folder's files into a file in the folder.

    The file has the format of `sha256sum`.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    write_atomically(folder / _CHECKSUMS, b"".join(_checksum_line(file) for file in files))


def damaged_files(folder: Path) -> list[str]:
    """Return the names of files that do not match the checksums of their folder.

    `write_checksums` wrote the checksums. Every file is read. In a folder without checksums, no
    file counts as damaged.
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
