"""An append-only log: numbered files that are never changed or deleted, `00000007.json` in a folder of its own.

A writer creates the file after the last one that it has read. A file can be created only once (in a folder by a lock, in a bucket by a
conditional write), so of two writers one succeeds and the other reads again (`Filesystem.in_turn`).

Each entry ends with two checksums: `previous_sha256` of the whole file before it, and `sha256` of its own number and content. A disk that
changed or emptied an entry is noticed, and is an error: an entry that is passed over would bring back an older champion, or forget a
decision that was spent. Entries of older versions have no checksums, and are read as they are.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import msgspec
from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.storage.filesystem import Filesystem

Record = TypeVar("Record")

_SEALED = re.compile(
    rb'(\{.*,"previous_sha256":"([0-9a-f]{64}|)"),"sha256":"([0-9a-f]{64})"\}', re.DOTALL
)
_NAMES_OF_CHECKSUMS = (b'"previous_sha256"', b'"sha256"')


class Log(Generic[Record]):
    """The records of one kind in a folder."""

    def __init__(self, fs: Filesystem, folder: UPath, kind: type[Record]) -> None:
        self._fs, self._folder, self._kind = fs, folder, kind

    def records(self) -> list[Record]:
        """Return every record, oldest first.

        Raises:
            DataError: an entry is damaged.
        """
        return self._read(self._paths())

    def last(self) -> Record | None:
        """Return the last record, or `None` if there is none.

        Raises:
            DataError: it is damaged, or the entry before it is.
        """
        records = self._read(self._paths()[-2:])
        return records[-1] if records else None

    def append(self, make: Callable[[int], Record | None]) -> Record | None:
        """Write the record that `make` gives for the next number; nothing where it gives `None`. `make` is called again where another
        writer was faster.

        Raises:
            DataError: others were faster for ten minutes, or the last entry is damaged.
        """

        def written() -> Record | None:
            paths = self._paths()
            number = _number(paths[-1]) + 1 if paths else 1
            if (record := make(number)) is not None:
                last = self._fs.read(paths[-1]) if paths else b""
                if paths:
                    self._checked(paths[-1], last, sealed_before=False)
                previous = hashlib.sha256(last).hexdigest() if paths else ""
                self._fs.write(
                    self._folder / f"{number:08}.json",
                    seal(msgspec.json.encode(record), number, previous),
                    over="",
                )
            return record

        return self._fs.in_turn(self._folder, written)

    def _paths(self) -> list[UPath]:
        paths = (
            path
            for path in self._fs.files(self._folder)
            if path.suffix == ".json" and path.stem.isdigit()
        )
        return sorted(paths, key=_number)

    def _read(self, paths: Sequence[UPath]) -> list[Record]:
        """Read entries in their order, and check each by its own checksum and by the entry after it."""
        records: list[Record] = []
        before: tuple[UPath, bytes] | None = None
        sealed_before = False
        for path, content in zip(paths, self._fs.read_all(paths), strict=True):
            previous_sha256 = self._checked(path, content, sealed_before)
            follows = (
                previous_sha256 is not None
                and before is not None
                and _number(before[0]) == _number(path) - 1
            )
            if before and follows and hashlib.sha256(before[1]).hexdigest() != previous_sha256:
                raise _damaged(before[0], "the entry after it has another checksum of it")
            sealed_before = sealed_before or previous_sha256 is not None
            before = (path, content)
            try:
                records.append(msgspec.json.decode(content, type=self._kind))
            except msgspec.DecodeError as error:
                raise _damaged(path, str(error)) from error
        return records

    @staticmethod
    def _checked(path: UPath, content: bytes, sealed_before: bool) -> str | None:
        """Return the checksum of the entry before, or `None` for an entry of an older version."""
        sealed = _SEALED.fullmatch(content)
        if sealed is None:
            if sealed_before or not content or any(name in content for name in _NAMES_OF_CHECKSUMS):
                raise _damaged(path, "it has no checksum, or only a part of one")
            return None
        if _checksum(sealed[1], _number(path)) != sealed[3].decode():
            raise _damaged(path, "its checksum does not match its content")
        return sealed[2].decode()


def seal(content: bytes, number: int, previous_sha256: str) -> bytes:
    """Return an entry's JSON object with its checksums."""
    body = content[:-1] + f',"previous_sha256":"{previous_sha256}"'.encode()
    return body + f',"sha256":"{_checksum(body, number)}"}}'.encode()


def _checksum(body: bytes, number: int) -> str:
    return hashlib.sha256(f"{number} ".encode() + body).hexdigest()


def _number(path: UPath) -> int:
    return int(path.stem)


def _damaged(path: UPath, why: str) -> DataError:
    return DataError(
        f"The entry {path} is damaged ({why}): put a copy of the file back. Without a copy, delete it: what it said is then forgotten, and "
        "the entry before it counts."
    )
