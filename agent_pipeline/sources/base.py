"""What every reader offers, and the reading of SQLite files that two of them share."""

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import starmap
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol
from urllib.parse import quote

import msgspec
import xxhash

from agent_pipeline.errors import StoreError
from agent_pipeline.keys import PartitionKey
from agent_pipeline.sessions.session import Session, json_bytes

BUSY_SECONDS = 5.0

BETWEEN = b"\n\xff\n"
"""Between two texts that are hashed together: no UTF-8 has it."""


class TraceSource(Protocol):
    """A session store that can be read.

    `notes` gathers, in sentences, what a reader met that is no failure but that a person should know (no verdict file, say); each
    sentence once. A source may also offer `stored(key)`: every session as the three values of `Stored`, in the order of their ids, so that
    what did not change is not decoded again.
    """

    name: ClassVar[str]
    looks_like: ClassVar[str]
    notes: list[str]

    def __init__(self, path: Path) -> None: ...

    @classmethod
    def detect(cls, path: Path) -> bool:
        """Whether the path (which exists) holds this kind of store; looks at names and headers, reads no session."""
        ...

    def partitions(self) -> list[PartitionKey]:
        """The keys that the store has sessions of, in order."""
        ...

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        """Every session of a partition, archived, empty and damaged ones too, in the order of their ids.

        Raises:
            PartitionError: the store has no such partition.
            StoreError: the store cannot be read to its end (an unreadable store is a failure, not an empty list).
        """
        ...

    def signature(self) -> str:
        """A cheap text (names, sizes, times of files) that changes whenever the store may have changed."""
        ...


class Stored(NamedTuple):
    """A session as its store holds it: `digest` changes whenever anything that the reader takes does; `build` reads it (null: it cannot
    be read, which the source notes)."""

    session_id: str
    digest: bytes
    build: Callable[[], Session | None]


def stored_sessions(source: TraceSource, key: PartitionKey) -> Iterator[Stored]:
    """A partition's sessions with their digests: of the store's own rows where the source offers that (`stored`), else of what it reads."""
    if (quick := getattr(source, "stored", None)) is not None:
        yield from starmap(Stored, quick(key))
        return
    yield from map(as_stored, source.sessions(key))


def as_stored(session: Session) -> Stored:
    """A session that is read already."""
    return Stored(session.session_id, digest(json_bytes(session)), lambda: session)


def add_note(notes: list[str], sentence: str) -> None:
    """Note a sentence, once."""
    if sentence not in notes:
        notes.append(sentence)


def is_sqlite(path: Path) -> bool:
    """Whether a file begins as every SQLite database does."""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> StoreError:
    """The error that says that a part of a store cannot be read, and why."""
    return StoreError(f"{path} cannot be read ({_line(error)}): check its permissions and that it is a whole session database.")


def _line(error: Exception) -> str:
    """What an error says in one line; SQLite quotes whole statements."""
    return " ".join(str(error).split())


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection in one snapshot, whatever a writing agent does meanwhile (WAL).

    A database left in WAL mode in a folder that we may not write cannot be opened with its shared-memory index; without a `-wal` file
    it is complete in itself, and is then opened as immutable.

    Raises:
        StoreError: not a database, locked, cut off, or not readable.
    """
    if not is_sqlite(path):
        raise StoreError(f"{path} is not an SQLite database (it may be cut off or empty): restore it, or take it out of the store.")
    connection = None
    try:
        connection = _connect(path)
        connection.execute("BEGIN")
        yield connection
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StoreError(
                f"{path} was locked by another process for {BUSY_SECONDS:.0f} s: close what writes to it, then run again."
            ) from error
        raise unreadable(path, error) from error
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:  # the second: SQLite's own message quotes bytes that are no text
        raise StoreError(f"{path} is damaged ({_line(error)}): restore it from a backup, or mend it with sqlite3's .recover.") from error
    finally:
        if connection is not None:
            connection.close()


def _connect(path: Path) -> sqlite3.Connection:
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        return _opened(uri)
    except sqlite3.OperationalError as error:
        wal = path.with_name(path.name + "-wal")
        no_index = error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
        if not no_index or (wal.exists() and wal.stat().st_size):
            raise
        return _opened(f"{uri}&immutable=1")


def _opened(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """The column names of a table; empty where there is no such table."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({quoted(table)})")}


def quoted(identifier: str) -> str:
    """An SQL identifier in double quotes."""
    return '"' + identifier.replace('"', '""') + '"'


def file_signature(*paths: Path) -> str:
    """Paths, sizes and modification times of files (and of their write-ahead logs; reading alone may leave an empty one)."""
    parts = []
    for path in paths:
        for each in (path, path.with_name(path.name + "-wal")):
            if each.exists() and (stat := each.stat()).st_size:
                parts.append(f"{each}:{stat.st_size}:{stat.st_mtime_ns}")
    return "|".join(parts)


def timestamp(value: object) -> datetime | None:
    """A store's time as UTC: ISO text (SQLite's form has no zone and means UTC), or seconds since 1970; null if unreadable."""
    try:
        if isinstance(value, int | float):
            return datetime.fromtimestamp(value, UTC)
        if isinstance(value, str) and value:
            parsed = datetime.fromisoformat(value)
            return parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        pass
    return None


def clean_text(value: object) -> str | None:
    """A database value as text that can be written as UTF-8 (bytes that are none become escapes); null and empty are null."""
    if value is None or value == "":
        return None
    text = str(value)
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode("utf-8")


def digest(*parts: bytes) -> bytes:
    """A hash of what a store holds of a session, to see whether it changed: XXH3, 128 bits, a tenth of sha256's time; proof against chance,
    not against an enemy, who could as well change what the table says."""
    found = xxhash.xxh3_128(parts[0])
    for part in parts[1:]:
        found.update(BETWEEN)
        found.update(part)
    return found.digest()


def parsed_object(raw: str | bytes | None) -> dict[str, Any] | None:
    """The JSON object in a text; null where it holds anything else. Bytes that are no UTF-8 and half emoji are let in, to be mended."""
    if raw is None:
        return None
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TypeError):
        try:
            value = json.loads(raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw)
        except (ValueError, RecursionError, TypeError):
            return None
    return value if isinstance(value, dict) else None
