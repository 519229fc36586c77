"""An append-only log: numbered files that are never changed or deleted, `00000007.json` in a folder of its own.

A writer creates the file after the last one that it has read. A file can be created only once (in a folder by a lock, in a bucket by a
conditional write), so of two writers one succeeds and the other reads again.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec
from upath import UPath

from agent_pipeline.errors import DataError
from agent_pipeline.storage.filesystem import Filesystem

_ATTEMPTS = 20
Record = TypeVar("Record")


class Log(Generic[Record]):
    """The records of one kind in a folder."""

    def __init__(self, fs: Filesystem, folder: UPath, kind: type[Record]) -> None:
        self._fs, self._folder, self._kind = fs, folder, kind

    def records(self) -> list[Record]:
        """Every record, oldest first; those that are damaged are left out."""
        return [record for path in self._paths() if (record := self._read(path)) is not None]

    def last(self) -> Record | None:
        """The last record that is not damaged."""
        return next((record for path in reversed(self._paths()) if (record := self._read(path)) is not None), None)

    def append(self, make: Callable[[int], Record | None]) -> Record | None:
        """Write the record that `make` gives for the next number; nothing where it gives `None`. `make` is called again where another
        writer was faster.

        Raises:
            DataError: others were faster many times.
        """
        for _ in range(_ATTEMPTS):
            number = max((int(path.stem) for path in self._paths()), default=0) + 1
            if (record := make(number)) is None:
                return None
            try:
                self._fs.create(self._folder / f"{number:08}.json", msgspec.json.encode(record))
            except FileExistsError:
                continue
            return record
        raise DataError(f"The records in {self._folder} are being written by others without end: repeat it later.")

    def _paths(self) -> list[UPath]:
        paths = self._folder.glob("*.json")
        return sorted((path for path in paths if path.stem.isdigit()), key=lambda path: int(path.stem))

    def _read(self, path: UPath) -> Record | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=self._kind)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
