"""Base classes of the readers of files.

One pass over a file or a folder creates an index. Each session is then read from the locations of
its records. A reader defines which records it reads (`accepts`), which session a record belongs to
(`identify`), and how to build a session from its records (`build`, or `fields` if one record is one
session). Memory holds the index (ids and locations) and the records of one session. The records of
a platform's running server are read one by one, in the same way as files.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache, partial
from itertools import islice
from pathlib import Path
from typing import ClassVar, NamedTuple

from agent_pipeline.errors import PartitionError, StoreError
from agent_pipeline.keys import PartitionKey, make_key, name_hash
from agent_pipeline.sessions.session import Session
from agent_pipeline.sources.base import (
    Stored,
    TraceSource,
    add_note,
    as_stored,
    changed,
    digest,
    files_of,
    no_partition,
    note_changed_names,
)
from agent_pipeline.sources.formats.detection import sampled
from agent_pipeline.sources.formats.fields import Record, clean_text, parsed, section
from agent_pipeline.sources.formats.losses import TORN, Losses, Lost, with_damage
from agent_pipeline.sources.formats.record_files import (
    Kind,
    RecordLocation,
    RecordReader,
    kind_of,
    records,
)
from agent_pipeline.sources.formats.services import ServerError, Service
from agent_pipeline.sources.formats.session_fields import new_session

DEFAULT_AGENT = "default"
"""Agent name for a store that does not name an agent."""

_UNPACKED = 4
"""Maximum number of records for which the unpacked inner records are kept in memory."""


class Ident(NamedTuple):
    """The session, project and agent that a record belongs to.

    Records with the same `group` are one session. A record without a group is a session by itself.
    `session` is the session's id. `project` and `agent` are set if the record names them.
    """

    group: str | None
    session: str | None = None
    project: str | None = None
    agent: str | None = None


Index = dict[PartitionKey, dict[str, list[RecordLocation]]]
SessionFields = Iterable[tuple[str, Record]]
"""Pairs of a session id and the arguments of `new_session` for the session."""


class FileSource(TraceSource):
    """A base class for readers of files that contain records.

    The module's docstring describes how it works.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("lines", "document")
    merges: ClassVar[bool] = False
    """True if groups that name the same session are one session, as for traces. Otherwise, each
    group gets its own session id.
    """
    service: ClassVar[type[Service] | None] = None
    """Reader of the records on a running server, for URLs with one of `schemes`. None if there is
    no such reader.
    """

    def __init__(self, where: Path | str) -> None:
        self._service = self.service(str(where)) if self.service and "://" in str(where) else None
        super().__init__(self._service.host if self._service else where)
        self._reader = RecordReader()
        self._inside = lru_cache(maxsize=_UNPACKED)(self._records_at)
        self._beside: dict[Path, Record] = {}
        """JSON objects from files next to the records, such as headers and sets of prompts, by
        path.
        """
        self._indexed: tuple[str, Index] | None = None
        self._lost: Lost = {}
        self._losses: dict[tuple[str, str], Counter[str]] = {}
        """Counts of records that could not be read, by project and session id. The agent is not
        part of this key, because the agent may change within a session.
        """

    @classmethod
    def record_of(cls, value: object) -> Record | None:
        """Return the record that a value of a file represents, or None.

        By default, a record is an object.
        """
        return value if isinstance(value, dict) else None

    @classmethod
    def accepts(cls, record: Record) -> bool:
        """Return whether a record shows that a file is of this reader's kind."""
        raise NotImplementedError

    @classmethod
    def reads(cls, record: Record) -> bool:
        """Return whether the index includes a record.

        In a file of this reader's kind, a record may be recognized by less evidence than `accepts`
        needs.
        """
        return cls.accepts(record)

    def identify(self, record: Record, location: RecordLocation) -> Ident | None:
        """Return the session that a record belongs to, or None if it belongs to no session."""
        raise NotImplementedError

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        """Return the session that records describe, and the sessions that branch off from it."""
        raise NotImplementedError

    def unpack(self, record: Record) -> list[Record]:
        """Return the records inside a record. By default, this is only the record itself."""
        return [record]

    def loses(self, record: Record) -> bool:
        """Return whether a record that belongs to no session has content, so that content is lost.

        The sessions of the neighboring records then lack this content, and count as damaged.
        """
        return False

    def group_of(self, path: Path) -> str | None:
        """Return the group (session) of all records in a file, or None if each record names it."""
        return None

    def empty(self, record: Record) -> str | None:
        """Return the end of a note ("is ...") about a record in which `unpack` finds nothing.

        Return None if no note is needed.
        """
        return None

    @classmethod
    def detect(cls, path: Path) -> bool:
        return any(cls._is_mine(file) for file in files_of(path))

    def partitions(self) -> list[PartitionKey]:
        return sorted(self._index())

    def sessions(self, key: PartitionKey) -> Iterator[Session]:
        try:
            for session_id, locations in self._locations_of(key):
                yield from self._built(key, session_id, locations)
        finally:
            self._reader.close()

    def stored(self, key: PartitionKey) -> Iterator[Stored]:
        """Yield every session of a partition with its digest.

        A session on a server is fetched only when it is built, unless the server has changed it
        since the last time.
        """
        if (service := self._service) is None:
            yield from super().stored(key)
            return
        for session_id, locations in self._locations_of(key):
            name, now = (
                digest(str(key).encode(), session_id.encode()).hex(),
                service.digest_of(locations),
            )
            built: dict[str, Session] = {}
            if (ends := service.memory.get(name, now)) is None:
                built = {
                    session.session_id: session
                    for session in self._built(key, session_id, locations)
                }
                ends = [built_id.removeprefix(session_id) for built_id in built]
                service.memory.put([(name, now, ends)])
            for branch_id in (session_id + end for end in ends):
                yield Stored(
                    branch_id,
                    now,
                    partial(
                        built.__getitem__
                        if built
                        else partial(self._again, key, session_id, locations),
                        branch_id,
                    ),
                )

    def stored_share(self, key: PartitionKey, remainder: int, shares: int) -> Iterator[Stored]:
        """Yield the sessions of a share. The records of other sessions are not read.

        A reader that overrides `sessions` to compare sessions with each other reads all sessions.
        """
        if self._service is not None or type(self).sessions is not FileSource.sessions:
            yield from super().stored_share(key, remainder, shares)
            return
        try:
            locations_in_share = islice(self._locations_of(key), remainder, None, shares)
            for session_id, locations in locations_in_share:
                for session in self._built(key, session_id, locations):
                    yield as_stored(session)
        finally:
            self._reader.close()

    def signature(self) -> str:
        return self._service.signature() if self._service else super().signature()

    def partition_signature(self, key: PartitionKey) -> str:
        if self._service is None:
            return super().partition_signature(key)
        return self._service.digest_of(
            location for _, locations in self._locations_of(key) for location in locations
        ).hex()

    def use_cache(self, folder: Path) -> None:
        if self._service:
            self._service.use_cache(folder, self.reader_versions())

    def folders_of(self, path: Path) -> tuple[str, ...]:
        """Return the names of the folders on the path from the store to one of its files.

        The result is empty if the store is a single file.
        """
        return path.relative_to(self.path).parts[:-1] if path != self.path else ()

    def file_beside(
        self, path: Path, lost: str, read: Callable[[Path], bytes] = Path.read_bytes
    ) -> Record:
        """Return the JSON object in a file next to the records that describes them.

        Args:
            path: The file.
            lost: The beginning of a note that says what is missing if the file cannot be read.
            read: The function that reads the file.
        """
        if path not in self._beside:
            try:
                self._beside[path] = section(parsed(read(path)))
            except (OSError, ValueError, StoreError) as error:
                add_note(self.notes, f"{lost} ({path}: {error}).")
                self._beside[path] = {}
        return self._beside[path]

    @classmethod
    def _is_mine(cls, path: Path) -> bool:
        """Return whether the first records of a file are of the kind that this reader reads."""
        kind, records = sampled(path)
        return kind in cls.kinds and any(
            cls.accepts(record) for record in map(cls.record_of, records) if record is not None
        )

    def _locations_of(self, key: PartitionKey) -> list[tuple[str, list[RecordLocation]]]:
        """Return the sessions of a partition, each with the locations of its records.

        Raises:
            PartitionError: The store has no such partition.
        """
        index = self._index()
        if key not in index:
            raise no_partition(self.path, key, index)
        return sorted(index[key].items())

    def _built(
        self, key: PartitionKey, session_id: str, locations: list[RecordLocation]
    ) -> Iterator[Session]:
        """Yield the sessions that the records at the given locations describe."""
        losses = self._losses.get((key.project, session_id))
        for name, session_fields in self.build(
            session_id, [(location, self._record(location)) for location in locations]
        ):
            yield new_session(self.name, key, name, **with_damage(session_fields, losses))

    def _again(
        self, key: PartitionKey, session_id: str, locations: list[RecordLocation], wanted: str
    ) -> Session:
        """Read a session's records again, and return the session with the wanted id."""
        for session in self._built(key, session_id, locations):
            if session.session_id == wanted:
                return session
        raise changed(self.path)

    def _record(self, location: RecordLocation) -> Record:
        """Return the record at a location that the index states."""
        inside = self._inside(location._replace(part=0))
        if location.part >= len(inside):
            raise changed(location.path)
        return inside[location.part]

    def _records_at(self, location: RecordLocation) -> list[Record]:
        """Return the inner records of the record at a location."""
        record = self.record_of((self._service or self._reader).record(location))
        return [] if record is None else self.unpack(record)

    def _records_in(self, path: Path, torn: list[bytes]) -> Iterable[tuple[RecordLocation, object]]:
        """Return every record of a file with its location.

        The result is empty if the reader does not read this kind of file.
        """
        if self._service:
            return self._service.records(path)
        kind = kind_of(path)
        return records(path, self.notes, kind, torn) if kind in self.kinds else ()

    def _index(self) -> Index:
        """Return the index of the store. The index is created again if the store has changed."""
        signature = self.signature()
        if self._indexed is None or self._indexed[0] != signature:
            self._reader.close()
            self._inside.cache_clear()
            self._reader, self._beside = RecordReader(signature if self.merges else ""), {}
            self._indexed = signature, self._new_index()
        return self._indexed[1]

    def _new_index(self) -> Index:
        """Read all files once and return the index."""
        locations: dict[str | RecordLocation, list[RecordLocation]] = {}
        idents: dict[str | RecordLocation, Ident] = {}
        files = list(self._service.heads) if self._service else files_of(self.path)
        foreign: list[str] = []
        failures: list[StoreError] = []
        unassigned_count = 0
        losses = Losses()
        for path in files:
            others = accepted = 0
            losses.begin_file()
            try:
                for location, value in self._records_in(path, losses.torn):
                    losses.count_torn()
                    record = self.record_of(value)
                    if record is None or not self.reads(record):
                        others += 1
                        if record is None:
                            losses.miss()
                        elif self.loses(record):
                            losses.miss("unread")
                        continue
                    accepted += 1
                    inside = self.unpack(record)
                    for part, inner_record in enumerate(inside):
                        inner_location = location._replace(part=part)
                        if ident := self.identify(inner_record, inner_location):
                            group = ident.group or inner_location
                            locations.setdefault(group, []).append(inner_location)
                            losses.follow(ident.group)
                            idents[group] = (
                                _joined(idents[group], ident) if group in idents else ident
                            )
                        else:
                            unassigned_count += 1
                            if self.loses(inner_record):
                                losses.miss("unread")
                    if not inside and (sentence := self.empty(record)):
                        add_note(self.notes, f"{path} {sentence}")
            except ServerError:
                raise
            except (
                StoreError
            ) as error:  # one broken file must not stop the reading of a folder of good files
                failures.append(error)
                add_note(self.notes, str(error))
                losses.miss()
                losses.damage(self.group_of(path), Counter({TORN: 1}))
                continue
            losses.end_file()
            if not accepted:
                foreign.append(path.name)
            elif others:
                add_note(
                    self.notes,
                    f"{path}: {others} records are not what {self.name} writes ({self.looks_like}) "
                    f"and were left out.",
                )
        if failures and len(failures) + len(foreign) == len(files):
            raise failures[0]
        if foreign:
            names = ", ".join(sorted(set(foreign))[:5])
            add_note(
                self.notes,
                f"{len(foreign)} files under {self.path} contain no records of {self.name} and "
                f"were left out ({names}).",
            )
        if unassigned_count:
            add_note(
                self.notes,
                f"{self.path}: {unassigned_count} records of {self.name} belong to no session and "
                "were left out.",
            )
        if not locations and not self.notes:
            add_note(
                self.notes,
                f"{self.path} contains no session, because no record of {self.name} has a session "
                "id.",
            )
        self._lost = losses.by_group
        return self._partitioned(locations, idents)

    def _partitioned(
        self,
        locations: dict[str | RecordLocation, list[RecordLocation]],
        idents: dict[str | RecordLocation, Ident],
    ) -> Index:
        """Return the locations of the groups' records, by partition and session id.

        The losses of the groups are stored by project and session id.
        """
        index: Index = {}
        self._losses = {}
        called = self.path.resolve().stem if self.path.is_file() else self.path.resolve().name
        repeats: Counter[tuple[PartitionKey, str]] = Counter()
        changed_names: dict[str, str] = {}
        for name, ident in idents.items():
            names = (ident.project or called, ident.agent or DEFAULT_AGENT)
            key = usable_key(*names)
            changed_names |= {
                name: slug for name, slug in zip(names, key, strict=True) if name != slug
            }
            default = (
                name
                if isinstance(name, str)
                else f"{name.path.stem}:{name.position:012d}:{name.part}"
            )
            session_id = wanted = clean_text(ident.session or default) or default
            sessions = index.setdefault(key, {})
            while session_id in sessions and not self.merges:
                repeats[key, wanted] += 1
                session_id = f"{wanted}~{repeats[key, wanted] + 1}"
            sessions.setdefault(session_id, []).extend(locations[name])
            if counts := self._lost.get(name):
                self._losses[key.project, session_id] = (
                    self._losses.get((key.project, session_id), Counter()) + counts
                )
        if repeats:
            sentence = (
                f"{self.path}: {repeats.total()} sessions have the same id as another session"
            )
            add_note(self.notes, f"{sentence}; their ids got the suffixes ~2, ~3.")
        note_changed_names(self.notes, self.path, changed_names)
        return index


