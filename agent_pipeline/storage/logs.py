"""Append-only logs: numbered files that are never changed or deleted.

An entry is a file such as `00000007.json` in the folder of its log. A writer creates the file after
the last one that it has read. A file can be created only once (in a folder by a lock, in a bucket
by a conditional write). If two writers try to create the same file, one succeeds, and the other
reads the log again (`Filesystem.in_turn`).

Each entry ends with the name of its log and two checksums: `previous_sha256` of the whole previous
file, and `sha256` of its own number and content. An entry that was changed, emptied, lost or
exchanged with another is an error. If such an entry were skipped, an older champion could come
back, or a decision that has spent error budget could be forgotten. A person without a copy of the
entry can accept the loss with the file `00000007.lost`, which replaces the entry. Entries of older
versions have no checksums or no log name, and are read without these checks.

What an entry contains belongs in the modules that write logs.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from upath import UPath

from agent_pipeline.errors import DamageError
from agent_pipeline.storage.filesystem import Filesystem
from agent_pipeline.structs import decode_json

Record = TypeVar("Record")

_LOST = ".lost"
"""Suffix of a file that a user created to replace a log entry that cannot be restored."""
_LAST = "last"
"""Name of the file with the number of the last entry, which shows whether the last entry
was lost.
"""
_SEALED = re.compile(
    rb'(\{.*?(?:,"log":("(?:[^"\\]|\\.)*"))?,"previous_sha256":"([0-9a-f]{64}|)"),"sha256":"([0-9a-f]{64})"\}',
    re.DOTALL,
)
_NAMES_OF_CHECKSUMS = (b'"previous_sha256"', b'"sha256"')


@dataclass(frozen=True)
class Seal:
    """The last part of a log entry: the checksum of the previous file, and the name of the log.

    The name is empty in an entry that an older version wrote.
    """

    log: str
    previous_sha256: str


class Log(Generic[Record]):
    """The log of one kind of record, stored in a folder."""

    def __init__(self, fs: Filesystem, folder: UPath, kind: type[Record]) -> None:
        self._fs, self._folder, self._kind = fs, folder, kind
        self._name = folder.relative_to(fs.root).as_posix()

    def records(self) -> list[Record]:
        """Return all records of the log, oldest first.

        Raises:
            DamageError: an entry is damaged or missing.
        """
        return self._read(self._paths())

    def last(self) -> Record | None:
        """Return the last record, or `None` if the log is empty.

        Raises:
            DamageError: the last entry or the entry before it is damaged, or an entry is missing.
        """
        records = self._read(self._paths()[-2:])
        return records[-1] if records else None

    def append(self, make: Callable[[int], Record | None]) -> Record | None:
        """Append the record that `make` returns for the next number, and return it.

        If `make` returns `None`, nothing is written. `make` is called again if another writer was
        faster.

        Raises:
            DataError: other writers were faster for ten minutes.
            DamageError: the last entry is damaged, or an entry is missing.
        """

        def write_next() -> Record | None:
            paths = self._paths(with_lost=True)
            number = _number(paths[-1]) + 1 if paths else 1
            record = make(number)
            if record is None:
                return None
            previous_sha256 = ""
            if paths:
                content = self._fs.read(paths[-1])
                previous_sha256 = hashlib.sha256(content).hexdigest()
                if paths[-1].suffix != _LOST:
                    self._check(paths[-1], content, must_be_sealed=False)
            entry = seal(msgspec.json.encode(record), number, self._name, previous_sha256)
            self._fs.write(self._folder / f"{number:08}.json", entry, over="")
            self._fs.write(self._folder / _LAST, self._numbered(number))
            return record

        return self._fs.in_turn(self._folder, write_next)

    def _paths(self, with_lost: bool = False) -> list[UPath]:
        """Return the paths of the log entries, oldest first.

        If `with_lost` is set, files that replace lost entries are included.

        Raises:
            DamageError: an entry is missing.
        """
        # read before the listing, so that a concurrent writer cannot cause a false gap
        last = self._last_number()
        paths = self._list_paths()
        if _first_gap(last, paths):
            # If a writer adds entries during the listing, it may show a new entry without the entry
            # before it.
            paths = self._list_paths()
        if gap := _first_gap(last, paths):
            raise self._missing(gap)
        ordered = [paths[number] for number in sorted(paths)]
        return [path for path in ordered if with_lost or path.suffix != _LOST]

    def _list_paths(self) -> dict[int, UPath]:
        """Return the paths of the log entries, by entry number.

        For an entry that a person gave up, the file that replaces it is returned.
        """
        numbered = [path for path in self._fs.files(self._folder) if path.stem.isdigit()]
        entries = {_number(path): path for path in numbered if path.suffix == ".json"}
        lost = {_number(path): path for path in numbered if path.suffix == _LOST}
        return lost | entries

    def _last_number(self) -> int:
        """Return the number that the file `last` records.

        The number is 0 if the file is damaged, or if an older version wrote the log. If a writer
        was killed, the number may be smaller than the number of the last entry.
        """
        try:
            content = self._fs.read(self._folder / _LAST)
        except FileNotFoundError:
            return 0
        number = content[:8]
        return int(number) if number.isdigit() and content == self._numbered(int(number)) else 0

    def _numbered(self, number: int) -> bytes:
        """Return the content of the file `last` for a number."""
        text = f"{number:08}"
        return f"{text} {_checksum(self._name.encode(), number)}\n".encode()

    def _read(self, paths: Sequence[UPath]) -> list[Record]:
        """Read log entries in order.

        Each entry is checked by its own checksum and by the entry after it.
        """
        records: list[Record] = []
        before: UPath | None = None
        content_before = b""
        sealed_before = False
        for path, content in zip(paths, self._fs.read_all(paths), strict=True):
            entry_seal = self._check(path, content, must_be_sealed=sealed_before)
            follows = before is not None and _number(before) == _number(path) - 1
            sha256_before = hashlib.sha256(content_before).hexdigest()
            if before and follows and entry_seal and entry_seal.previous_sha256 != sha256_before:
                raise _damaged(before, f"{path.name} records another checksum for it")
            try:
                records.append(decode_json(content, self._kind))
            except (msgspec.DecodeError, UnicodeError) as error:
                raise _damaged(path, str(error)) from error
            sealed_before = sealed_before or entry_seal is not None
            before, content_before = path, content
        return records

    def _check(self, path: UPath, content: bytes, must_be_sealed: bool) -> Seal | None:
        """Check a log entry against its own checksum, and return its seal.

        The result is `None` for an entry of an older version.
        """
        sealed = _SEALED.fullmatch(content)
        if sealed is None:
            has_a_name = any(name in content for name in _NAMES_OF_CHECKSUMS)
            if must_be_sealed or not content or has_a_name:
                raise _damaged(path, "it has no checksum, or only a part of one")
            return None
        body, log, previous_sha256, sha256 = sealed.groups()
        if _checksum(body, _number(path)) != sha256.decode():
            raise _damaged(path, "its checksum does not match its content")
        name = decode_json(log, str) if log else ""
        if name not in ("", self._name):
            raise _damaged(path, f"it is an entry of {name}")
        return Seal(name, previous_sha256.decode())

    def _missing(self, number: int) -> DamageError:
        path = self._folder / f"{number:08}.json"
        return DamageError(
            f"The entry {path} is missing: restore the file from a backup. Without a copy, create "
            f"the empty file {path.stem}{_LOST} next to it. The content of the entry is then lost.",
            path,
        )


def seal(content: bytes, number: int, log: str, previous_sha256: str) -> bytes:
    """Return an entry's JSON object with the name of its log and its checksums added.

    Args:
        content: a JSON object.
        number: the number of the entry.
        log: the path of the log's folder under the root of the lake.
        previous_sha256: the sha256 of the previous file. It is empty for the first entry.
    """
    body = content[:-1] + b',"log":' + msgspec.json.encode(log)
    body += f',"previous_sha256":"{previous_sha256}"'.encode()
    return body + f',"sha256":"{_checksum(body, number)}"}}'.encode()


def _first_gap(last: int, paths: dict[int, UPath]) -> int | None:
    """Return the number of the first missing log entry, or `None` if no entry is missing."""
    for number in range(1, max((last, *paths)) + 1):
        if number not in paths:
            return number
    return None


def _checksum(body: bytes, number: int) -> str:
    return hashlib.sha256(f"{number} ".encode() + body).hexdigest()


def _number(path: UPath) -> int:
    return int(path.stem)


def _damaged(path: UPath, reason: str) -> DamageError:
    return DamageError(
        f"The entry {path} is damaged ({reason}): restore the file from a backup. Without a copy, "
        f"rename it to {path.stem}{_LOST}. The content of the entry is then lost. If it is the "
        "last entry, the entry before it counts.",
        path,
    )
