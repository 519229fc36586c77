"""A folder or a bucket: the only module that distinguishes the two.

A reader sees the old version of a file or the new version, never half of a file. In a folder, a
file is written next to its target, synced and renamed. In a bucket, an object appears whole by
itself, so a file is written locally and uploaded.

What the files hold and where they lie does not belong here.
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
"""The HTTP statuses with which S3 refuses a conditional write. S3 answers 404 if the object that
the write should replace was removed."""
_STAGED_NAME = re.compile(r"\..+-[0-9a-f]{8}")
_STALE_SECONDS = 24 * 3600
_MAX_SECONDS = 600.0
"""For how many seconds a writer tries before it gives up."""
_BLOCK_BYTES = 16 << 20
_CHECKSUMS = "SHA256SUMS"


class Filesystem:
    """The files under one root.

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
        """Whether the root is a folder of this machine."""
        return self.root.protocol in LOCAL

    @property
    def is_shared(self) -> bool:
        """Whether the root is a bucket with conditional writes: several machines may write."""
        return self.root.protocol in _S3

    def open_for_arrow(self, path: UPath) -> object:
        """Return a source that pyarrow reads a file from.

        The source is a path, or for a bucket one of these:

        - the bytes of a small file, which nobody can replace while they are read;
        - an open file, of which pyarrow requests large blocks, each once. Reading it fails if
          another file was put in its place.
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
        """Return a file on this machine. A file of a bucket is downloaded first."""
        local = self.local(path)
        if not self.is_local:
            local.parent.mkdir(parents=True, exist_ok=True)
            path.fs.get_file(path.path, str(local))
        return local

    def make_scratch_folder(self, folder: UPath) -> Path:
        """Return a local folder for temporary files, and make it if it is missing.

        It is the folder itself, so that a file can be renamed; for a bucket it is the folder of the
        system.
        """
        local = Path(folder.path) if self.is_local else Path(tempfile.gettempdir())
        local.mkdir(parents=True, exist_ok=True)
        return local

    @contextmanager
    def staging(self, target: UPath) -> Iterator[Path]:
        """Yield the name of a local file to write and then `put`.

        Remove the file if writing it fails.

        What killed writers left of the same target is removed when it is a day old. A process
        number does not tell whether a writer in another container is alive.
        """
        folder = self.make_scratch_folder(target.parent)
        _remove_stale(folder, target.name)
        file = folder / f".{target.name}-{uuid4().hex[:8]}"
        try:
            yield file
        except BaseException as error:
            if isinstance(error, OSError) and error.errno and error.filename is None:
                error.filename = str(folder)  # pyarrow and a full disk name no file
            file.unlink(missing_ok=True)
            raise

    def open(self, path: UPath) -> pa.OSFile:
        """Open a file on this machine.

        The copy of a file of a bucket has no name, so that nothing has to remove it.
        """
        if self.is_local:
            return pa.OSFile(path.path)
        with self.staging(path) as file:
            path.fs.get_file(path.path, str(file))
            opened = pa.OSFile(str(file))
            file.unlink()
        return opened

    def files(self, folder: UPath) -> list[UPath]:
        """Return every file beneath a folder, in the order of their paths.

        A bucket is listed once.
        """
        if self.is_local:
            return sorted((path for path in folder.rglob("*") if path.is_file()), key=str)
        begin = len(folder.path.rstrip("/")) + 1
        names = [name[begin:] for name in folder.fs.find(folder.path)]
        return sorted((folder / name for name in names if name), key=str)

    def version(self, path: UPath) -> str:
        """Return the version of a file, which a conditional write compares.

        The version of an object in `s3://` is its ETag. The version is empty if there is no file.
        """
        try:
            return path.fs.info(path.path).get("ETag") or "there"
        except FileNotFoundError:
            return ""

    @staticmethod
    def read(path: UPath) -> bytes:
        """Return the bytes of one version of a small file.

        Reading fails if a file in a bucket is replaced meanwhile.
        """
        content: bytes = path.fs.cat_file(path.path, **_single_request(path))
        return content

    def read_all(self, paths: Sequence[UPath]) -> list[bytes]:
        """Return the bytes of small files; no bytes for a file that is gone.

        The files of a bucket are fetched at the same time.
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
        """Write a small file, with `over` only over this version, as `put_file` does.

        Raises:
            FileExistsError: the version is another one.
        """
        with self.staging(path) as file:
            file.write_bytes(content)
            sync(file)
            put_file(file, path, over=over)

    def in_turn(self, folder: UPath, write: Callable[[], Written]) -> Written:
        """Call `write` while no other writer of this machine writes to a folder.

        `write` reads a file of the folder, and writes it over the version that it read.

        One writer of this machine writes at a time (in a folder, one writer of all machines). If
        another machine was faster, `write` raises FileExistsError and is called again after a
        random pause. The pause is at most as long as the time that the writer has tried. However
        many writers there are, they spread until each succeeds.

        Raises:
            DataError: others were faster for ten minutes.
        """
        began = time.monotonic()
        while True:
            with self.lock(folder / ".lock"), suppress(FileExistsError):
                return write()
            tried = time.monotonic() - began
            if tried >= _MAX_SECONDS:
                raise DataError(
                    f"Others were faster to write to {folder} for {tried / 60:.0f} minutes: "
                    "repeat it when fewer runs write."
                )
            time.sleep(random.uniform(0, min(tried, _MAX_SECONDS - tried)))

    def keeps_conditions(self) -> bool:
        """Try whether the bucket refuses a write whose condition does not hold.

        The object that is written is removed again.

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
        except Exception as error:  # the errors of clients have no common class
            raise SettingsError(
                f"The lake {self.root} cannot be written to ({first_line(error)}): "
                "correct lake or lake_options."
            ) from error
        return refused == 2

    def check_writable(self) -> None:
        """Write a small file beneath the root, and remove it again.

        Raises:
            LakeError: the file cannot be written.
        """
        path = self.root / f".check-{uuid4().hex[:8]}"
        try:
            self.write(path, b"")
            remove(path)
        except Exception as error:  # the errors of clients have no common class
            number = getattr(error, "errno", None)
            if number in (errno.ENOSPC, errno.EDQUOT):
                raise LakeError(str(disk_sentence(error))) from error
            reason = os.strerror(number) if number else first_line(error)
            raise LakeError(
                f"The lake {self.root} cannot be written ({reason}): set lake (or "
                "AGENT_PIPELINE_LAKE) to a folder or a bucket that this user may write."
            ) from error

    def lock(self, path: UPath) -> FileLock:
        """Return a lock that a path names.

        In a folder, the lock holds among all processes that see the folder. For a bucket, it holds
        among the processes of this machine; `in_turn` and `Lake.run_of` reach further. The
        operating system releases the lock of a killed process.
        """
        local = self.local(path)
        local.parent.mkdir(parents=True, exist_ok=True)
        return FileLock(local)


def is_staged(name: str) -> bool:
    """Whether a file of this name is being written, or was left by a killed writer."""
    return bool(_STAGED_NAME.fullmatch(name))


def _remove_stale(folder: Path, name: str) -> None:
    """Remove the staged files of a target that are a day old."""
    for file in folder.glob(f".{glob.escape(name)}-*"):
        if not is_staged(file.name):
            continue
        with suppress(OSError):  # another process removed it, or it belongs to another user
            if time.time() - file.lstat().st_mtime > _STALE_SECONDS:
                file.unlink()


def put_file(file: Path, target: UPath, move: bool = True, over: str | None = None) -> None:
    """Put a finished local file in its place: rename it, or upload it to a bucket.

    Args:
        file: the local file.
        target: its place.
        move: whether to remove the local file after an upload.
        over: put the file only if the version of the target (`Filesystem.version`) is still this
            one; empty if there must not be a file. In a folder, and in a bucket that is not
            `s3://`, no other writer may write meanwhile (`Filesystem.in_turn`).

    Raises:
        FileExistsError: the version is another one.
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
    """Write an object over a version of it.

    A client that got no answer sends its request again. The second request is refused because the
    first one succeeded, so an object with the same content counts as success.

    Raises:
        FileExistsError: the version is another one.
    """
    options: dict[str, object] = {} if over else {"mode": "create"}
    if target.protocol in _S3:
        options["chunksize"] = 5 << 30  # one request, because an upload in parts takes no condition
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
    """Return the HTTP status of the answer that caused an error of s3fs, if there was an answer."""
    response = getattr(error.__cause__, "response", {})
    status: int | None = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _single_request(path: UPath) -> dict[str, int]:
    """Return options with which s3fs sends one request.

    If it may fetch a file in parts, it requests the size of the file first.
    """
    return {"max_concurrency": 1} if path.protocol in _S3 else {}