class RecordSource(FileSource):
    """A base class for readers of files in which each record is a session."""

    def fields(self, record: Record, location: RecordLocation, session_id: str) -> Record:
        """Return the arguments of `new_session` for a record, such as its messages (`history`)."""
        raise NotImplementedError

    def build(self, session_id: str, records: list[tuple[RecordLocation, Record]]) -> SessionFields:
        for location, record in records:
            # If the file was replaced in the meantime, the record may belong to another session.
            ident = self.identify(record, location)
            named = ident and clean_text(ident.session or "")
            if ident is None or (
                named and named not in (session_id, session_id.rpartition("~")[0])
            ):
                raise changed(location.path)
            yield session_id, self.fields(record, location, session_id)


def _joined(known: Ident, more: Ident) -> Ident:
    """Combine the ids of two records of a group.

    The first value of each field counts.
    """
    return Ident(*(old or new for old, new in zip(known, more, strict=True)))


@lru_cache(maxsize=1024)
def usable_key(project: str, agent: str) -> PartitionKey:
    """Return a valid partition key for any two names.

    A name that must be changed gets a hash, so that two different names never become the same key.
    """
    return PartitionKey(_usable(project), _usable(agent))


def _usable(name: str) -> str:
    """Change a name so that it is allowed in a partition key."""
    try:
        return make_key(name, DEFAULT_AGENT).project
    except PartitionError:
        letters = "".join(
            letter for letter in name.lower() if letter.isascii() and letter.isalnum()
        )[:80]
        return f"{letters or 'name'}-{name_hash(name)}"
