"""The interface of every reader of a session store (`TraceSource`), and helpers for all readers.

What only readers of files need belongs in `formats`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, NamedTuple

import xxhash

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions import chat
from agent_pipeline.sessions.session import RecordedItem, Session, encode_json

SEPARATOR = b"\n\xff\n"
"""Stands between texts that are hashed together: no UTF-8 text holds it."""


class Stored(NamedTuple):
    """A session as its store holds it.

    `digest` changes whenever anything that the reader uses does. `build` reads the session: what of
    it cannot be read is its damage, and a store that cannot be read raises.
    """

    session_id: str
    digest: bytes
    build: Callable[[], Session]


class TraceSource(ABC):
    """A reader of one kind of session store.

    A subclass gives `name`, `looks_like`, `partitions` and `sessions`; everything else has a
    default. A reader turns what its store holds into sessions and no more: repair, redaction and
    judging happen later, for all sources alike. `notes` gathers sentences about what a reader left
    out and a person should know; use `add_note`.
    """

    name: ClassVar[str]
    """What the reader is called in settings, in `discover` and in the column `source`."""
    looks_like: ClassVar[str]
    """What such a store looks like, for people."""
    version: ClassVar[int] = 1
    """Raise it when the same store gives other sessions than before: tables made by an older
    version are then made again.
    """
    reads_folders: ClassVar[bool] = False
    """Whether a folder is a store as such, rather than a collection of files that are stores."""
    schemes: ClassVar[tuple[str, ...]] = ()
    """The URL schemes that the reader opens."""

    def __init__(self, where: Path | str) -> None:
        self.path = Path(where)
        self.notes: list[str] = []

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Return whether an existing path holds this kind of store.

        It looks at names and headers and reads no session.

        A reader that detects nothing is used where a location names it (`name:path`).
        """
        return False

    @abstractmethod
    def partitions(self) -> list[PartitionKey]:
        """Return the keys that the store has sessions of, in order."""

    @abstractmethod
    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        """Yield every session of a partition, ordered by id.

        Archived, empty and damaged sessions are included.

        Raises:
            PartitionError: the store has no such partition.
            StoreError: the store cannot be read to its end.
        """

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        """Yield every session with its digest, in the order of ids.

        A source whose digests come from its own rows overrides this: sessions that did not change
        are then not decoded again. Raises what `sessions` raises.
        """
        for session in self.sessions(key):
            yield as_stored(session)

    def histories(self, key: PartitionKey) -> Iterator[tuple[Session, list[RecordedItem]]]:
        """Yield every session with its history as Responses items.

        A store that keeps items gives them as recorded; other stores' items are made of the
        messages. Raises what `sessions` raises.
        """
        for session in self.sessions(key):
            yield session, items_of(session)

    def signature(self) -> str:
        """Return a text that is cheap to get and changes whenever the store may have changed."""
        return file_signature(*files_of(self.path), *self.sidecars())

    def partition_signature(self, key: PartitionKey) -> str:
        """Return a text that changes whenever the sessions of a partition may have changed.

        The text must be cheap to compute. A store that keeps each partition in its own files
        overrides this method, so that one agent's new session does not cause all sessions to be
        read. Raises what `sessions` raises.
        """
        return self.signature()

    def use_cache(self, folder: Path) -> None:
        """Remember in a local folder what was read, so that the next source has less to read.

        A reader of files needs none.
        """
        return

    def sidecars(self) -> list[Path]:
        """Return files outside the store that belong to it (verdicts, say)."""
        return []

    def reader_versions(self) -> dict[str, int]:
        """Return the version of each reader that takes part, by name.

        The reader of messages is included.
        """
        return {self.name: self.version, "messages": chat.VERSION}


def as_stored(session: Session) -> Stored:
    """Wrap a session that has already been read."""
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
    """Note the names that had to be changed to become partition names.

    Args:
        notes: The list to add the note to.
        where: The store, for the sentence.
        changed: The new name by the name that the store uses.
    """
    if changed:
        shown = ", ".join(f"{name!r} is {slug}" for name, slug in sorted(changed.items())[:5]) + (
            ", …" if len(changed) > 5 else ""
        )
        add_note(
            notes,
            f"{where}: {len(changed)} names cannot be partitions as they are, and were changed "
            f"({shown}).",
        )


def no_partition(where: object, key: PartitionKey, known: Iterable[PartitionKey]) -> PartitionError:
    """Return the error for a partition that a store lacks."""
    return PartitionError(
        f"The store {where} has no partition {key}: it has "
        f"{', '.join(map(str, sorted(known))) or 'none'}."
    )


def unreadable(path: Path, error: Exception) -> StoreError:
    """Return the error for a part of a store that cannot be read.

    SQLite quotes whole statements in its errors, so the reason is put on one line.
    """
    return StoreError(
        f"{path} cannot be read ({' '.join(str(error).split())}): check its permissions and that "
        f"it is whole."
    )


def changed(path: Path) -> StoreError:
    """Return the error for a file that is not what it was when it was indexed."""
    return StoreError(f"{path} has changed while it was read: run again when nothing writes to it.")


def files_of(path: Path) -> list[Path]:
    """Return a file, or the files of a folder and its folders, without hidden and empty ones.

    Raises:
        StoreError: a folder cannot be listed.
    """
    if path.is_file():
        return [path]
    files: list[Path] = []

    def refuse(error: OSError) -> None:
        raise error

    try:
        for folder, folders, names in os.walk(path, onerror=refuse):
            folders[:] = [name for name in folders if not name.startswith(".")]
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
            with suppress(FileNotFoundError):  # a log goes when its writer ends
                if (stat := file.stat()).st_size:
                    parts.append(f"{file}:{stat.st_size}:{stat.st_mtime_ns}")
    return "|".join(parts)


def digest(*parts: bytes) -> bytes:
    """Return the XXH3 hash (128 bits) of what a store holds of a session.

    The hash shows whether the session has changed. It guards against chance, not against an
    attacker.
    """
    return xxhash.xxh3_128(SEPARATOR.join(parts)).digest()
