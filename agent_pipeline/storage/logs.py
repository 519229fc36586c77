"""An append-only log: numbered files that are never changed or deleted, `00000007.json` in a folder of its own.

A writer creates the file after the last one that it has read. A file can be created only once (in a folder by a lock, in a bucket by a
conditional write), so of two writers one succeeds and the other reads again (`Filesystem.in_turn`).
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from upath import UPath

from agent_pipeline.storage.filesystem import Filesystem

Record = TypeVar("Record")


class Log(Generic[Record]):
    """The records of one kind in a folder."""

    def __init__(self, fs: Filesystem, folder: UPath, kind: type[Record]) -> None:
        self._fs, self._folder, self._kind = fs, folder, kind

    def records(self) -> list[Record]:
        """Every record, oldest first; those that are damaged are left out."""
        contents = self._fs.read_all(self._paths())
        return [record for content in contents if (record := self._decoded(content)) is not None]

    def last(self) -> Record | None:
        """The last record that is not damaged."""
        return next((record for path in reversed(self._paths()) if (record := self._decoded(self._fs.read(path))) is not None), None)

    def append(self, make: Callable[[int], Record | None]) -> Record | None:
        """Write the record that `make` gives for the next number; nothing where it gives `None`. `make` is called again where another
        writer was faster.

        Raises:
            DataError: others were faster for ten minutes.
        """

        def written() -> Record | None:
            number = max((int(path.stem) for path in self._paths()), default=0) + 1
            if (record := make(number)) is not None:
                self._fs.write(self._folder / f"{number:08}.json", msgspec.json.encode(record), over="")
            return record

        return self._fs.in_turn(self._folder, written)

    def _paths(self) -> list[UPath]:
        paths = (path for path in self._fs.files(self._folder) if path.suffix == ".json" and path.stem.isdigit())
        return sorted(paths, key=lambda path: int(path.stem))

    def _decoded(self, content: bytes) -> Record | None:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(content, type=self._kind)
        return None
