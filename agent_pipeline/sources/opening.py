"""Opening of stores: parsing locations, detecting readers, and finding the stores in a folder.

A location is a path, or a URL whose scheme a reader opens. A reader's name may stand in front of
either (`openinference:/data/spans.jsonl`). Detection is skipped for a location with a reader's
name.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from agent_pipeline.errors import StoreError
from agent_pipeline.sources.base import TraceSource, is_lake, unreadable
from agent_pipeline.sources.combined import CombinedSource
from agent_pipeline.sources.formats.record_files import kind_of, records
from agent_pipeline.sources.plugins import plugin_readers
from agent_pipeline.sources.registry import SOURCES, Reader

_NAMED = re.compile(r"([a-z][a-z0-9_]+):(?!//)(.+)", re.DOTALL)


class Location(NamedTuple):
    """The path or URL of a store, and the reader that the user named, if any."""

    where: str
    reader: str | None = None

    def __str__(self) -> str:
        where = (
            re.sub(r"(?<=://)[^?]*@|\?.*", "", self.where) if self.is_url else self.where
        )  # passwords are not shown
        return f"{self.reader}:{where}" if self.reader else where

    @property
    def is_url(self) -> bool:
        return "://" in self.where


@dataclass
class Finds:
    """The result of searching a path: stores, files that no reader accepts, and errors."""

    stores: list[tuple[Path, Reader]] = field(default_factory=list)
    unknown: list[Path] = field(default_factory=list)
    errors: list[tuple[Path, StoreError]] = field(default_factory=list)


def parse_location(text: str, home: Path | None = None) -> Location:
    """Parse a location that a user wrote.

    A relative path starts at `home` (by default, the working directory). The form `name:path` names
    a reader, unless a file of exactly that name exists.
    """
    named = _NAMED.fullmatch(text)
    if named and not os.path.exists(_absolute(text, home)):  # noqa: PTH110  Path.exists raises for a folder that may not be entered
        return Location(named[2] if "://" in named[2] else str(_absolute(named[2], home)), named[1])
    return Location(text if "://" in text else str(_absolute(text, home)))


def readers(dotted: Sequence[str] = ()) -> tuple[Reader, ...]:
    """Return the readers of this installation, with the user's own readers first.

    The user's readers are the readers that the settings name in `dotted`, then the readers of entry
    points.

    Raises:
        SettingsError: A reader of the user cannot be loaded, or is not a `TraceSource`.
    """
    return (*plugin_readers(tuple(dotted)), *SOURCES)


def open_sources(
    locations: Sequence[Location], known: Sequence[Reader] = SOURCES, cache: Path | None = None
) -> TraceSource:
    """Return one source that reads all stores.

    Args:
        locations: The stores.
        known: The readers to choose from.
        cache: The folder in which sources of servers store what they read.

    Raises:
        StoreError: No store can be opened.
    """
    if len(locations) == 1:
        return open_source(locations[0], known, cache)
    stores: dict[str, TraceSource | StoreError] = {}
    for location in locations:
        try:
            stores[str(location)] = open_source(location, known, cache)
        except StoreError as error:
            stores[str(location)] = error
    return CombinedSource(stores)


def open_source(
    location: Location | Path, known: Sequence[Reader] = SOURCES, cache: Path | None = None
) -> TraceSource:
    """Return a source for the store at a location.

    Args:
        location: The store.
        known: The readers to choose from.
        cache: The folder in which a source of a server stores what it read.

    Raises:
        StoreError: The location does not exist, no reader accepts it, or it is a folder of several
            stores. Such a folder is refused, because a new file in it would change which sessions
            are read.
    """
    location = Location(str(location)) if isinstance(location, Path) else location
    named = _reader_for(location, known)
    if named and location.is_url:
        source = named(location.where)
        if cache is not None:
            source.use_cache(cache)
        return source
    path = Path(location.where)
    try:
        exists = path.exists()
    except OSError as error:  # a parent folder cannot be entered
        raise unreadable(path, error) from error
    if not exists:
        raise StoreError(
            f"The session store {path} does not exist: set `store` in pipeline.toml (or "
            "AGENT_PIPELINE_STORE) to an existing path."
        )
    if named:
        return named(path)
    finds = find(path, known)
    if finds.stores and finds.stores[0][0] == path:
        return finds.stores[0][1](path)
    if finds.stores:
        some = ", ".join(str(where) for where, _ in finds.stores[:5]) + (
            ", ..." if len(finds.stores) > 5 else ""
        )
        raise StoreError(
            f"{path} is a folder of {len(finds.stores)} session stores: list the stores to read "
            f"in the setting `store` ({some})."
        )
    if finds.errors:
        raise finds.errors[0][1]
    raise _unknown(path)


def find(path: Path, known: Sequence[Reader] = SOURCES) -> Finds:
    """Return the stores at an existing path.

    A file is a store by itself. A folder whose files are all of one kind is one store, including
    its subfolders. In a folder of different kinds, each file or subfolder is its own store.
    """
    finds = _finds(path, known)
    sidecars = {sidecar for where, reader in finds.stores for sidecar in reader(where).sidecars()}
    finds.unknown = [file for file in finds.unknown if file not in sidecars]
    return finds


class ListedStores(NamedTuple):
    """The stores at a location that a user gave, in the form of the setting `store`.

    Attributes:
        stores: The locations of the stores, with absolute paths.
        unknown: The paths of files that no reader knows.
    """

    stores: list[str]
    unknown: list[str]


def list_stores(text: str, known: Sequence[Reader] = SOURCES) -> ListedStores:
    """Return the stores at a location: one store, or every store in a folder of several stores.

    A part of a folder that cannot be read is listed too, so that opening the stores reports it.

    Args:
        text: The location, as a user wrote it.
        known: The readers to try.

    Raises:
        StoreError: There is no store at the location.
    """
    location = parse_location(text)
    path = Path(location.where)
    if location.is_url or location.reader or not path.is_dir():
        open_source(location, known)  # raises an error that explains why there is no store
        where = f"{location.reader}:{location.where}" if location.reader else location.where
        return ListedStores([where], [])
    finds = find(path, known)
    stores = [store_path for store_path, _ in finds.stores]
    stores += [failed_path for failed_path, _ in finds.errors]
    if not stores:
        open_source(location, known)
    return ListedStores([str(store) for store in stores], [str(file) for file in finds.unknown])


def _finds(path: Path, known: Sequence[Reader]) -> Finds:
    """Return the stores, unknown files and errors at a path, including sidecar files."""
    is_folder = path.is_dir()
    try:
        if detected := next(
            (
                reader
                for reader in known
                if (reader.reads_folders or not is_folder) and reader.detect(path)
            ),
            None,
        ):
            return Finds([(path, detected)])
        children = (
            sorted(child for child in path.iterdir() if not child.name.startswith("."))
            if is_folder
            else []
        )
    except (StoreError, OSError) as error:
        return Finds(
            errors=[(path, error if isinstance(error, StoreError) else unreadable(path, error))]
        )
    finds = Finds(unknown=[] if is_folder else [path])
    for child in children:
        if child.is_symlink() and child.is_dir():  # the link may lead back to this folder
            finds.unknown.append(child)
        elif not is_lake(child) and not _belongs_to_a_database(child):
            inside = _finds(child, known)
            finds.stores += inside.stores
            finds.unknown += inside.unknown
            finds.errors += inside.errors
    kinds = {reader for _, reader in finds.stores}
    if len(kinds) == 1 and (reader := kinds.pop()).detect(path):
        finds.stores = [(path, reader)]
    return finds


def _belongs_to_a_database(path: Path) -> bool:
    """Return whether a file is the log or the index of an SQLite database next to it."""
    return (
        path.name.endswith(("-wal", "-shm", "-journal"))
        and path.with_name(path.name.rpartition("-")[0]).exists()
    )


def _reader_for(location: Location, known: Sequence[Reader]) -> Reader | None:
    """Return the reader that a location names, or the reader that opens the scheme of its URL.

    The result is None for a path without a reader's name.
    """
    if location.reader:
        names = {reader.name: reader for reader in reversed(known)}
        if location.reader in names:
            return names[location.reader]
        listed = ", ".join(reader.name for reader in known)
        why = f"there are {listed} (a path with a colon begins with ./)"
        raise StoreError(
            f"The store {location} begins with the name of a reader that does not exist: {why}."
        )
    if not location.is_url:
        return None
    scheme = location.where.partition("://")[0].lower()
    schemes = {scheme_name: reader for reader in reversed(known) for scheme_name in reader.schemes}
    if scheme in schemes:
        return schemes[scheme]
    raise StoreError(
        f"No reader recognizes addresses with the scheme {scheme}: give a path, or add your own "
        "reader to the setting `sources`."
    )


def _unknown(path: Path) -> StoreError:
    """Return the error for a path that no reader accepts.

    The error says what the path holds.
    """
    if not path.is_file():
        holds = "it is a folder that contains no session store"
    elif (kind := kind_of(path)) in (None, "database"):
        holds = (
            "it is not a JSON, Parquet or Arrow file, and not a zip of JSON files or a database of "
            "sessions or traces"
        )
    else:
        try:
            first = next((record for _, record in records(path, [], kind)), None)
        except StoreError as error:
            return error
        fields = [str(name) for name in first][:6] if isinstance(first, dict) else []
        holds = (
            f"it has records with the fields {', '.join(fields)}"
            if fields
            else "it contains no records"
        )
    return StoreError(
        f"{path} is not a session store that a reader recognizes: {holds}. To write your own "
        "reader, see docs/how-to/write-a-reader.md."
    )


def _absolute(path: str, home: Path | None) -> Path:
    """Return an absolute path. A relative path starts at `home`."""
    return ((home or Path.cwd()) / Path(path).expanduser()).resolve()
