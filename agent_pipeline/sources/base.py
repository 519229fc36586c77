"""The interface of every reader of a session store (`TraceSource`), and helpers for all readers.

Code that only readers of files need belongs in `formats`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

import xxhash

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions import chat
from agent_pipeline.sessions.session import RecordedItem, Session, encode_json
from agent_pipeline.storage.lake import FORMAT_FILE

SEPARATOR = b"\n\xff\n"
"""Separator between texts that are hashed together. It cannot occur in UTF-8 text."""


class Stored(NamedTuple):
    """A session in the form in which its store holds it, before decoding.

    `digest` changes whenever any data that the reader uses changes. `build` reads the session.
    Content that cannot be read counts as damage of the session; `build` raises an error only if the
    store cannot be read.
    """

    session_id: str
    digest: bytes
    build: Callable[[], Session]


class TraceSource(ABC):
    """A reader of one kind of session store.

    A subclass provides `name`, `looks_like`, `partitions` and `sessions`; everything else has a
    default. A reader only turns the records of a store into sessions. Repair, redaction and judging
    happen later, in the same way for all sources. `notes` collects sentences for people about data
    that the reader left out; use `add_note`.
    """

    name: ClassVar[str]
    """Name of the reader in settings, in `discover` and in the column `source`."""
    looks_like: ClassVar[str]
    """Description of the kind of store that this reader reads, shown to users."""
    version: ClassVar[int] = 1
    """Version of the reader. Raise it if the reader returns different sessions for the same store;
    tables that an older version made are then made again.
    """
    reads_folders: ClassVar[bool] = False
    """True if a folder is one store, False if a folder is a collection of files that are stores."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """URL schemes of the servers that the reader can open."""

    def __init__(self, where: Path | str) -> None:
        self.path = Path(where)
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Return whether an existing path holds this kind of store.

        The method looks at names and headers, and reads no session. A reader that never detects a
        store is used only if a location names it (`name:path`).
        """
        return False

    @abstractmethod
    def partitions(self) -> list[PartitionKey]:
        """Return the keys of the partitions that the store has, sorted."""

    @abstractmethod
    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        """Yield every session of a partition, ordered by id.

        Archived, empty and damaged sessions are included.

        Raises:
            PartitionError: The store has no such partition.
            StoreError: The store cannot be read completely.
        """

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        """Yield every session with its digest, ordered by id.

        A source that can compute digests from its own rows overrides this method, so that unchanged
        sessions are not decoded again. The errors are those of `sessions`.
        """
        for session in self.sessions(key):
            yield as_stored(session)

    def stored_share(self, key: PartitionKey, remainder: int, shares: int) -> Iterator[Stored]:
        """Yield one of several disjoint shares of the sessions, for several processes.

        A source that can skip sessions without reading them overrides this method. It raises the
        same errors as `sessions`.

        Args:
            key: The partition.
            remainder: Which share to yield, from 0.
            shares: Number of shares.
        """
        return islice(self.stored(key), remainder, None, shares)

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[RecordedItem]]]:
        """Yield every session with its history as Responses items.

        A store of Responses items yields them as recorded. For other stores, the items are made
        from the messages. The errors are those of `sessions`.
        """
        for session in self.sessions(key):
            yield session, items_of(session)

    def signature(self) -> str:
        """Return a text that changes whenever the store may have changed.

        The text must be cheap to compute.
        """
        return file_signature(*files_of(self.path), *self.sidecars())

    def partition_signature(self, key: PartitionKey) -> str:
        """Return a text that changes whenever the sessions of a partition may have changed.

        The text must be cheap to compute. A store that keeps each partition in its own files
        overrides this method, so that a new session of one agent does not cause all sessions to be
        read again. The errors are those of `sessions`.
        """
        return self.signature()

    def use_cache(self, folder: Path) -> None:
        """Use a local folder as a cache of what was read, so that the next run reads less.

        A reader of files does not need a cache.
        """
        return

    def sidecars(self) -> list[Path]:
        """Return the files outside the store that belong to it, such as files of verdicts."""
        return []

    def reader_versions(self) -> dict[str, int]:
        """Return the version of each reader that reads this store, by reader name.

        The reader of messages is included.
        """
        return {self.name: self.version, "messages": chat.VERSION}


def as_stored(session: Session) -> Stored:
    """Wrap a session that has already been read in a `Stored` object."""
    return Stored(session.session_id, digest(encode_json(session)), lambda: session)


