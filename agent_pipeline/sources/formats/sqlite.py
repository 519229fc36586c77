"""Functions that open SQLite files read-only, in one snapshot."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import changed, file_signature, unreadable
from agent_pipeline.sources.formats.limits import SETTING, longest_line, megabytes

BUSY_SECONDS = 5.0


def is_sqlite(path: Path) -> bool:
    """Return whether a file begins with SQLite's file header.

    Raises:
        StoreError: The file cannot be opened.
    """
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise unreadable(path, error) from error


@contextmanager
def read_only(path: Path) -> Iterator[sqlite3.Connection]:
    """Open a read-only connection with one snapshot of the database.

    This works while an agent writes to the database (WAL mode). A database in WAL mode cannot be
    opened in a folder without write permission, because SQLite needs to create an index file there.
    If the `-wal` file is missing or empty, no process is writing, so the file is opened as
    immutable. A write in the meantime then raises an error. Texts that are not UTF-8 keep their
    bytes as surrogates.

    Raises:
        StoreError: The file is not a database, or it is locked, cut off, not readable, or changed
            while it was read.
    """
    if not is_sqlite(path):
        raise StoreError(
            f"{path} is not an SQLite database (it may be cut off or empty): restore it, or move "
            "the file out of the store."
        )
    connection, before = None, file_signature(path)
    try:
        connection, is_immutable = _connect(path)
        connection.execute("BEGIN")
        yield connection
        if is_immutable and file_signature(path) != before:
            raise changed(path)
    except sqlite3.OperationalError as error:
        if "locked" in str(error) or "busy" in str(error):
            raise StoreError(
                f"{path} was locked by another process for {BUSY_SECONDS:.0f} s: close the "
                "program that writes to it, then try again."
            ) from error
        raise unreadable(path, error) from error
    except sqlite3.DataError as error:  # raised for a value above SQLITE_LIMIT_LENGTH
        raise StoreError(
            f"{path} is not read, because a value in it has more than "
            f"{megabytes(longest_line())}: raise `{SETTING}` if the size is right, or move the "
            "file out of the store."
        ) from error
    except (
        sqlite3.DatabaseError,
        UnicodeDecodeError,
        # UnicodeDecodeError is raised if SQLite's own message quotes bytes that are not UTF-8
    ) as error:
        reason = " ".join(str(error).split())
        raise StoreError(
            f"{path} is damaged ({reason}): restore it from a backup, or recover it with sqlite3's "
            f".recover."
        ) from error
    finally:
        if connection is not None:
            connection.close()


def columns(connection: sqlite3.Connection, table: str) -> set[str]:
    """Return the column names of a table, or an empty set if there is no such table."""
    return {row[1] for row in connection.execute(f"PRAGMA table_info({quoted(table)})")}


def quoted(identifier: str) -> str:
    """Return an identifier quoted for SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def _connect(path: Path) -> tuple[sqlite3.Connection, bool]:
    """Return a database connection, and whether the file was opened as immutable."""
    uri = f"file:{quote(str(path.resolve()))}?mode=ro"
    try:
        return _open(uri), False
    except sqlite3.OperationalError as error:
        wal = path.with_name(path.name + "-wal")
        no_index = error.sqlite_errorcode & 0xFF in (
            sqlite3.SQLITE_CANTOPEN,
            sqlite3.SQLITE_READONLY,
        )
        if not no_index or (wal.exists() and wal.stat().st_size):
            raise
        return _open(f"{uri}&immutable=1"), True


def _refuse_recursion(action: int, *_: str | None) -> int:
    """Refuse recursive queries.

    No reader uses a recursive query, and a view in a hostile file can recurse endlessly.
    """
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_RECURSIVE else sqlite3.SQLITE_OK


def _open(uri: str) -> sqlite3.Connection:
    """Open a connection with a size limit for values and without recursive queries."""
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest_line())
    connection.set_authorizer(_refuse_recursion)
    connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError):
        connection.close()
        raise
    return connection