def write_atomically(path: Path, data: bytes) -> Path:
    """Write a local file: readers see the old file or the new one, never a part of a file.

    Missing folders are made.

    Raises:
        OSError: the disk is full, or this user may not write.
    """
    target = UPath(path.absolute())
    Filesystem(target.parent).write(target, data)
    return path


def remove(path: UPath) -> None:
    """Delete a file if there is one.

    `UPath.unlink` reads the name of a file in a bucket as a pattern, and deletes what matches it.
    """
    with suppress(FileNotFoundError):
        if path.protocol in LOCAL:
            path.unlink()
        else:
            path.fs.rm_file(path.path)


def sync(file: Path) -> None:
    """Wait until the disk holds the content of a file."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())


def give_usual_mode(path: Path) -> None:
    """Give a file the permissions that new files get, which the umask of the process decides.

    safetensors writes files that only their owner can read, so that a server that another user
    started could not load them.

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
    """Return the sha256 (hex) of the names, within a folder, and the bytes of files."""
    hashed = hashlib.sha256()
    for file in sorted(files):
        hashed.update(f"{file.relative_to(folder).as_posix()} {sha256_file(file)}\n".encode())
    return hashed.hexdigest()


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
    """Write the checksums of the files of a folder into a file of the folder.

    The file has the format of `sha256sum`.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    write_atomically(folder / _CHECKSUMS, b"".join(_checksum_line(file) for file in files))


def damaged_files(folder: Path) -> list[str]:
    """Return the names of the files that do not match the checksums of their folder.

    Every file is read. `write_checksums` wrote the checksums.

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