def items_of(session: Session) -> list[RecordedItem]:
    """Return a session's messages and reasoning as Responses items.

    `chat.read_chat` turns the items back into messages.
    """
    thoughts: dict[int, list[str]] = {}
    for thought in session.reasoning:
        thoughts.setdefault(thought["message"], []).append(thought["text"])
    items: list[RecordedItem] = []
    for message_index, message in enumerate(session.messages):
        items += [
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}
            for text in thoughts.get(message_index, ())
        ]
        if message["role"] == "tool":
            result = {
                "type": "function_call_output",
                "call_id": message["tool_call_id"],
                "output": message["content"],
            }
            items.append(result | ({"is_error": True} if message.get("is_error") else {}))
            continue
        calls = message.get("tool_calls") or ()
        if message["content"] or not calls:
            items.append(
                {"type": "message", "role": message["role"], "content": message["content"]}
            )
        items += [
            {"type": "function_call", **call["function"], "call_id": call["id"]} for call in calls
        ]
    return items


def add_note(notes: list[str], sentence: str) -> None:
    """Add a sentence to the notes, unless the notes already contain it."""
    if sentence not in notes:
        notes.append(sentence)


def note_changed_names(notes: list[str], where: object, changed: Mapping[str, str]) -> None:
    """Add a note about names that had to be changed to become partition names.

    Args:
        notes: The list to add the note to.
        where: The store, for the sentence.
        changed: Mapping from the store's name to the new name.
    """
    if changed:
        shown = ", ".join(f"{name!r} is {slug}" for name, slug in sorted(changed.items())[:5]) + (
            ", …" if len(changed) > 5 else ""
        )
        add_note(
            notes,
            f"{where}: {len(changed)} names contain characters that a partition cannot have, and "
            f"were changed ({shown}).",
        )


def no_partition(where: object, key: PartitionKey, known: Iterable[PartitionKey]) -> PartitionError:
    """Return the error for a partition that a store does not have."""
    return PartitionError(
        f"The store {where} has no partition {key}: it has "
        f"{', '.join(map(str, sorted(known))) or 'none'}."
    )


def unreadable(path: Path, error: Exception) -> StoreError:
    """Return the error for a part of a store that cannot be read.

    SQLite quotes whole statements in its errors, so the reason is put on one line.
    """
    return StoreError(
        f"{path} cannot be read ({' '.join(str(error).split())}): check its permissions, and that "
        "the file is complete."
    )


def changed(path: Path) -> StoreError:
    """Return the error for a file that changed after the reader indexed it."""
    return StoreError(
        f"{path} changed while it was being read: start the run again when no program writes to it."
    )


def is_lake(folder: Path) -> bool:
    """Return whether a folder is a lake.

    The tables of a lake are copies of sessions. A store around the lake that read them too would
    count each session several times.
    """
    return (folder / FORMAT_FILE).is_file()


def files_of(path: Path) -> list[Path]:
    """Return a file, or the files of a folder and its subfolders.

    Hidden and empty files are left out, and so are lakes inside the folder.

    Raises:
        StoreError: A folder cannot be listed.
    """
    if path.is_file():
        return [path]
    files: list[Path] = []

    def refuse(error: OSError) -> None:
        raise error

    try:
        for folder, folders, names in os.walk(path, onerror=refuse):
            folders[:] = [
                name
                for name in folders
                if not name.startswith(".") and not is_lake(Path(folder, name))
            ]
            files += [Path(folder, name) for name in names if not name.startswith(".")]
        return sorted(file for file in files if file.is_file() and file.stat().st_size)
    except OSError as error:
        raise unreadable(path, error) from error


def file_signature(*paths: Path) -> str:
    """Return the paths, sizes and modification times of files and of their write-ahead logs.

    Empty files do not count, because reading a database can leave an empty log behind.
    """
    parts = []
    for path in paths:
        for file in (path, path.with_name(path.name + "-wal")):
            with suppress(FileNotFoundError):  # a log disappears when its writer ends
                if (stat := file.stat()).st_size:
                    parts.append(f"{file}:{stat.st_size}:{stat.st_mtime_ns}")
    return "|".join(parts)


def digest(*parts: bytes) -> bytes:
    """Return the XXH3 hash (128 bits) of the data that a store holds for a session.

    The hash shows whether the session has changed. The hash detects accidental changes, but does
    not protect against an attacker.
    """
    return xxhash.xxh3_128(SEPARATOR.join(parts)).digest()
